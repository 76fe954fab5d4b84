"""The store that was named: its address, which may be in a variable because it has a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ...errors import StoreError, StoreUnavailable
from ..usage_error import UsageError
from .run_options import BadValue, build_variable_name, store_place

_ENV: Final = "env:"
_TWIN: Final = build_variable_name("store")
_PASSWORD: Final = re.compile(r"://[^:@]*:(.+)@")  # in a URL that cannot be read


def resolve_address(said: str, environ: Mapping[str, str], *, who: str) -> str:
    """What *said* stands for: itself, or what is in the variable that it names. *who* said so.

    It may hold a password: not to be shown. Raises Refusal.
    """
    if not said.startswith(_ENV):
        return said
    variable = said.removeprefix(_ENV)
    found = environ.get(variable, "").strip()
    if not found:
        raise UsageError(
            f"{who}: the environment variable {variable} is not set",
            "export it before the command: redis://user:password@host:port/db",
        )
    if found.startswith(_ENV):
        raise UsageError(f"{who}: the environment variable {variable} names another variable", "put the URL into it")
    try:
        return store_place(found)
    except BadValue as error:
        raise UsageError(f"{who}: what the environment variable {variable} has {error}") from None


def find_variable(said: str) -> str | None:
    """The environment variable that *said* names; None if it names none."""
    return said.removeprefix(_ENV) if said.startswith(_ENV) else None


def find_passwords(said: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The passwords of the store that *said* stands for, and of the one in AGENTOS_STORE, which may be another."""
    from ...stores.redis.url import is_redis_url, parse_redis_url

    found: dict[str, None] = {}
    for address in (said, environ.get(_TWIN, "").strip()):
        variable = find_variable(address)
        url = address if variable is None else environ.get(variable, "").strip()
        if is_redis_url(url):
            try:
                found |= dict.fromkeys(parse_redis_url(url).passwords)
            except ValueError:  # whoever opens that store refuses it
                found |= dict.fromkeys(_PASSWORD.findall(url))
    return tuple(found)


def build_store_error(error: StoreError, hint: str) -> UsageError:
    """What is said of a store that is there, or should be, and cannot be used; *hint* unless more is known."""
    if isinstance(error, StoreUnavailable) and error.wants_login:
        hint = "put user and password into the URL, and that into a variable: AGENTOS_STORE=redis://user:password@host"
    return UsageError(error.problem(), hint)


def build_missing_package_error(error: ImportError) -> UsageError:
    """What is said of a package that a server needs: "... needs the package redis: pip install '...'"."""
    problem, _, cure = str(error).partition(": ")
    return UsageError(problem, cure or None)
