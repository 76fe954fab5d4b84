"""Read headers in any form that clients use into a dictionary of the relevant ones."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Any, cast

from ..dialect import Dialect
from ..dialects import DIALECTS

# Other providers forward or copy these names; a header of their own is more specific.
_COPIED = DIALECTS["openai"]

# Separates the values of a repeated header. No value can contain it, so the values can be split again.
REPEATED = "\n"

_PLAIN = (str, bytes)  # not subclasses, which may define their own hash
_MOST_HEADERS = 1000
_LONGEST_NAME = 100
_LONGEST_VALUE = 8192
_KEPT = (
    "retry-after",
    "x-ratelimit",
    "ratelimit",
    "x-tokenlimit",
    "anthropic-ratelimit-",
    "anthropic-priority-",
    "anthropic-organization-id",
    "openai-organization",
    "x-should-retry",
    "x-ms-retry-after-ms",
    "x-amzn-errortype",
    "content-type",
    "date",
)


def parse_headers(headers: object) -> tuple[dict[str, str], Dialect | None]:
    """Return the relevant *headers* by lower-case name, and the dialect that their names reveal.

    *headers* is a mapping, pairs, or a client's own object; names and values are text or bytes. Unreadable ones are
    omitted.
    """
    found: dict[str, str] = {}
    mark: Dialect | None = None
    if headers is None:
        return found, mark
    try:
        for pair in islice(_pairs(headers), _MOST_HEADERS):
            try:
                name, value = pair
            except (TypeError, ValueError):
                continue
            known = _recognise(name if type(name) in _PLAIN else _to_text(name))
            if known is None:
                continue
            plain, dialect = known
            if dialect is not None and (mark is None or mark is _COPIED):
                mark = dialect
            if plain:
                text = value if type(value) is str else _to_text(value)
                if text is not None and len(text) <= _LONGEST_VALUE:
                    found[plain] = f"{found[plain]}{REPEATED}{text}" if plain in found else text
    except Exception:  # noqa: BLE001, S110 - a client's object may fail in any way; headers read so far count
        pass
    return found, mark


def parse_body_type(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str]:
    """Return the content type and the content codings of a body in lower case; empty if not stated.

    Several codings are joined by ", " in the order of application; "identity" is omitted.
    """
    kind, codings = "", ""
    for name, value in headers:
        part = _header_kind(name)
        if part:
            text = value.decode("latin-1").strip().lower()
            if part == 1:
                kind = text
            else:
                codings = f"{codings},{text}"
    return kind, _normalise_codings(codings) if codings else ""


@lru_cache(maxsize=256)
def _normalise_codings(text: str) -> str:
    names = (name.strip() for name in text.split(","))
    return ", ".join(name for name in names if name not in ("", "identity"))


@lru_cache(maxsize=1024)
def _header_kind(name: bytes) -> int:
    return {b"content-type": 1, b"content-encoding": 2}.get(name.lower(), 0)


def _pairs(headers: Any) -> Iterable[Any]:
    if isinstance(headers, (list, tuple)):
        return headers
    for method in ("multi_items", "items"):  # only the first keeps repeated names apart in httpx
        items = getattr(headers, method, None)
        if callable(items):
            return cast("Iterable[Any]", items())
    return cast("Iterable[Any]", headers)


def _to_text(value: object) -> str | None:
    if isinstance(value, str):
        return str.__str__(value)  # a plain string: a subclass may define its own hash
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin-1")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value) if abs(value) < 1e18 else None
    if isinstance(value, (list, tuple)):
        return REPEATED.join(filter(None, map(_to_text, value[:20])))
    return None


@lru_cache(maxsize=4096)
def _recognise(name: str | bytes | None) -> tuple[str, Dialect | None] | None:
    """Return the plain name and its dialect; an empty name if only the dialect matters; None if neither does."""
    if name is None or len(name) > _LONGEST_NAME:
        return None
    name = name if isinstance(name, str) else name.decode("latin-1")
    plain = name.strip().lower().replace("x-rate-limit", "x-ratelimit")
    mark = next((dialect for dialect in DIALECTS.values() if plain.startswith(dialect.marks)), None)
    if plain.startswith(_KEPT):
        return plain, mark
    return None if mark is None else ("", mark)
