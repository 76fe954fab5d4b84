"""StoreDump: all records of a store, read without a session, and the status of each credential derived from them.

A store identifies a credential by a digest of its secret and by its name, and has the record of each quota. It does not
have what programs state: slots, limits, and which named quota a credential belongs to. The caller passes that as
``KeySpec`` (from a configuration); without it, the quota is found by the leases in force, else left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ..pool.core.credential_report import build_report
from ..pool.core.learning.adaptive_pool import AdaptivePool
from ..pool.core.quota_codec import EMPTY_RECORD, Record, unpack_quota
from ..pool.core.records import Key, KeySpec
from ..pool.core.states import Life
from ..pool.snapshot import CredentialState, build_state
from .fingerprint import compute_fingerprint

_OWN, _NAMED = "key ", "quota "  # prefixes of quota names in a store


@dataclass(frozen=True, slots=True)
class CredentialRow:
    """One credential in the store, with its status."""

    state: CredentialState
    holders: tuple[str, ...]
    secrets: int  # how many secrets have had this name
    secrets_in_use: int = 0  # how many of them are leased now


@dataclass(frozen=True, slots=True)
class GrantPause:
    """The store grants no lease for *left* seconds more."""

    left: float
    why: str

    def __str__(self) -> str:
        return f"no lease starts in the next {self.left:.0f} s: {self.why}"


@dataclass(frozen=True, slots=True)
class DumpEntry:
    """One secret known to the store, under its present name."""

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
    """All records of a store, with instants of this machine's clock."""

    entries: list[DumpEntry]
    quotas: Mapping[str, tuple[int, Record]]  # name in the store -> number, record
    salt: bytes  # of the fingerprints

    def by_name(self, secrets: Mapping[str, str] = MappingProxyType({})) -> dict[str, list[DumpEntry]]:
        """Return the entries of each name, the one to show first: that of its present secret, if it is known."""
        present = {(name, compute_fingerprint(self.salt, secret)) for name, secret in secrets.items()}
        found: dict[str, list[DumpEntry]] = {}
        for entry in sorted(
            self.entries,
            key=lambda entry: ((entry.name, entry.fingerprint) not in present, not entry.holders, -entry.number),
        ):
            found.setdefault(entry.name, []).append(entry)
        return found

    def is_replaced(self, entry: DumpEntry, secrets: Mapping[str, str]) -> bool:
        """Return whether the name of *entry* is known to have another secret now."""
        present = secrets.get(entry.name)
        return present is not None and compute_fingerprint(self.salt, present) != entry.fingerprint

    def find_quota(self, entry: DumpEntry, spec: KeySpec | None) -> str | None:
        """Return the store's name for the quota of a credential; None if it is unknown or not in the store."""
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


def build_rows(
    dump: StoreDump, specs: Mapping[str, KeySpec], now: float, offset: float, secrets: Mapping[str, str]
) -> list[CredentialRow]:
    """Load the dump into a pool and return the pool's report, so that the core's rules derive each status.

    *secrets* are the present secrets of names, where known. A key of *specs* whose present secret was never used is
    left out, unless a process still uses another one of its name.
    """
    pool = AdaptivePool(wall_offset=offset)
    by_name = dump.by_name(secrets)
    for name, entries in sorted(by_name.items()):
        entry, spec = entries[0], specs.get(name)
        if spec is not None and not entry.holders and dump.is_replaced(entry, secrets):
            continue
        quota = dump.find_quota(entry, spec)
        shared = quota.removeprefix(_NAMED) if quota is not None and quota.startswith(_NAMED) else None
        record = EMPTY_RECORD if quota is None else dump.quotas[quota][1]
        stated = KeySpec(name, auto=True) if spec is None else spec
        # A process that uses it may state more slots; an estimated number is in the record.
        slots = max(stated.slots, len(entry.holders))
        auto = stated.auto and "width" in record and record["width"]["slots"] >= slots
        pool.add(replace(stated, slots=slots, quota=stated.quota if quota is None else shared, auto=auto), now)
        _load_entry(pool, pool.keys[name], entry, record)
    return [
        CredentialRow(
            build_state(row, now, offset),
            row.holders,
            len(by_name[row.name]),
            sum(bool(entry.holders) for entry in by_name[row.name]),
        )
        for row in build_report(pool, now)
    ]


def _load_entry(pool: AdaptivePool, key: Key, entry: DumpEntry, record: Record) -> None:
    unpack_quota(key.quota, record)
    key.proven = True  # show the learned number of slots as certain
    pool.set_leases_elsewhere(key, entry.holders, ())
    if entry.life != Life.ALIVE.value:
        key.life, key.evidence, key.since = Life(entry.life), entry.evidence, entry.since
