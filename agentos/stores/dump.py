"""A store as it looks from outside: its records without a session, and what the rules make of them.

A store knows a credential by a digest of its secret and by its name, and has the record of each quota. It does not
have what programs state: slots, limits, and which named quota a credential belongs to. That is told here by ``KeySpec``
(from a configuration); what nobody tells is found by leases in force, else left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..pool.core.credential_report import report
from ..pool.core.learning.adaptive_pool import LearningPool
from ..pool.core.quota_codec import NOTHING_KNOWN, Record, unpack_quota
from ..pool.core.records import Key, KeySpec
from ..pool.core.states import Life
from ..pool.snapshot import CredentialState, state_from

_OWN, _NAMED = "key ", "quota "  # how the names of quotas begin in a store


@dataclass(frozen=True, slots=True)
class Sighting:
    """One credential as the store has it."""

    state: CredentialState
    holders: tuple[str, ...]
    secrets: int  # how many secrets have had this name; the newest of them is shown


@dataclass(frozen=True, slots=True)
class Pause:
    """No lease starts for so many seconds more, whatever the credentials are, and why."""

    left: float
    why: str

    def __str__(self) -> str:
        return f"no lease starts in the next {self.left:.0f} s: {self.why}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One secret that was made known to the store, under the name it has now."""

    number: int
    fingerprint: str
    name: str
    life: str
    evidence: str
    since: float
    holders: tuple[str, ...]
    leased_from: str | None  # the quota of its leases in force


@dataclass(frozen=True, slots=True)
class Book:
    """All that is in a store, with instants of this machine's clock."""

    entries: list[Entry]
    quotas: Mapping[str, tuple[int, Record]]  # by name as in the store: its number and its record

    def by_name(self) -> dict[str, list[Entry]]:
        """The entries of each name, the one to show first."""
        found: dict[str, list[Entry]] = {}
        for entry in sorted(self.entries, key=lambda entry: (not entry.holders, -entry.number)):
            found.setdefault(entry.name, []).append(entry)
        return found

    def quota_of(self, entry: Entry, spec: KeySpec | None) -> str | None:
        """The quota of a credential, as it is called in the store; None where that cannot be told, or is not there."""
        own = _OWN + entry.fingerprint
        if entry.leased_from is not None:
            return entry.leased_from
        if spec is not None:
            stated = own if spec.quota is None else _NAMED + spec.quota
            return stated if stated in self.quotas else None
        if own in self.quotas:
            return own
        named = [name for name in self.quotas if name.startswith(_NAMED)]
        return named[0] if len(named) == 1 else None


def sightings(book: Book, specs: Mapping[str, KeySpec], now: float, offset: float) -> list[Sighting]:
    """The rules are the core's: a pool is made of what is known, and asked how things look."""
    pool = LearningPool(wall_offset=offset)
    by_name = book.by_name()
    for name, entries in sorted(by_name.items()):
        entry, spec = entries[0], specs.get(name)
        quota = book.quota_of(entry, spec)
        shared = quota.removeprefix(_NAMED) if quota is not None and quota.startswith(_NAMED) else None
        stated = KeySpec(name) if spec is None else spec
        slots = max(stated.slots, len(entry.holders))  # whoever has it in use may state more
        pool.add(replace(stated, slots=slots, quota=stated.quota if quota is None else shared), now)
        _know(pool, pool.keys[name], entry, NOTHING_KNOWN if quota is None else book.quotas[quota][1])
    return [Sighting(state_from(row, now, offset), row.holders, len(by_name[row.name])) for row in report(pool, now)]


def _know(pool: LearningPool, key: Key, entry: Entry, record: Record) -> None:
    unpack_quota(key.quota, record)
    key.proven = True  # so that slots which were found out are shown as found
    pool.occupy(key, entry.holders)
    if entry.life != Life.ALIVE.value:
        key.life, key.evidence, key.since = Life(entry.life), entry.evidence, entry.since
