"""The Redis store: a pool's state on a Redis or Valkey server that the processes of many machines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...pool.protocols import StoreView
    from ...util.clock import Clock
    from .pubsub_wakeup import PubSubWakeup
    from .store import RedisStore
    from .url import RedisLocation


def open_redis(
    place: RedisLocation, clock: Clock, *, ttl: float, weight: float, view: StoreView
) -> tuple[RedisStore, PubSubWakeup]:
    """Open the store at *place* and join it. Raises StoreError, or ImportError if redis-py is not installed."""
    require_client()
    from .pubsub_wakeup import PubSubWakeup
    from .server_time import server_time_for
    from .store import RedisStore
    from .store_connection import StoreConnection

    connection = StoreConnection(place, server_time_for(clock), ttl)
    try:
        connection.open()
        wakeup = PubSubWakeup(connection)
        try:
            return RedisStore(connection, clock, wakeup, ttl=ttl, weight=weight, view=view), wakeup
        except BaseException:
            wakeup.close()
            raise
    except BaseException:
        connection.close()
        raise


def require_client() -> None:
    """Raise ImportError, which says what to install, if redis-py is missing."""
    try:
        import redis  # noqa: F401 - only to say what is missing
    except ImportError as error:
        raise ImportError(
            "store='redis://...' needs the package redis: pip install 'agentos-parallel[redis]'"
        ) from error
