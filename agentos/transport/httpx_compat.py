"""Support httpx2 and httpx, which have the same interface.

A program may have both, and an SDK may take a client of either. So objects made for a request come from the library of
that request, not from the preferred one.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2 as preferred
else:
    try:
        import httpx2 as preferred
    except ImportError:
        try:
            import httpx as preferred
        except ImportError:
            raise ImportError(
                "pool.transport() and context.http need httpx2 (or httpx), which is not installed: pip install httpx2"
            ) from None

library: Any = preferred
BaseTransport = preferred.BaseTransport
AsyncBaseTransport = preferred.AsyncBaseTransport
Client = preferred.Client
AsyncClient = preferred.AsyncClient
Timeout = preferred.Timeout


def find_library(thing: object, default: Any = preferred) -> Any:
    """Return the module that made *thing*, httpx2 or httpx; *default* if neither did."""
    found = _find_class_library(type(thing))  # type: ignore[arg-type]  # mypy does not accept a type as hashable
    return default if found is None else found


@lru_cache(maxsize=256)
def _find_class_library(kind: Any) -> Any:
    for base in kind.__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("httpx2", "httpx"):
            return sys.modules[name]
    return None
