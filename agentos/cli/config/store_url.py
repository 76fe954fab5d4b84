"""Resolve the address of a store, which may be in an environment variable because it holds a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ...errors import StoreError, StoreUnavailable
from ..usage_error import UsageError
from .run_options import BadValue, build_variable_name, store_place

_ENV: Final = "env:"
_TWIN: Final = build_variable_name("store")
_PASSWORD: Final = re.compile(r"://[^:@]*:(.+)@")  # in a URL that cannot be parsed


def resolve_address(address_text: str, environ: Mapping[str, str], *, where: str) -> str:
    """Return *address_text*, or the value of the variable that it names. *where* is where it was set.

    The result may hold a password and must not be shown. Raise UsageError if the variable is not set.
    """
    if not address_text.startswith(_ENV):
        return address_text
    variable = address_text.removeprefix(_ENV)
    found = environ.get(variable, "").strip()
    if not found:
        raise UsageError(
            f"{where}: the environment variable {variable} is not set",
            "export it before the command: redis://user:password@host:port/db",
        )
    if found.startswith(_ENV):
        raise UsageError(f"{where}: the environment variable {variable} names another variable", "put the URL into it")
    try:
        return store_place(found)
    except BadValue as error:
        raise UsageError(f"{where}: what the environment variable {variable} has {error}") from None


def find_variable(address_text: str) -> str | None:
    """Return the environment variable that *address_text* names, or None."""
    return address_text.removeprefix(_ENV) if address_text.startswith(_ENV) else None


def find_passwords(address_text: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the passwords of the store *address_text* and of the one in AGENTOS_STORE, which may be another."""
    from ...stores.redis.url import is_redis_url, parse_redis_url

    found: dict[str, None] = {}
    for address in (address_text, environ.get(_TWIN, "").strip()):
        variable = find_variable(address)
        url = address if variable is None else environ.get(variable, "").strip()
        if is_redis_url(url):
            try:
                found |= dict.fromkeys(parse_redis_url(url).passwords)
            except ValueError:  # reported when the store is opened
                found |= dict.fromkeys(_PASSWORD.findall(url))
    return tuple(found)


def build_store_error(error: StoreError, hint: str) -> UsageError:
    """Return the error for a store that cannot be used, with *hint* unless more is known."""
    if isinstance(error, StoreUnavailable) and error.wants_login:
        hint = "put user and password into the URL, and that into a variable: AGENTOS_STORE=redis://user:password@host"
    return UsageError(error.problem(), hint)


def build_missing_package_error(error: ImportError) -> UsageError:
    """Return the error for a missing package: "... needs the package redis: pip install '...'"."""
    problem, _, cure = str(error).partition(": ")
    return UsageError(problem, cure or None)
