"""The gateway of one run: each attempt gets a token in place of a key."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...gateway import Gateway, GatewayRequest
    from ...gateway.thread import GatewayThread
    from ...workflows.parallel import CredentialCoordinator
    from .request import RunRequest


def open_gateway(request: RunRequest, pool: CredentialCoordinator | None) -> GatewayThread:
    """Start the gateway of a run. Raise ``UsageError`` if there cannot be one."""
    if pool is None:
        raise UsageError("--gateway needs keys", "give some with --keys, or put them into agentos.toml")
    if request.engine is not None:
        raise UsageError("--gateway serves this machine only, and --engine runs the items on others")
    from ...gateway.program_access import ProgramAccess
    from ...gateway.thread import GatewayThread
    from ...stores.sqlite.location import state_folder

    folder = state_folder(os.environ) / "agents"
    try:
        thread = GatewayThread(
            partial(_make_gateway, request, pool), lambda url: ProgramAccess(url, folder, os.environ)
        )
    except OSError as error:
        raise UsageError(f"the gateway cannot listen on this machine: {error.strerror or error}") from None
    except ImportError as error:
        raise UsageError(f"--gateway: {error}") from None
    return thread


def _make_gateway(
    request: RunRequest, pool: CredentialCoordinator, on_request: Callable[[GatewayRequest], None]
) -> Gateway:
    return pool.gateway(
        max_wait=request.option("max_wait"), park_after=request.option("park_after"), on_request=on_request
    )
