"""Opening the store that a pool was told to use, and the bell on which its housekeeper waits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..pool.protocols import StoreView
from ..pool.store_protocol import Ringer
from ..util.clock import Clock
from .redis.url import RedisPlace
from .session import SessionStore
from .sqlite.file import StoreFile
from .sqlite.store import SqliteStore
from .sqlite.udp_wakeup import make_bell


@dataclass(frozen=True, slots=True)
class Opened:
    """A shared store in use, and its bell."""

    store: SessionStore[Any]
    bell: Ringer


def open_store(place: Path | RedisPlace, clock: Clock, *, ttl: float, weight: float, view: StoreView) -> Opened:
    """Share a pool's state with whoever else has opened it there. Raises StoreError."""
    if isinstance(place, RedisPlace):
        from .redis import open_redis  # redis-py is needed by those only who use it

        return Opened(*open_redis(place, clock, ttl=ttl, weight=weight, view=view))
    bell = make_bell()
    try:
        file = StoreFile(place, clock)
    except BaseException:
        bell.close()
        raise
    return Opened(SqliteStore(file, clock, bell, ttl=ttl, weight=weight, view=view), bell)
