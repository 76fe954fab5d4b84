"""The secret, put into the headers: where the SDK put its placeholder, or where its provider wants it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..pool.secret import Secret

# Where keys travel. A request that leaves has exactly one of these.
KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key"))
_OF_PROVIDERS = {"anthropic": "x-api-key", "gemini": "x-goog-api-key", "azure": "api-key"}
_PRIVATE = b"x-agentos-"  # for us alone
RETRIES = b"x-stainless-retry-count"
_KEPT = frozenset((b"accept-encoding", b"host", RETRIES))
_SPECIAL = KEY_HEADERS | _KEPT

# The codings that ``providers.passing`` can read. Clients offer more where more is installed.
_READABLE = "gzip, deflate"


def find_key_header(provider: str | None) -> str:
    """The header in which that provider expects its keys."""
    return _OF_PROVIDERS.get(provider or "", "authorization")


def special_headers(headers: Any) -> dict[bytes, bytes]:
    """Those of a request's headers that are looked at or changed on its way, by name in lower case."""
    found = {}
    for name, value in headers.raw:
        low = _special(name)
        if low is not None:
            found[low] = value
    return found


@lru_cache(maxsize=1024)
def _special(name: bytes) -> bytes | None:
    low = name.lower()
    return low if low in _SPECIAL or low.startswith(_PRIVATE) else None


def put_secret(
    headers: Any, found: dict[bytes, bytes], secret: Secret, auth: str | None, provider: str | None, *, rewritten: bool
) -> None:
    """Make *headers* carry *secret*, and nothing else in the places of keys.

    *found* are the special ones among them. *auth* is the header that the user told, ``"bearer"`` for the usual one. A
    request that was *rewritten* goes to another provider than its SDK thinks, so that the SDK's own place for the key
    says nothing.
    """
    codings = found.get(b"accept-encoding", b"")
    if b"br" in codings or b"zstd" in codings:
        headers["accept-encoding"] = _READABLE
    place, others = _places(auth, tuple(found), provider, rewritten)
    for other in others:
        del headers[other]
    headers[place] = f"Bearer {secret.reveal()}" if place == "authorization" else secret.reveal()


@lru_cache(maxsize=1024)
def _places(
    auth: str | None, found: tuple[bytes, ...], provider: str | None, rewritten: bool
) -> tuple[str, tuple[str, ...]]:
    """The header for the secret, and those of *found* that must go."""
    place = _place(auth, [low.decode() for low in found if low in KEY_HEADERS], provider, rewritten=rewritten)
    return place, tuple(low.decode() for low in found if low not in _KEPT and low != place.encode())


def _place(auth: str | None, given: list[str], provider: str | None, *, rewritten: bool) -> str:
    if auth is not None:
        return "authorization" if auth == "bearer" else auth
    usual = find_key_header(provider)
    if not given or usual in given or (rewritten and provider is not None):
        return usual
    return given[0]
