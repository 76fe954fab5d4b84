"""Redact secrets in the DEBUG logs of httpcore, which logs response headers before the transport sees them."""

from __future__ import annotations

import logging
import weakref
from typing import Final

from ..pool.protocols import TransportPool

_LOGGERS: Final = tuple(
    f"{library}.{part}"
    for library in ("httpcore2", "httpcore")
    for part in ("connection", "http11", "http2", "proxy", "socks")
)


class _MaskingFilter(logging.Filter):
    """Mask the secrets of all pools that have a transport."""

    def __init__(self) -> None:
        super().__init__()
        self.pools: weakref.WeakSet[TransportPool] = weakref.WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        text = message = record.getMessage()
        for pool in list(self.pools):
            text = pool.masked(text)
        if text != message:
            record.msg, record.args = text, ()
        return True


_FILTER: Final = _MaskingFilter()


def redact_debug_logs(pool: TransportPool) -> None:
    """Mask the secrets of *pool* in the logs of the HTTP libraries, as long as the pool exists."""
    _FILTER.pools.add(pool)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
