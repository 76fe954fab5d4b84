"""A store for people who take no part in it: looking, and forgetting what it knows of a credential."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..pool.core.records import KeySpec
from ..util.clock import Clock
from .dump import CredentialRow, GrantPause
from .redis.url import RedisLocation
from .reset_rules import ResetResult


def format_location(place: Path | RedisLocation) -> str:
    """What people may see of where it is."""
    return place.shown if isinstance(place, RedisLocation) else str(place)


def read_store(place: Path | RedisLocation, specs: Iterable[KeySpec], clock: Clock) -> list[CredentialRow] | None:
    """Every credential in the store, by name; None if nobody has used it yet. Nothing is changed, nobody held up.

    Raises StoreError if it cannot be read, ImportError if what it takes to read it is not installed.
    """
    if isinstance(place, RedisLocation):
        from .redis import require_client  # which is not needed by others

        require_client()
        from .redis.read_state import read_store as look_there

        return look_there(place, specs, clock)
    from .sqlite.read_state import read_store as look_into

    return look_into(place, specs, clock)


def read_pause(place: Path | RedisLocation, clock: Clock) -> GrantPause | None:
    """Why no lease starts at present, whatever the credentials are, and for how long; None: nothing is against it.

    Raises what ``read_store`` raises.
    """
    if not isinstance(place, RedisLocation):
        return None  # a file does not forget
    from .redis import require_client

    require_client()
    from .redis.read_state import read_pause as resting_there

    return resting_there(place, clock)


def reset_credentials(
    place: Path | RedisLocation, names: Sequence[str], specs: Iterable[KeySpec], clock: Clock
) -> list[ResetResult]:
    """Forget death, coolings, money gone and use of the credentials of these names, and of their quotas.

    Every process that uses the store hears of it: those who wait within a second, others at their next request. Leases
    in force stay. Names the store does not have are left out. Raises StoreError if it cannot be written.
    """
    if isinstance(place, RedisLocation):
        from .redis import require_client

        require_client()
        from .redis.reset import reset_credentials as clear_there

        return clear_there(place, names, specs, clock)
    from .sqlite.reset import reset_credentials as clear_in

    return clear_in(place, names, specs, clock)
