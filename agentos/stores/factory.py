"""Opening the store that a pool was told to use, and the bell on which its housekeeper waits."""

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
    """A shared store in use, and its bell."""

    store: SessionStore[Any]
    wakeup: StoreWakeup


def open_store(place: Path | RedisLocation, clock: Clock, *, ttl: float, weight: float, view: StoreView) -> OpenedStore:
    """Share a pool's state with whoever else has opened it there. Raises StoreError."""
    if isinstance(place, RedisLocation):
        from .redis import open_redis  # redis-py is needed by those only who use it

        return OpenedStore(*open_redis(place, clock, ttl=ttl, weight=weight, view=view))
    bell = create_wakeup()
    try:
        file = StoreFile(place, clock)
    except BaseException:
        bell.close()
        raise
    return OpenedStore(SqliteStore(file, clock, bell, ttl=ttl, weight=weight, view=view), bell)
