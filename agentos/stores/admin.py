"""Read and reset a store from outside, without joining it as a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..pool.core.records import KeySpec
from ..util.clock import Clock
from .dump import CredentialRow, GrantPause
from .redis.url import RedisLocation
from .reset_rules import ResetResult


def format_location(place: Path | RedisLocation) -> str:
    """Return the location as text for people, without a password."""
    return place.shown if isinstance(place, RedisLocation) else str(place)


def read_store(
    place: Path | RedisLocation, specs: Iterable[KeySpec], clock: Clock, secrets: Mapping[str, str] | None = None
) -> list[CredentialRow] | None:
    """Return every credential in the store, by name; None if the store does not exist yet. Changes and blocks nothing.

    Of several secrets of one name, that in *secrets* is shown, else one in use, else the newest.
    Raises StoreError if the store cannot be read, ImportError if its client library is not installed.
    """
    if isinstance(place, RedisLocation):
        from .redis import require_client  # needed for Redis only

        require_client()
        from .redis.read_state import read_store as read_redis

        return read_redis(place, specs, clock, secrets)
    from .sqlite.read_state import read_store as read_sqlite

    return read_sqlite(place, specs, clock, secrets)


def read_pause(place: Path | RedisLocation, clock: Clock) -> GrantPause | None:
    """Return why and for how long the store grants no lease of any credential; None if it grants them.

    Raises what ``read_store`` raises.
    """
    if not isinstance(place, RedisLocation):
        return None  # a file loses no state, so it never pauses
    from .redis import require_client

    require_client()
    from .redis.read_state import read_pause as read_redis_pause

    return read_redis_pause(place, clock)


def reset_credentials(
    place: Path | RedisLocation, names: Sequence[str], specs: Iterable[KeySpec], clock: Clock
) -> list[ResetResult]:
    """Reset these credentials and their quotas: rejections, cooldowns, exhausted balances, usage.

    Waiting processes notice within a second, others at their next request. Leases in force stay. Names that the store
    does not have are left out. Raises StoreError if the store cannot be written.
    """
    if isinstance(place, RedisLocation):
        from .redis import require_client

        require_client()
        from .redis.reset import reset_credentials as reset_redis

        return reset_redis(place, names, specs, clock)
    from .sqlite.reset import reset_credentials as reset_sqlite

    return reset_sqlite(place, names, specs, clock)
