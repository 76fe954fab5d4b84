"""StoreFile: open the pool's SQLite file, and prepare it if no other process has it open.

A process that finds no other one alive gets the exclusive presence lock for a moment. Only then it creates the file or
migrates it to the newest format, moves instants of an earlier boot to this boot's clock, and frees the leases of
processes that are gone, except leases that remote workers or surviving commands may still use. While other processes
are alive none of this happens: a file whose instants are of another clock is refused.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Final

from ...errors import NotAStore, StoreDamaged, StoreElsewhere, StoreError, StoreTooNew, StoreUnavailable
from ...pool.core.quota_codec import shift_record_epoch
from ...util.clock import Clock
from ...util.sqlite.connect import Connect, connect, why_too_old
from ...util.sqlite.errors import is_busy, transient_reason
from ...util.sqlite.migrations import expected_schema, migrate, newest_version, read_schema, read_version
from .boot_clock import ClockReading, compute_shift, read_boot_id
from .lease_locks import LeaseLocks
from .location import prepare_file
from .presence_lock import PresenceLock
from .rows import (
    Changes,
    Execute,
    end_session,
    postpone_expiry,
    read_last_change,
    read_moment,
    read_record,
    read_tokens,
    schedule_expiry,
    write_moment,
    write_record,
)
from .schema import APPLICATION_ID, MIGRATIONS
from .udp_wakeup import WakeupTarget

_FORMAT: Final = newest_version(MIGRATIONS)
_SALT_BYTES: Final = 32
_TRIES: Final = 5
_LOG_SIZE: Final = 1 << 20  # size to which SQLite truncates the write-ahead log
_INSIST: Final = 5.0
_IDLE_TIMEOUT: Final = 1.0
_PAGE_SIZE: Final = 2048  # a step writes about six pages, a row or two each; small pages cost a fifth less


class StoreFile:
    """The open file. ``base`` identifies the clock of its instants; ``salt`` is for fingerprints."""

    connection: sqlite3.Connection
    salt: bytes

    def __init__(self, path: Path, clock: Clock, *, base: str | None = None, connect: Connect = connect) -> None:
        self.base = read_boot_id() if base is None else base
        self.pid = os.getpid()
        self.at_work = 0  # number of nested steps in progress; a fork waits for 0
        self._clock = clock
        self._connect = connect
        old = why_too_old("the pool's store")
        if old is not None:
            raise StoreUnavailable(path=str(path), detail=old)
        self.path = prepare_file(path)
        self.locks = LeaseLocks(self.path)
        self._open()

    # -- opening ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._presence = PresenceLock(self.path)
        deadline = time.monotonic() + _INSIST
        while True:
            try:
                self._try_to_open()
                break
            except UnicodeDecodeError as error:  # SQLite's own message could not be decoded
                raise StoreDamaged(path=str(self.path), detail=str(error)) from None
            except sqlite3.Error as error:
                # Other processes lock it for short moments.
                if not is_busy(error) or time.monotonic() > deadline:
                    raise self._translate_error(error) from None
            time.sleep(busy_backoff())
        self._identity = _identity(self.path)
        _open_files.add(self)

    def _try_to_open(self) -> None:
        self.connection = self._connected()
        try:
            self._require_ours()  # before files are created beside it
            self._enter()
            self.salt = bytes.fromhex(self._meta("salt"))
        except (ValueError, TypeError, LookupError) as error:
            self._presence.release()
            self.connection.close()
            raise StoreDamaged(path=str(self.path), detail=f"its metadata is not readable ({error})") from None
        except BaseException:
            self._presence.release()
            self.connection.close()
            raise

    def _connected(self) -> sqlite3.Connection:
        _close_inherited()
        connection = self._connect(f"{self.path.as_uri()}?mode=rw")
        try:
            connection.execute("pragma synchronous = normal")
            connection.execute(f"pragma journal_size_limit = {_LOG_SIZE}").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _enter(self) -> None:
        """Join the processes that have the file open, after making sure that it is usable."""
        wrong: StoreError | None = None
        for _ in range(_TRIES):
            if self._try_exclusive():
                self._prepare_format()
                self._presence.share()
                return
            self._presence.share()
            wrong = self._describe_problem()
            if wrong is None:
                return
            self._presence.release()  # the process that was preparing it may have died
            time.sleep(busy_backoff())
        assert wrong is not None  # noqa: S101 - for the type checker
        raise wrong

    def _try_exclusive(self) -> bool:
        # Two processes that try at the same moment can exclude each other, though neither has the lock.
        for _ in range(_TRIES):
            if self._presence.try_exclusive():
                return True
            time.sleep(busy_backoff())
        return False

    def _describe_problem(self) -> StoreError | None:
        """Return why the file cannot be used together with the processes that have it open."""
        self._require_ours()
        version = read_version(self.connection)
        if version < _FORMAT:
            detail = (
                f"processes of an older agentos are using it (its format is {version}, this agentos needs {_FORMAT}): "
                "update them, or wait until they have ended"
            )
            return StoreUnavailable(path=str(self.path), detail=detail)
        moment = read_moment(self.connection.execute)
        # Without a boot id, processes that have the file open at the same time are of the same boot.
        if moment is not None and moment.base != self.base:
            return StoreElsewhere(path=str(self.path), detail="their clock cannot be compared with ours")
        return None

    def _require_ours(self) -> None:
        """Raise if the file is not a store, or is too new, before anything is changed."""
        execute = self.connection.execute
        (application,) = execute("pragma application_id").fetchone()
        (pages,) = execute("pragma page_count").fetchone()
        if pages and application != APPLICATION_ID:
            raise NotAStore(path=str(self.path), detail="it is another SQLite file")
        version = read_version(self.connection)
        if version > _FORMAT:
            raise StoreTooNew(path=str(self.path), version=version, newest=_FORMAT)

    # -- with the exclusive lock ------------------------------------------------------------------------------

    def _prepare_format(self) -> None:
        """Create the file, or migrate it to this format and this boot's clock; free the leases of dead processes."""
        self._require_ours()
        execute = self.connection.execute
        if read_version(self.connection) == 0:
            execute(f"pragma page_size = {_PAGE_SIZE}")
            execute(f"pragma application_id = {APPLICATION_ID}")  # first, so that a partly made file is recognised
        (mode,) = execute("pragma journal_mode = wal").fetchone()
        if mode != "wal":
            detail = f"SQLite offers no write-ahead log there, only {mode!r}"
            raise StoreUnavailable(path=str(self.path), detail=detail)
        migrate(self.connection, MIGRATIONS)
        self._require_sound()
        now = self._clock.now()
        offset = self._clock.wall() - now
        execute("begin immediate")
        try:
            execute("insert or ignore into meta values ('salt', ?)", (secrets.token_hex(_SALT_BYTES),))
            self._reset_sessions(read_moment(execute), now, offset)
            write_moment(execute, self.base, now, offset)
            self.locks.sweep()
            execute("commit")
        except BaseException:
            if self.connection.in_transaction:
                execute("rollback")
            raise

    def _require_sound(self) -> None:
        execute = self.connection.execute
        (check,) = execute("pragma quick_check(1)").fetchone()
        if check != "ok":
            raise StoreDamaged(path=str(self.path), detail=check)
        if read_schema(self.connection) != expected_schema(_FORMAT, MIGRATIONS):
            raise StoreDamaged(path=str(self.path), detail="its tables are not those of a store")

    def _reset_sessions(self, last: ClockReading | None, now: float, offset: float) -> None:
        """End the sessions, since no process is alive, and move instants of another clock to ours."""
        execute = self.connection.execute
        by = 0.0 if last is None or (last.base == self.base != "") else compute_shift(last, now, offset)
        (sessions,) = execute("select count(*) from sessions").fetchone()
        if not by and not sessions:
            return
        schedule_expiry(execute, now, offset, by=by)
        for (session,) in execute("select distinct session from leases").fetchall():
            if self.locks.outlived(read_tokens(execute, session)):
                postpone_expiry(execute, session, now)
        execute("delete from sessions where gone_until is null or expires_at <= ?", (now,))
        execute("delete from leases where session not in (select id from sessions)")
        execute("delete from sessions where id not in (select session from leases)")
        execute("update leases set guessed = null")  # the records below have nothing in flight
        execute("update credentials set since = since + ?", (by,))
        for number, record in execute("select number, record from quotas").fetchall():
            write_record(execute, number, shift_record_epoch(read_record(record), by))

    # -- while it is open -------------------------------------------------------------------------------------

    def is_still_at_path(self) -> bool:
        """Return whether the path still leads to the file that is open."""
        return _identity(self.path) == self._identity

    def in_transaction(self) -> bool:
        """Return whether a transaction is open; False if the connection is closed after a failed reopen."""
        try:
            return self.connection.in_transaction
        except sqlite3.ProgrammingError:
            return False

    def reopen(self) -> bool:
        """Reopen the file after an error. Return whether another file is there now."""
        self.connection.close()
        try:
            if self.is_still_at_path():
                self.connection = self._connected()
                return False
        except sqlite3.Error as error:
            raise self._translate_error(error) from None
        self._presence.release()
        self.path = prepare_file(self.path)
        self._open()
        return True

    def end_session(self, session: str) -> list[WakeupTarget]:
        """Remove a session and its leases on a separate connection. Return the processes to wake."""
        return self._on_own_connection(lambda execute, changes: end_session(execute, session, changes))

    def schedule_expiry(self, session: str) -> list[WakeupTarget]:
        """Let a session of this process expire, as remote workers may use its leases; else like ``end_session``."""

        def act(execute: Execute, changes: Changes) -> None:
            now = self._clock.now()
            schedule_expiry(execute, now, self._clock.wall() - now, session=session)
            held = execute("select credential from leases where session = ?", (session,)).fetchall()
            changes.credentials.update(credential for (credential,) in held)

        return self._on_own_connection(act)

    def _on_own_connection(self, act: Callable[[Execute, Changes], object]) -> list[WakeupTarget]:
        """Change something on a separate connection, at once. Return the processes to wake."""
        connection = self._connected()
        try:
            execute = connection.execute
            execute("begin immediate")
            changes = read_last_change(execute)
            act(execute, changes)
            changes.write(execute)
            waiting: list[WakeupTarget] = execute(
                "select bell, id from sessions where waiting_since is not null"
            ).fetchall()
            execute("commit")
        finally:
            connection.close()
        return waiting

    def leave(self) -> None:
        """Release the locks that show this process as alive."""
        self.locks.close()
        self._presence.release()

    def close(self) -> None:
        self.connection.close()

    def _meta(self, key: str) -> str:
        value: str = self.connection.execute("select value from meta where key = ?", (key,)).fetchone()[0]
        return value

    def _translate_error(self, error: sqlite3.Error) -> StoreError:
        why = transient_reason(error)
        if why is not None:
            return StoreUnavailable(path=str(self.path), detail=why)
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            return NotAStore(path=str(self.path), detail="it is not an SQLite file")
        return StoreDamaged(path=str(self.path), detail=str(error))


