"""httpx2, or httpx where only that is installed. They are twins, and whatever is made for a request is of its own kind.

A program may have both, an SDK may take a client of either: so the library of a response is that of its request, not
the one that was found first.
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
                "pool.transport() needs httpx2 (or httpx), which is not installed: pip install 'agentos-parallel[http]'"
            ) from None

BaseTransport = preferred.BaseTransport
AsyncBaseTransport = preferred.AsyncBaseTransport


def find_library(thing: object, otherwise: Any = preferred) -> Any:
    """The module that made *thing*, httpx2 or httpx; *otherwise* if it is neither."""
    found = _maker(type(thing))  # type: ignore[arg-type]  # mypy takes no type for hashable
    return otherwise if found is None else found


@lru_cache(maxsize=256)
def _maker(kind: Any) -> Any:
    for base in kind.__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("httpx2", "httpx"):
            return sys.modules[name]
    return None
