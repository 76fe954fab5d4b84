"""Build the pool of a run from the selected credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..exit_codes import ExitCode
from ..usage_error import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ...stores.redis.url import RedisLocation
    from ...workflows.parallel import CredentialCoordinator
    from ..config.key_selection import SelectedKey
    from .request import RunRequest


def build_pool(request: RunRequest, *, read_only: bool = False) -> CredentialCoordinator | None:
    """Return the pool, or None without credentials. With *read_only* no store is created."""
    if not request.keys:
        return None
    where = request.where.get("store", "--store")
    return build_key_pool(request.keys, request.option("store"), where, read_only=read_only)


def build_key_pool(
    keys: Sequence[SelectedKey], store_text: str, where: str, *, read_only: bool = False
) -> CredentialCoordinator:
    """Return the pool of *keys*, with its state in the store that was named at *where*. Raise ``UsageError``."""
    from ...errors import StoreError
    from ...pool.protocols import runtime_of
    from ...stores.sqlite.location import parse_location
    from ...workflows.parallel import CredentialCoordinator
    from ..config.store_url import build_missing_package_error, build_store_error, find_passwords, resolve_address

    store = resolve_address(store_text, os.environ, where=where)
    try:
        place = parse_location(store, os.environ)
    except ValueError as error:
        raise UsageError(f"{where} {str(error).removeprefix('store ')}") from None
    try:
        if read_only and place is not None and _is_new(place):
            store = "memory"
        pool = CredentialCoordinator([key.credential for key in keys], store=store)
    except StoreError as error:
        raise build_store_error(
            error, "name another place with --store sqlite:///path, or use --store memory"
        ) from None
    except ImportError as error:
        raise build_missing_package_error(error) from None
    except ValueError as error:
        raise UsageError(f"the credentials cannot be used together: {error}", code=ExitCode.USAGE) from None
    for password in find_passwords(store_text, os.environ):
        runtime_of(pool).masker.add_password(password)
    return pool


def _is_new(place: Path | RedisLocation) -> bool:
    """Return whether the store does not exist yet, without creating it."""
    from ...stores.admin import read_store
    from ...util.clock import SystemClock

    return read_store(place, (), SystemClock()) is None


def list_variables(request: RunRequest) -> Mapping[str, str]:
    """Return, for each credential by name, the environment variable in which a command finds it."""
    env_key = request.option("env_key")
    from ...runs.commands.command import DEFAULT_ENV_KEY

    return {str(key.credential.name): env_key or key.env_key or DEFAULT_ENV_KEY for key in request.keys}
