"""Put the secret into the request headers: in place of the SDK's placeholder, or where the provider expects it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..pool.secret import Secret

# Headers that carry keys. An outgoing request has exactly one of them.
KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key"))
_HEADERS_BY_PROVIDER = {"anthropic": "x-api-key", "gemini": "x-goog-api-key", "azure": "api-key"}
_PRIVATE = b"x-agentos-"  # removed before sending
RETRIES = b"x-stainless-retry-count"
_KEPT = frozenset((b"accept-encoding", b"host", RETRIES))
_SPECIAL = KEY_HEADERS | _KEPT

# Content codings that ``BodySniffer`` can decode. Clients offer more if more are installed.
_READABLE = "gzip, deflate"


def find_key_header(provider: str | None) -> str:
    """Return the header in which *provider* expects its keys."""
    return _HEADERS_BY_PROVIDER.get(provider or "", "authorization")


def find_special_headers(headers: Any) -> dict[bytes, bytes]:
    """Return the request headers that are read or changed before sending, by lower-case name."""
    found = {}
    for name, value in headers.raw:
        lower = _special(name)
        if lower is not None:
            found[lower] = value
    return found


@lru_cache(maxsize=1024)
def _special(name: bytes) -> bytes | None:
    lower = name.lower()
    return lower if lower in _SPECIAL or lower.startswith(_PRIVATE) else None


def put_secret(
    headers: Any, found: dict[bytes, bytes], secret: Secret, auth: str | None, provider: str | None, *, rewritten: bool
) -> None:
    """Make *headers* carry *secret* in exactly one key header.

    *found* are the special headers among them. *auth* is the header that the user chose; ``"bearer"`` means
    ``Authorization``. A *rewritten* request goes to another provider than the SDK expects, so the SDK's own key header
    is ignored.
    """
    codings = found.get(b"accept-encoding", b"")
    if b"br" in codings or b"zstd" in codings:
        headers["accept-encoding"] = _READABLE
    header, others = _choose_headers(auth, tuple(found), provider, rewritten)
    for other in others:
        del headers[other]
    headers[header] = f"Bearer {secret.reveal()}" if header == "authorization" else secret.reveal()


@lru_cache(maxsize=1024)
def _choose_headers(
    auth: str | None, found: tuple[bytes, ...], provider: str | None, rewritten: bool
) -> tuple[str, tuple[str, ...]]:
    """Return the header for the secret, and the headers among *found* to remove."""
    header = _choose_key_header(
        auth, [lower.decode() for lower in found if lower in KEY_HEADERS], provider, rewritten=rewritten
    )
    return header, tuple(lower.decode() for lower in found if lower not in _KEPT and lower != header.encode())


def _choose_key_header(auth: str | None, given: list[str], provider: str | None, *, rewritten: bool) -> str:
    if auth is not None:
        return "authorization" if auth == "bearer" else auth
    usual = find_key_header(provider)
    if not given or usual in given or (rewritten and provider is not None):
        return usual
    return given[0]
