"""Read the pool's file from outside: without a secret or a session, and without changing it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ...errors import NotAStore, StoreDamaged, StoreError, StoreTooNew, StoreUnavailable
from ...pool.core.quota_codec import shift_record_epoch
from ...pool.core.records import KeySpec
from ...util.clock import Clock
from ...util.sqlite.connect import connect
from ...util.sqlite.errors import is_busy, is_unreachable, transient_reason
from ...util.sqlite.migrations import newest_version, read_version
from ..dump import CredentialRow, DumpEntry, StoreDump, build_rows
from .boot_clock import compute_shift, read_boot_id
from .file import busy_backoff
from .rows import Execute, describe_holder, read_moment, read_record
from .schema import APPLICATION_ID, MIGRATIONS

_FORMAT: Final = newest_version(MIGRATIONS)
_INSIST: Final = 5.0


def read_store(
    path: Path, specs: Iterable[KeySpec], clock: Clock, secrets: Mapping[str, str] | None = None
) -> list[CredentialRow] | None:
    """Return every credential in the file at *path*, by name; None if there is no such file yet.

    Does not block processes that use the file. Raises StoreError if it cannot be read.
    """
    now = clock.now()
    offset = clock.wall() - now
    dump = _retry(path, now, offset)
    if dump is None:
        return None
    try:
        return build_rows(dump, {spec.name: spec for spec in specs}, now, offset, secrets or {})
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise StoreDamaged(path=str(path), detail=f"a record is not readable ({type(error).__name__})") from None


# -- reading the file -------------------------------------------------------------------------------------------------


def _retry(path: Path, now: float, offset: float) -> StoreDump | None:
    deadline = time.monotonic() + _INSIST
    while True:
        try:
            if not path.exists():
                return None
            return _read_file(path, now, offset)
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise _translate_error(path, error) from None
        except (OSError, ValueError) as error:
            raise StoreUnavailable(path=str(path), detail=str(error)) from None
        time.sleep(busy_backoff())


def _read_file(path: Path, now: float, offset: float) -> StoreDump | None:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        return _read_at(uri, path, now, offset)
    except sqlite3.Error as error:
        # In a read-only folder SQLite cannot create its shared-memory file. Without a WAL file no process is using the
        # store, and the file is complete.
        if not is_unreachable(error) or path.with_name(path.name + "-wal").exists():
            raise
        return _read_at(f"{uri}&immutable=1", path, now, offset)


def _read_at(uri: str, path: Path, now: float, offset: float) -> StoreDump | None:
    connection = connect(uri)
    try:
        connection.execute("begin")
        if not _is_ours(connection, path):
            return None
        return read_dump(connection.execute, now, offset, version=read_version(connection))
    finally:
        connection.close()


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file is a finished store. False: a process is just creating it."""
    (pages,) = connection.execute("pragma page_count").fetchone()
    (application,) = connection.execute("pragma application_id").fetchone()
    if pages and application != APPLICATION_ID:
        raise NotAStore(path=str(path), detail="it is another SQLite file")
    version = read_version(connection)
    if version > _FORMAT:
        raise StoreTooNew(path=str(path), version=version, newest=_FORMAT)
    return version > 0


def read_dump(execute: Execute, now: float, offset: float, *, version: int = _FORMAT) -> StoreDump:
    """Read all records, in the caller's transaction; *offset* is how far the wall clock is ahead of *now*.

    *version* is the file's format, which may be an older one: reading does not migrate it.
    """
    moment, base = read_moment(execute), read_boot_id()
    # Without boot ids, a clock that has not gone back is assumed to be the same one.
    same = moment is None or (moment.base == base and (base != "" or moment.at <= now))
    by = 0.0 if same or moment is None else compute_shift(moment, now, offset)
    quotas = {
        name: (number, read_record(record) if same else shift_record_epoch(read_record(record), by))
        for number, name, record in execute("select number, name, record from quotas").fetchall()
    }
    leases = _leases(execute, now, "sessions.gone_until" if version >= 2 else "null") if same else {}
    entries = [
        DumpEntry(number, fingerprint, name, life, evidence, since + by, *leases.get(number, ((), None)))
        for number, fingerprint, name, life, evidence, since in execute(
            "select number, fingerprint, name, life, evidence, since from credentials"
        ).fetchall()
    ]
    ((salt,),) = execute("select value from meta where key = 'salt'").fetchall()
    return StoreDump(entries, quotas, bytes.fromhex(salt))


def _leases(execute: Execute, now: float, gone: str) -> dict[int, tuple[tuple[str, ...], str]]:
    """Return the holders of each credential, and the quota of their leases, for sessions that have not expired."""
    rows = execute(
        f"select leases.credential, leases.requester, sessions.pid, {gone}, quotas.name from leases "  # noqa: S608
        "join sessions on sessions.id = leases.session join quotas on quotas.number = leases.quota "
        "where sessions.expires_at > ? order by leases.token",
        (now,),
    ).fetchall()
    found: dict[int, tuple[tuple[str, ...], str]] = {}
    for credential, requester, pid, gone_until, quota in rows:
        holders, _ = found.get(credential, ((), quota))
        found[credential] = ((*holders, describe_holder(requester, pid, gone_until)), quota)
    return found


def _translate_error(path: Path, error: sqlite3.Error) -> StoreError:
    why = transient_reason(error)
    if why is not None:
        return StoreUnavailable(path=str(path), detail=why)
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
        return NotAStore(path=str(path), detail="it is not an SQLite file")
    return StoreDamaged(path=str(path), detail=str(error))
