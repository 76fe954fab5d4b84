"""Append commits to an open journal, and detect whether a commit was written.

After an error the state of the commit is unknown: SQLite may have written all of it before a sync failed. So the
connection is closed, and the next attempt reopens the file and looks. A commit that is found there counts only after a
checkpoint has written it again, because a second sync can succeed without writing what the first one failed to write.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from agentos.errors import JournalUnavailable
from agentos.util.sqlite.connect import Connect
from agentos.util.sqlite.errors import TransientSqliteError, transient_reason

from .database import open_to_write
from .entry_text import COLUMNS, join_rows
from .hash_chain import compute_link
from .head_file import CommitPosition, HeadFile
from .journal_files import JournalFiles
from .owner_lock import OwnerLock
from .reader import Reader

log = logging.getLogger("agentos")

_COLUMNS_OF_ROW = ", ".join(f"j.value ->> {index}" for index in range(len(COLUMNS)))

# One statement in autocommit mode: each call into SQLite releases the GIL, and getting it back can take 5 ms. The last
# line is the fence: it inserts nothing after another session has taken the journal over.
_APPEND = (
    f"insert into entries(seq, {', '.join(COLUMNS)}, chain) "  # noqa: S608 (constants)
    f"select ? + j.key, {_COLUMNS_OF_ROW}, case j.key when ? then ? end from json_each(?) j "
    "where (select value from meta where key = 'session') = ?"
)
_SET_META = "insert into meta(key, value) values (?, ?) on conflict(key) do update set value = excluded.value"


class CommitLog:
    """The database, the head and the lock of one open journal. Only one thread at a time may use it."""

    def __init__(
        self,
        files: JournalFiles,
        *,
        owner: OwnerLock,
        head: HeadFile,
        position: CommitPosition,
        session: int,
        connect: Connect,
    ) -> None:
        self.files = files
        self.position = position
        self.session = session
        self.reader = Reader(files)
        self._owner = owner
        self._head = head
        self._connect = connect
        self._head_failed = False
        self._file = _find_inode(files.db)
        self._wal: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None

    def begin_session(self, worker: str, rows: Sequence[str]) -> None:
        """Make this session the owner inside the database, and append its first entries in the same transaction."""
        connection = self._connection = open_to_write(self.files, self._connect)
        connection.execute("begin immediate")
        connection.executemany(_SET_META, [("session", str(self.session)), ("worker", worker)])
        position = self._insert(connection, rows)
        connection.execute("commit")
        # Keep it open, so that closing the writer's connection after an error never removes the log.
        self.reader.open()
        self._advance_to(position)

    def append(self, rows: Sequence[str]) -> None:
        """Commit *rows* durably and in order.

        Raises TransientSqliteError: call again later with the same rows. Raises JournalUnavailable if retrying cannot
        help: the file is gone, replaced, broken or taken over.
        """
        try:
            connection = self._connection
            position = self._insert(connection, rows) if connection is not None else self._insert_again(rows)
            self._check_files()
        except (TransientSqliteError, sqlite3.Error, MemoryError, OSError) as error:
            self._drop_connection()
            raise self._translate_error(error) from None
        self._advance_to(position)

    def close(self) -> None:
        """Close the files and release the journal. Never raises for disk errors: what is committed is durable."""
        try:
            self.reader.close()
            self._checkpoint()
            self._head.sync()
        except (sqlite3.Error, OSError) as error:
            log.warning("the journal %s was not closed cleanly: %s", self.files.db, error)
        finally:
            # The last connection to close also removes the log, unless the database was moved.
            self._drop_connection()
            self._head.close()
            self._owner.release()

    def _insert(self, connection: sqlite3.Connection, rows: Sequence[str]) -> CommitPosition:
        text = join_rows(rows)
        position = self._position_after(rows, text)
        first, last = self.position.seq + 1, len(rows) - 1
        done = connection.execute(_APPEND, (first, last, position.chain, text, str(self.session)))
        if done.rowcount != len(rows):
            raise self._build_error(f"it was taken over by {_describe_owner(connection)}")
        return position

    def _insert_again(self, rows: Sequence[str]) -> CommitPosition:
        """Reopen the file and append *rows*, unless they are there already."""
        self._check_files()
        connection = self._connection = open_to_write(self.files, self._connect)
        found = connection.execute("select seq, chain from entries order by seq desc limit 1").fetchone()
        after = self._position_after(rows, join_rows(rows))
        if found == self.position:
            position = self._insert(connection, rows)
        elif found == after:
            busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
            if busy:
                raise TransientSqliteError("another program reads it")
            position = after
        else:
            seq = found[0] if found else 0
            raise self._build_error(f"it ends at entry {seq}, but this run has written {self.position.seq} entries")
        return position

    def _translate_error(self, error: Exception) -> Exception:
        """Return TransientSqliteError with a reason, or JournalUnavailable."""
        try:
            self._check_files()
        except JournalUnavailable as lost:
            return lost
        except OSError as unreachable:
            error = unreachable
        reason = transient_reason(error)
        if reason is None:
            return self._build_error(f"SQLite failed: {error}")
        return TransientSqliteError(f"the journal {self.files.db} cannot be written now: {reason}")

    def _position_after(self, rows: Sequence[str], text: str) -> CommitPosition:
        seq, chain = self.position
        return CommitPosition(seq + len(rows), compute_link(chain, seq + 1, text))

    def _advance_to(self, position: CommitPosition) -> None:
        self.position = position
        if self._wal is None:
            self._wal = _find_inode(self.files.wal)
        try:
            self._head.write(position)
            self._head_failed = False
        except OSError:
            # The entries are durable; only the head file is behind. The next commit writes it again.
            if not self._head_failed:
                log.warning("the head file %s cannot be written", self.files.head, exc_info=True)
            self._head_failed = True

    def _check_files(self) -> None:
        """Raise JournalUnavailable unless the paths still lead to the files that are being written."""
        for path, opened in ((self.files.db, self._file), (self.files.wal, self._wal)):
            if opened is not None and (now := _find_inode(path)) != opened:
                raise self._build_error(f"{path.name} was {'removed' if now is None else 'replaced'}")

    def _checkpoint(self) -> None:
        if self._connection is not None:
            self._connection.execute("pragma wal_checkpoint(truncate)").fetchone()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                log.debug("closing the journal's connection failed", exc_info=True)

    def _build_error(self, detail: str) -> JournalUnavailable:
        return JournalUnavailable(path=str(self.files.db), detail=detail)


def _find_inode(path: Path) -> tuple[int, int] | None:
    """Return device and inode of *path*, or None if it does not exist. Links are not followed."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _describe_owner(connection: sqlite3.Connection) -> str:
    found = connection.execute("select detail from entries where kind = 'session' order by seq desc limit 1").fetchone()
    card = json.loads(found[0])
    return f"session {card['session']} (pid {card['pid']} on {card['host']})"
