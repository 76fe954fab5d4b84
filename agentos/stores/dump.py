"""A store as it looks from outside: its records without a session, and what the rules make of them.

A store knows a credential by a digest of its secret and by its name, and has the record of each quota. It does not
have what programs state: slots, limits, and which named quota a credential belongs to. That is told here by ``KeySpec``
(from a configuration); what nobody tells is found by leases in force, else left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..pool.core.credential_report import build_report
from ..pool.core.learning.adaptive_pool import AdaptivePool
from ..pool.core.quota_codec import EMPTY_RECORD, Record, unpack_quota
from ..pool.core.records import Key, KeySpec
from ..pool.core.states import Life
from ..pool.snapshot import CredentialState, build_state

_OWN, _NAMED = "key ", "quota "  # how the names of quotas begin in a store


@dataclass(frozen=True, slots=True)
class CredentialRow:
    """One credential as the store has it."""

    state: CredentialState
    holders: tuple[str, ...]
    secrets: int  # how many secrets have had this name; the newest of them is shown


@dataclass(frozen=True, slots=True)
class GrantPause:
    """No lease starts for so many seconds more, whatever the credentials are, and why."""

    left: float
    why: str

    def __str__(self) -> str:
        return f"no lease starts in the next {self.left:.0f} s: {self.why}"


@dataclass(frozen=True, slots=True)
class DumpEntry:
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
class StoreDump:
    """All that is in a store, with instants of this machine's clock."""

    entries: list[DumpEntry]
    quotas: Mapping[str, tuple[int, Record]]  # by name as in the store: its number and its record

    def by_name(self) -> dict[str, list[DumpEntry]]:
        """The entries of each name, the one to show first."""
        found: dict[str, list[DumpEntry]] = {}
        for entry in sorted(self.entries, key=lambda entry: (not entry.holders, -entry.number)):
            found.setdefault(entry.name, []).append(entry)
        return found

    def find_quota(self, entry: DumpEntry, spec: KeySpec | None) -> str | None:
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


def build_rows(book: StoreDump, specs: Mapping[str, KeySpec], now: float, offset: float) -> list[CredentialRow]:
    """The rules are the core's: a pool is made of what is known, and asked how things look."""
    pool = AdaptivePool(wall_offset=offset)
    by_name = book.by_name()
    for name, entries in sorted(by_name.items()):
        entry, spec = entries[0], specs.get(name)
        quota = book.find_quota(entry, spec)
        shared = quota.removeprefix(_NAMED) if quota is not None and quota.startswith(_NAMED) else None
        stated = KeySpec(name) if spec is None else spec
        slots = max(stated.slots, len(entry.holders))  # whoever has it in use may state more
        pool.add(replace(stated, slots=slots, quota=stated.quota if quota is None else shared), now)
        _load_entry(pool, pool.keys[name], entry, EMPTY_RECORD if quota is None else book.quotas[quota][1])
    return [
        CredentialRow(build_state(row, now, offset), row.holders, len(by_name[row.name]))
        for row in build_report(pool, now)
    ]


def _load_entry(pool: AdaptivePool, key: Key, entry: DumpEntry, record: Record) -> None:
    unpack_quota(key.quota, record)
    key.proven = True  # so that slots which were found out are shown as found
    pool.set_leases_elsewhere(key, entry.holders)
    if entry.life != Life.ALIVE.value:
        key.life, key.evidence, key.since = Life(entry.life), entry.evidence, entry.since
