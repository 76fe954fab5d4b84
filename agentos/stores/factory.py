"""Open the store at a location, with the wake-up that its maintenance thread waits on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..pool.protocols import StoreView
from ..pool.store_protocol import StoreWakeup
from ..util.clock import Clock
from .redis.url import RedisLocation
from .session import SessionStore
from .sqlite.file import StoreFile
from .sqlite.store import SqliteStore
from .sqlite.udp_wakeup import create_wakeup


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """An open shared store and its wake-up."""

    store: SessionStore[Any]
    wakeup: StoreWakeup


def open_store(place: Path | RedisLocation, clock: Clock, *, ttl: float, weight: float, view: StoreView) -> OpenedStore:
    """Open the store at *place* and join it. Raises StoreError."""
    if isinstance(place, RedisLocation):
        from .redis import open_redis  # redis-py is an optional dependency

        return OpenedStore(*open_redis(place, clock, ttl=ttl, weight=weight, view=view))
    wakeup = create_wakeup()
    try:
        file = StoreFile(place, clock)
    except BaseException:
        wakeup.close()
        raise
    return OpenedStore(SqliteStore(file, clock, wakeup, ttl=ttl, weight=weight, view=view), wakeup)
