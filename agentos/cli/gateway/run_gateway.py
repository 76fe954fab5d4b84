"""The gateway of one run: each attempt gets a token in place of a key."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...errors import AgentOSError
from ...providers.signal import PARKED_FROM
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...gateway import Gateway, GatewayRequest
    from ...gateway.program_access import ProgramAccess
    from ...gateway.thread import GatewayThread
    from ...workflows.parallel import CredentialCoordinator
    from ..session.request import RunRequest
    from .gateway_process import GatewayProcess


def open_gateway(
    request: RunRequest, pool: CredentialCoordinator | None, ends: contextlib.ExitStack
) -> GatewayThread | GatewayProcess:
    """Start the gateway of a run, and close it with *ends*. Raise ``UsageError`` if there cannot be one.

    It is a thread if the items are commands. A function may block the interpreter, so that it is a process then.
    """
    if pool is None:
        raise UsageError("--gateway needs keys", "give some with --keys, or put them into agentos.toml")
    if request.engine is not None:
        raise UsageError("--gateway serves this machine only, and --engine runs the items on others")
    from ...gateway.program_access import ProgramAccess
    from ...stores.sqlite.location import state_folder

    folder = state_folder(os.environ) / "agents"

    def point(url: str) -> ProgramAccess:
        return ProgramAccess(url, folder, os.environ)

    try:
        if request.command is None:
            return _open_process(request, pool, ends, point)
        from ...gateway.thread import GatewayThread

        thread = GatewayThread(partial(_make_gateway, request, pool), point)
    except OSError as error:
        raise UsageError(f"the gateway cannot listen on this machine: {error.strerror or error}") from None
    except ImportError as error:
        raise UsageError(f"--gateway: {error}") from None
    ends.callback(thread.close)
    return thread


def _open_process(
    request: RunRequest,
    pool: CredentialCoordinator,
    ends: contextlib.ExitStack,
    point: Callable[[str], ProgramAccess],
) -> GatewayProcess:
    """Start the process, and point this one's environment at it: functions, their SDKs and their programs use that."""
    from ...pool.protocols import runtime_of
    from ..config.store_url import resolve_address
    from .gateway_child import describe_credential
    from .gateway_process import GatewayProcess, replaced_environment

    holds_secret = runtime_of(pool).masker.contains_secret
    secret_variables = frozenset(name for name, value in os.environ.items() if holds_secret(value))
    config = {
        "credentials": [describe_credential(key.credential) for key in request.keys],
        "store": resolve_address(request.option("store"), os.environ, where=request.where.get("store", "--store")),
        "max_wait": request.option("max_wait"),
        "park_after": find_park_after(request),
        "port": 0,
        "token": None,
    }
    environ = {name: value for name, value in os.environ.items() if name not in secret_variables}
    process = GatewayProcess(config, environ, point)
    ends.callback(process.close)
    for secret in (process.token, process.stem):
        runtime_of(pool).masker.add(secret)
    variables = process.programs.build_environment("", process.token)
    ends.enter_context(replaced_environment(variables, secret_variables))
    return process


def recall_sessions(gateway: GatewayThread | GatewayProcess, folder: os.PathLike[str]) -> None:
    """Tell the gateway of a resumed run which keys served its sessions before. Sessions are of commands."""
    from ...gateway.thread import GatewayThread
    from ...runs.journal.journal_files import locate_files
    from ...runs.report.gateway_requests import find_last_keys

    files = locate_files(folder)
    if isinstance(gateway, GatewayThread) and files.size(files.db):
        with contextlib.suppress(AgentOSError, OSError):  # of a damaged journal, of which the run itself will speak
            gateway.gateway.remember_sessions(find_last_keys(files))


def find_park_after(request: RunRequest) -> float | None:
    """Return after how many seconds a request is not held: as typed, or what ``--no-wait`` means."""
    typed: float | None = request.option("park_after")
    return PARKED_FROM if typed is None and request.option("no_wait") else typed


def _make_gateway(
    request: RunRequest, pool: CredentialCoordinator, on_request: Callable[[GatewayRequest], None]
) -> Gateway:
    return pool.gateway(max_wait=request.option("max_wait"), park_after=find_park_after(request), on_request=on_request)
