"""Looking at the pool's file from outside: without a secret, without a session, and without changing anything.

The file knows a credential by a digest of its secret and by its name, and has the record of each quota. It does not
have what programs state: slots, limits, and which named quota a credential belongs to. That is told here by ``KeySpec``
(from a configuration); what nobody tells is found by leases in force, else left out.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ...errors import NotAStore, StoreDamaged, StoreError, StoreTooNew, StoreUnavailable
from ...sqlite.connect import connect
from ...sqlite.migrations import newest, version_of
from ...sqlite.trouble import is_busy, is_unreachable, passing
from .._core.keeping import NOTHING_KNOWN, Record, moved, unpack_quota
from .._core.learning import LearningPool
from .._core.records import Key, KeySpec
from .._core.report import report
from .._core.states import Life
from ..clock import Clock
from ..views import CredentialState, state_from
from .opening import pause
from .rows import Execute, holder, read_moment, read_record
from .schema import APPLICATION_ID, MIGRATIONS
from .timebase import shift, time_base

_FORMAT: Final = newest(MIGRATIONS)
_INSIST: Final = 5.0
_OWN, _NAMED = "key ", "quota "  # how the names of quotas begin in the file


@dataclass(frozen=True, slots=True)
class Sighting:
    """One credential as the file has it."""

    state: CredentialState
    holders: tuple[str, ...]
    secrets: int  # how many secrets have had this name; the newest of them is shown


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the file: one secret that was made known to it, under the name it has now."""

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
    """All that is in the file, with instants of this machine's clock."""

    entries: list[Entry]
    quotas: Mapping[str, tuple[int, Record]]  # by name as in the file: its number and its record

    def by_name(self) -> dict[str, list[Entry]]:
        """The entries of each name, the one to show first."""
        found: dict[str, list[Entry]] = {}
        for entry in sorted(self.entries, key=lambda entry: (not entry.holders, -entry.number)):
            found.setdefault(entry.name, []).append(entry)
        return found

    def quota_of(self, entry: Entry, spec: KeySpec | None) -> str | None:
        """The quota of a credential, as it is called in the file; None where that cannot be told, or is not there."""
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


def look(path: Path, specs: Iterable[KeySpec], clock: Clock) -> list[Sighting] | None:
    """Every credential in the file at *path*, by name; None if there is no such file yet.

    It may be in use: nobody is held up by it. Raises StoreError if it cannot be read.
    """
    now = clock.now()
    offset = clock.wall() - now
    book = _insist(path, now, offset)
    if book is None:
        return None
    try:
        return _sightings(book, {spec.name: spec for spec in specs}, now, offset)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise StoreDamaged(path=str(path), detail=f"a record is not readable ({type(error).__name__})") from None


def _sightings(book: Book, specs: Mapping[str, KeySpec], now: float, offset: float) -> list[Sighting]:
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


# -- reading the file -------------------------------------------------------------------------------------------------


def _insist(path: Path, now: float, offset: float) -> Book | None:
    deadline = time.monotonic() + _INSIST
    while True:
        try:
            if not path.exists():
                return None
            return _read_file(path, now, offset)
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise _verdict(path, error) from None
        except (OSError, ValueError) as error:
            raise StoreUnavailable(path=str(path), detail=str(error)) from None
        time.sleep(pause())


def _read_file(path: Path, now: float, offset: float) -> Book | None:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        return _read_at(uri, path, now, offset)
    except sqlite3.Error as error:
        # In a folder that cannot be written SQLite cannot make the files it coordinates with. If nobody has left any,
        # nobody is at work, and the file is all there is.
        if not is_unreachable(error) or path.with_name(path.name + "-wal").exists():
            raise
        return _read_at(f"{uri}&immutable=1", path, now, offset)


def _read_at(uri: str, path: Path, now: float, offset: float) -> Book | None:
    connection = connect(uri)
    try:
        connection.execute("begin")
        if not _is_ours(connection, path):
            return None
        return read_book(connection.execute, now, offset)
    finally:
        connection.close()


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether it is a store that has been made. False: somebody is just making it."""
    (pages,) = connection.execute("pragma page_count").fetchone()
    (application,) = connection.execute("pragma application_id").fetchone()
    if pages and application != APPLICATION_ID:
        raise NotAStore(path=str(path), detail="it is another SQLite file")
    version = version_of(connection)
    if version > _FORMAT:
        raise StoreTooNew(path=str(path), version=version, newest=_FORMAT)
    return version == _FORMAT


def read_book(execute: Execute, now: float, offset: float) -> Book:
    """Read it all. To be called in a transaction; *now* is by our clock, *offset* how far the wall clock is ahead."""
    moment, base = read_moment(execute), time_base()
    # Where a boot cannot be told from another, a clock that has not gone back is taken to be the same one.
    same = moment is None or (moment.base == base and (base != "" or moment.at <= now))
    by = 0.0 if same or moment is None else shift(moment, now, offset)
    quotas = {
        name: (number, read_record(record) if same else moved(read_record(record), by))
        for number, name, record in execute("select number, name, record from quotas").fetchall()
    }
    leases = _leases(execute, now) if same else {}
    entries = [
        Entry(number, fingerprint, name, life, evidence, since + by, *leases.get(number, ((), None)))
        for number, fingerprint, name, life, evidence, since in execute(
            "select number, fingerprint, name, life, evidence, since from credentials"
        ).fetchall()
    ]
    return Book(entries, quotas)


def _leases(execute: Execute, now: float) -> dict[int, tuple[tuple[str, ...], str]]:
    """Who holds each credential, and from which quota: leases of processes that were heard of lately."""
    rows = execute(
        "select leases.credential, leases.requester, sessions.pid, quotas.name from leases "
        "join sessions on sessions.id = leases.session join quotas on quotas.number = leases.quota "
        "where sessions.expires_at > ? order by leases.token",
        (now,),
    ).fetchall()
    found: dict[int, tuple[tuple[str, ...], str]] = {}
    for credential, requester, pid, quota in rows:
        holders, _ = found.get(credential, ((), quota))
        found[credential] = ((*holders, holder(requester, pid)), quota)
    return found


def _verdict(path: Path, error: sqlite3.Error) -> StoreError:
    why = passing(error)
    if why is not None:
        return StoreUnavailable(path=str(path), detail=why)
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
        return NotAStore(path=str(path), detail="it is no SQLite file")
    return StoreDamaged(path=str(path), detail=str(error))
