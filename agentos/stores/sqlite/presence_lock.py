"""PresenceLock: shows which processes of a machine, containers included, have the store open.

The file ``<store>.alive`` is locked through SQLite, because no other shared lock in the standard library works on all
systems. Such a lock ends with its process, and a forked child does not inherit it. The file stays empty, so no crash
can damage it. It must not be opened in any other way, even for reading: on POSIX, closing it would drop every lock that
this process has on it. It must not be removed while the store is in use.
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from pathlib import Path
from random import SystemRandom
from threading import Lock
from typing import Final

from ...errors import StoreUnavailable
from ...util.sqlite.connect import Connect, connect
from ...util.sqlite.errors import is_busy, transient_reason
from .location import make_private

_PATIENCE: Final = 5.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.02

_READ_SCHEMA: Final = "select count(*) from sqlite_schema"
# An endless statement that has read from the file keeps the file locked.
_ENDLESS_READ: Final = (
    "with recursive more(n) as (select 1 union all select n + 1 from more) "  # noqa: S608 (constants)
    f"select n from more where ({_READ_SCHEMA}) >= 0"
)


class PresenceLock:
    """The lock of this process on *store*: released, shared, or exclusive.

    *store* is its path, as ``prepare_file`` returns it. A forked child does not hold its parent's lock. Only one thread
    at a time may use it. Acquiring it may raise StoreUnavailable.
    """

    def __init__(self, store: Path, *, connect: Connect = connect) -> None:
        self._connection: sqlite3.Connection | None = None
        self.path: Final = store.with_name(store.name + ".alive")
        self._connect = connect
        self._pid = 0

    @property
    def is_held(self) -> bool:
        """Return whether this process holds the lock, shared or exclusive."""
        return self._connection is not None and self._pid == os.getpid()

    def try_exclusive(self) -> bool:
        """Acquire the lock exclusively, until `share` or `release`. Never waits.

        False: another process holds the lock, or tried at the same moment; then possibly none succeeded, and each has
        to try again.
        """
        return self._begin("begin exclusive")

    def share(self, *, patience: float = _PATIENCE) -> None:
        """Acquire the shared lock, waiting a while for an exclusive holder; or downgrade our exclusive lock to it.

        During the downgrade no other process can get the exclusive lock.
        """
        if self.is_held:
            self._downgrade()
            return
        deadline = time.monotonic() + patience
        while not self._try_share():
            if time.monotonic() >= deadline:
                raise self._timeout_error(patience)
            _pause()

    def release(self) -> None:
        """Release the lock, if we hold it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        self.release()  # for a pool that was dropped while abandoned threads had its leases

    def _try_share(self) -> bool:
        return self._begin("begin")

    def _begin(self, statement: str) -> bool:
        """Open the file and begin a transaction that locks it. Return False if another process's lock prevents it."""
        connection = self._open()
        try:
            # Otherwise the exclusive transaction, though empty, would create a journal file.
            connection.execute("pragma journal_mode = memory").fetchone()
            connection.execute(statement)
            connection.execute(_READ_SCHEMA).fetchone()  # a plain transaction locks nothing until it reads
        except sqlite3.Error as error:
            self.release()
            if is_busy(error):
                return False
            raise self._unavailable(error) from None
        return True

    def _downgrade(self) -> None:
        """Downgrade from exclusive to shared. The running statement keeps its lock when the transaction ends."""
        connection = self._connection
        if connection is None:
            return
        try:
            cursor = connection.execute(_ENDLESS_READ)
            cursor.fetchone()
            connection.execute("rollback")  # not commit: that would write the first page
            connection.execute("begin")
            connection.execute(_READ_SCHEMA).fetchone()
            cursor.close()
        except sqlite3.Error as error:
            self.release()
            raise self._unavailable(error) from None

    def _open(self) -> sqlite3.Connection:
        if self.is_held:
            raise ValueError("this process already holds the lock")
        with _opening:
            _close_inherited()
            try:
                make_private(self.path)
                if self.path.stat().st_size:
                    raise StoreUnavailable(path=str(self.path), detail="it is only for locking, and is not empty")
                connection = self._connect(f"{self.path.as_uri()}?mode=rw")
            except (OSError, sqlite3.Error) as error:
                raise self._unavailable(error) from None
            self._connection, self._pid = connection, os.getpid()
            _all.add(self)
        return connection

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(path=str(self.path), detail=transient_reason(error) or str(error))

    def _timeout_error(self, patience: float) -> StoreUnavailable:
        return StoreUnavailable(
            path=str(self.path), detail=f"another process has locked it for {patience:g}s; it may be suspended"
        )


_all: weakref.WeakSet[PresenceLock] = weakref.WeakSet()
_opening = Lock()


def _close_inherited() -> None:
    """In a forked child, close what the parent had open, before anything is opened.

    SQLite keeps its own count of a process's locks on a file. The child inherits the count but not the locks, and would
    get a lock from the count without the system being asked. Not done at the fork itself: most children never come
    here, and another thread of the parent may have been inside SQLite.
    """
    for lock in list(_all):
        if not lock.is_held:
            lock.release()


def _replace_lock() -> None:
    global _opening
    _opening = Lock()


# A child may be forked while another thread holds the lock, which then is never released in the child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_lock)


def _pause() -> None:
    time.sleep(SystemRandom().uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))  # random, so that two do not stay in step
