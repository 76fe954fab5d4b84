"""Open a journal's database: without changing it, for reading beside the writer, for writing, or as a new one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from agentos.errors import JournalUnavailable
from agentos.util.sqlite.connect import Connect, connect, why_too_old
from agentos.util.sqlite.migrations import Migration, migrate
from agentos.util.sqlite.untrusted_file import limit_steps

from ...util.private_folder import UnsafePath
from .journal_files import JournalFiles, beside

# Written in the header of every journal ("agtj"), to tell it from other SQLite files.
APPLICATION_ID: Final = 0x6167746A


def require_sqlite(db: Path, version: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
    """Raise JournalUnavailable if the SQLite library is too old for a journal."""
    lack = why_too_old("a journal", version)
    if lack is not None:
        raise JournalUnavailable(path=str(db), detail=lack)


def check_files(files: JournalFiles, *, to_write: bool) -> None:
    """Raise UnsafePath unless the files that SQLite will open by path are ordinary; to write, they must be ours.

    A rollback journal is refused too: SQLite would apply it to the database, and delete a file that it names.
    """
    try:
        with files.opened() as folder:
            paths = (files.db, files.wal, files.shm, files.rollback)
            folder.check(*(path.name for path in paths), to_write=to_write)
    except FileNotFoundError:
        return  # the folder does not exist
    if files.size(files.rollback):
        raise UnsafePath(files.rollback, "is an SQLite rollback journal, which agentos never creates: remove it")


def open_untouched(files: JournalFiles) -> sqlite3.Connection:
    """Open the database read-only, without changing it or its log and without creating a file.

    Reading is limited to as many steps as an intact file of its size needs. Raises JournalUnavailable if its files are
    not ordinary files.
    """
    try:
        check_files(files, to_write=False)
    except UnsafePath as unsafe:
        raise JournalUnavailable(path=str(files.db), detail=str(unsafe)) from None
    length, log = files.size(files.db) or 0, files.size(files.wal)
    # Without a log, a read-only connection would create an empty one; an immutable one does not.
    mode = "mode=ro&immutable=1" if log is None else "mode=ro"
    connection = connect(f"{files.db.as_uri()}?{mode}")
    connection.execute("pragma busy_timeout = 2000")
    limit_steps(connection, length + (log or 0))
    return connection


def open_to_read(files: JournalFiles) -> sqlite3.Connection:
    """Open the database for reading beside the writer."""
    check_files(files, to_write=False)
    connection = connect(f"{files.db.as_uri()}?mode=ro")
    connection.execute("pragma busy_timeout = 5000")
    return connection


def open_to_write(files: JournalFiles, connect: Connect = connect) -> sqlite3.Connection:
    """Open the existing database so that a commit is durable when it returns. Raises UnsafePath."""
    check_files(files, to_write=True)
    connection = connect(f"{files.db.as_uri()}?mode=rw")
    try:
        mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
        connection.execute("pragma synchronous = full")
    except BaseException:
        connection.close()
        raise
    if mode != "wal":
        connection.close()
        raise JournalUnavailable(path=str(files.db), detail=f"SQLite supports no write-ahead log there, only {mode!r}")
    return connection


def create(
    files: JournalFiles, migrations: Sequence[Migration], fill: Callable[[sqlite3.Connection], None] | None = None
) -> None:
    """Create a new database atomically: it is built under another name and then renamed.

    *fill* may add to it before the rename. An existing database with its log is replaced.
    """
    draft = beside(files.db, ".new")
    with files.opened() as folder:
        for suffix in ("-journal", "-wal", "-shm"):
            folder.unlink(beside(draft, suffix).name)
        os.close(folder.create(draft.name))  # private to this user; SQLite gives its logs the same mode
    connection = connect(f"{draft.as_uri()}?mode=rw")
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
    with files.opened() as folder:
        # Remove the old logs first: SQLite would replay them into the new database.
        for old in (files.wal, files.shm, files.rollback):
            folder.unlink(old.name)
        folder.replace(draft.name, files.db.name)
        folder.sync()
