"""Who has the store open, among all processes and containers of a machine. Whoever ends is out, however it ends.

The file ``<store>.alive`` is locked by way of SQLite, because no other shared lock in the standard library works on all
systems. Such a lock ends with its process, and a forked child does not inherit it. Nothing is ever written to the file:
it stays empty, so no crash can damage it. It must not be opened in any other way, not even to look: on POSIX, closing
it would drop every lock that this process has on it. Nor may it be removed while the store is in use.
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

_LOOK: Final = "select count(*) from sqlite_schema"
# Rows without end, so that the statement is never done; it has looked at the file, so that it keeps the file locked.
_KEEP_LOOKING: Final = (
    "with recursive more(n) as (select 1 union all select n + 1 from more) "  # noqa: S608 (constants)
    f"select n from more where ({_LOOK}) >= 0"
)


class PresenceLock:
    """One of those that have *store* open: it is outside, inside, or inside and alone.

    *store* is its path, as `prepare` returns it. A child forked by a process that is inside is itself outside. Only one
    thread at a time may use it. Coming in may raise StoreUnavailable.
    """

    def __init__(self, store: Path, *, connect: Connect = connect) -> None:
        self._connection: sqlite3.Connection | None = None
        self.path: Final = store.with_name(store.name + ".alive")
        self._connect = connect
        self._pid = 0

    @property
    def is_held(self) -> bool:
        """Whether this process is in, alone or not."""
        return self._connection is not None and self._pid == os.getpid()

    def try_exclusive(self) -> bool:
        """Come in and keep everybody else out, until `share` or `release`. Never waits.

        False: somebody is inside, or tried the same at this very moment; then it may be that none of them came in, and
        only trying again tells.
        """
        return self._begin("begin exclusive")

    def share(self, *, patience: float = _PATIENCE) -> None:
        """Come in as one of many, waiting a while for one that is alone; or, being alone, let others in and stay.

        There is no moment between the two in which somebody else could be alone.
        """
        if self.is_held:
            self._downgrade()
            return
        deadline = time.monotonic() + patience
        while not self._try_share():
            if time.monotonic() >= deadline:
                raise self._kept_out(patience)
            _pause()

    def release(self) -> None:
        """Go out, if we are in."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        self.release()  # a pool that was forgotten while threads that nobody can stop had its leases is still inside

    def _try_share(self) -> bool:
        return self._begin("begin")

    def _begin(self, statement: str) -> bool:
        """Open the file and begin a transaction that has its lock. False: somebody else's lock is in the way."""
        connection = self._open()
        try:
            # The journal of a transaction would be a second file; being alone is a transaction, if an empty one.
            connection.execute("pragma journal_mode = memory").fetchone()
            connection.execute(statement)
            connection.execute(_LOOK).fetchone()  # a plain transaction locks nothing before it has read something
        except sqlite3.Error as error:
            self.release()
            if is_busy(error):
                return False
            raise self._explained(error) from None
        return True

    def _downgrade(self) -> None:
        """From alone to one of many. Ending the transaction leaves the lock that a statement under way still needs."""
        connection = self._connection
        if connection is None:
            return
        try:
            looking = connection.execute(_KEEP_LOOKING)
            looking.fetchone()
            connection.execute("rollback")  # not commit: that would write the first page
            connection.execute("begin")
            connection.execute(_LOOK).fetchone()
            looking.close()
        except sqlite3.Error as error:
            self.release()
            raise self._explained(error) from None

    def _open(self) -> sqlite3.Connection:
        if self.is_held:
            raise ValueError("this process is inside already")
        with _opening:
            _close_inherited()
            try:
                make_private(self.path)
                if self.path.stat().st_size:
                    raise StoreUnavailable(path=str(self.path), detail="it is only for locking, and is not empty")
                connection = self._connect(f"{self.path.as_uri()}?mode=rw")
            except (OSError, sqlite3.Error) as error:
                raise self._explained(error) from None
            self._connection, self._pid = connection, os.getpid()
            _all.add(self)
        return connection

    def _explained(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(path=str(self.path), detail=transient_reason(error) or str(error))

    def _kept_out(self, patience: float) -> StoreUnavailable:
        return StoreUnavailable(
            path=str(self.path), detail=f"another process has kept it to itself for {patience:g}s; it may be suspended"
        )


_all: weakref.WeakSet[PresenceLock] = weakref.WeakSet()
_opening = Lock()


def _close_inherited() -> None:
    """In a forked child, close what the parent had open, before anything is opened.

    SQLite keeps its own count of the locks a process has on a file, and the child inherits the count, but not the
    locks: it would be given a lock by the count, without the system being asked. Not done at the fork itself: most
    children never come here, and another thread of the parent may have been in the middle of SQLite.
    """
    for alive in list(_all):
        if not alive.is_held:
            alive.release()


def _forget_the_lock() -> None:
    global _opening
    _opening = Lock()


# A child may be forked while another thread has the lock: nobody would release it there.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_lock)


def _pause() -> None:
    time.sleep(SystemRandom().uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))  # so that two do not keep meeting
