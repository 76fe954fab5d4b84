"""The pool's state on a Redis or Valkey server, shared by the processes of many machines.

Each process keeps a replica of the records, each with its version. A step is decided locally on the replica, by the
rules of ``pool.core``, and sent as one call of ``scripts/apply.lua``: the versions that were read, the records to
write, the sessions to wake. If the versions still match, the script writes and publishes; else it returns what has
changed and the step is decided again. A step has a number, so that one whose reply was lost is sent again and
executed once. Instants are in the server's time; ``clock_offset.py`` translates them. After the server's clock was
set, or after data loss (``metadata.py``), grants pause until no lease from before can be in use.
"""

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
        raise ImportError("store='redis://...' needs the package redis: pip install redis") from error
