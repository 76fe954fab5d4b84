"""Transports for httpx2 (or httpx) that lease a credential for each call of any SDK.

``pool.transport()`` and ``pool.async_transport()`` make them; docs/http.md describes their use. The names here are
imported on first use, because the transports need httpx2 and the rest of the room does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .call_record import CallRecord, Refusal
    from .transport import AsyncPoolTransport, PoolTransport

__all__ = ["AsyncPoolTransport", "CallRecord", "PoolTransport", "Refusal"]

_HOME = {
    "AsyncPoolTransport": ".transport",
    "CallRecord": ".call_record",
    "PoolTransport": ".transport",
    "Refusal": ".call_record",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOME[name], __name__), name)
    return found
