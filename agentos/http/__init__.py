"""The pool under any SDK: transports for httpx2 (or httpx) that lease a credential for each call.

They are made by ``pool.transport()`` and ``pool.async_transport()``; docs/http.md tells how they are used.
"""

from .record import CallRecord, Refusal
from .transport import AsyncPoolTransport, PoolTransport

__all__ = ["AsyncPoolTransport", "CallRecord", "PoolTransport", "Refusal"]