_open_files: weakref.WeakSet[StoreFile] = weakref.WeakSet()


def _close_inherited() -> None:
    """In a forked child, close what the parent had open, before anything is opened.

    SQLite counts the locks of a process per file. The child inherits the count but not the locks: with the parent's
    connection open it would assume locks that it does not have.
    """
    for file in list(_open_files):
        if file.pid != os.getpid():
            _open_files.discard(file)
            file.close()


def _wait_for_idle() -> None:
    """Before a fork, wait until no step is in progress: a busy connection could not be closed in the child.

    Without a lock, which an interrupt at the wrong moment would leave locked for ever. From the last check here to the
    fork this thread keeps the interpreter lock, so that no other thread begins a step.
    """
    global _forking
    _forking = True
    deadline = time.monotonic() + _IDLE_TIMEOUT
    while any(file.at_work for file in list(_open_files)) and time.monotonic() < deadline:
        time.sleep(busy_backoff())


def _after_fork() -> None:
    global _forking
    _forking = False


def yield_to_fork() -> None:
    """Before a step, wait for a thread that is about to fork."""
    deadline = time.monotonic() + _IDLE_TIMEOUT if _forking else 0.0
    while _forking and time.monotonic() < deadline:
        time.sleep(busy_backoff())


_forking = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_idle, after_in_parent=_after_fork, after_in_child=_after_fork)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def busy_backoff() -> float:
    """Return how long to wait before trying a locked file again; random, so that processes do not stay in step."""
    return SystemRandom().uniform(0.000_2, 0.002)
