"""The ways a journal's database is opened: to look without touching, to read beside the writer, to write, and anew."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from agentos.errors import JournalUnavailable

from .files import JournalFiles, beside
from .migrations import Migration, migrate

# Written in the header of every journal, so that no other SQLite file is taken for one: "agtj".
APPLICATION_ID: Final = 0x6167746A

# JSON operators (->>) came with 3.38, STRICT tables with 3.37.
OLDEST_SQLITE: Final = (3, 38, 0)

# Opens the database at a URI. Tests hand in their own, to have it fail where they want.
Connect = Callable[[str], sqlite3.Connection]


def connect(uri: str) -> sqlite3.Connection:
    """A connection in autocommit mode that never waits for a lock: SQLite's own wait can starve a process."""
    return sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)


def require_sqlite(db: Path, version: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
    """Refuse a SQLite library that cannot hold a journal."""
    if version < OLDEST_SQLITE:
        have, need = (".".join(map(str, parts)) for parts in (version, OLDEST_SQLITE))
        raise JournalUnavailable(path=str(db), detail=f"this Python has SQLite {have}, and a journal needs {need}")


def open_untouched(files: JournalFiles) -> sqlite3.Connection:
    """Look at the database without changing one byte of it or of its log, nor making a file that was not there."""
    # Without a log, a read-only connection would create an empty one and leave it there; an immutable one does not.
    mode = "mode=ro" if files.wal.exists() else "mode=ro&immutable=1"
    connection = connect(f"{files.db.as_uri()}?{mode}")
    connection.execute("pragma busy_timeout = 2000")
    return connection


def open_to_read(files: JournalFiles) -> sqlite3.Connection:
    """Read beside the writer."""
    connection = connect(f"{files.db.as_uri()}?mode=ro")
    connection.execute("pragma busy_timeout = 5000")
    return connection


def open_to_write(files: JournalFiles, connect: Connect = connect) -> sqlite3.Connection:
    """Open the existing database such that a commit is durable when it returns."""
    connection = connect(f"{files.db.as_uri()}?mode=rw")
    try:
        mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
        connection.execute("pragma synchronous = full")
    except BaseException:
        connection.close()
        raise
    if mode != "wal":
        connection.close()
        raise JournalUnavailable(path=str(files.db), detail=f"SQLite offers no write-ahead log there, only {mode!r}")
    return connection


def create(
    files: JournalFiles, migrations: Sequence[Migration], fill: Callable[[sqlite3.Connection], None] | None = None
) -> None:
    """Make a new database in one step: it is built under another name, so that no crash leaves half of one.

    *fill* may add to it before it appears. Whatever is there under the real name, log included, is replaced.
    """
    draft = beside(files.db, ".new")
    for leftover in (draft, beside(draft, "-journal"), beside(draft, "-wal"), beside(draft, "-shm")):
        leftover.unlink(missing_ok=True)
    connection = connect(f"{draft.as_uri()}?mode=rwc")
    try:
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        migrate(connection, migrations)
        if fill is not None:
            connection.execute("begin immediate")
            fill(connection)
            connection.execute("commit")
        connection.execute("pragma journal_mode = wal").fetchone()
    finally:
        connection.close()
    # The old log first: beside a new database, SQLite would replay it.
    files.wal.unlink(missing_ok=True)
    files.shm.unlink(missing_ok=True)
    draft.replace(files.db)
    sync_folder(files.db.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in *folder* durable (Windows does so by itself)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
