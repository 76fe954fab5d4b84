"""Rebuild a damaged journal from its intact beginning, with the user's consent. The damaged files are kept."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from agentos.util.sqlite.migrations import Migration, newest_version

from ...util.private_folder import PrivateFolder
from .database import create, open_untouched
from .entry_text import COLUMNS, encode_row, join_rows
from .hash_chain import compute_link
from .head_file import CommitPosition
from .journal_files import JournalFiles, beside, locate_files
from .reader import stored_columns
from .verify import JournalContents


def salvage(files: JournalFiles, contents: JournalContents, migrations: Sequence[Migration]) -> JournalContents:
    """Create a new database from the intact beginning of a damaged one; its last entry notes what was lost.

    The old database, log and head are first copied beside it, as a (damaged) journal of their own. The database is
    rebuilt rather than repaired, because deleting from a broken tree is not reliable in SQLite.
    """
    kept = _keep_copy(files)
    note = json.dumps({"accepted_loss": contents.damage, "missing": contents.missing, "kept": kept.db.name})
    row = encode_row(time.time(), "note", detail=note)
    columns = json.loads(row)
    seq, chain = contents.position
    position = CommitPosition(seq + 1, compute_link(chain, seq + 1, join_rows([row])))

    def fill(connection: sqlite3.Connection) -> None:
        if seq:
            _copy_entries(kept, connection, seq)
        connection.execute(_insert(COLUMNS[: len(columns)]), (position.seq, *columns, position.chain))
        if contents.session:
            connection.executemany(
                "insert into meta(key, value) values (?, ?)",
                [("session", str(contents.session)), ("worker", contents.worker)],
            )

    create(files, migrations, fill)
    return replace(
        contents, version=newest_version(migrations), position=position, last_kind="note", damage=None, missing=None
    )


def _copy_entries(source: JournalFiles, target: sqlite3.Connection, seq: int) -> None:
    connection = open_untouched(source)
    try:
        columns = stored_columns(connection)
        entries = connection.execute(f"select seq, {', '.join(columns)}, chain from entries order by seq")  # noqa: S608
        # Counted instead of selected by number: reading further could hit the damage.
        target.executemany(_insert(columns), islice(entries, seq))
    finally:
        connection.close()


def _insert(columns: Sequence[str]) -> str:
    names = ("seq", *columns, "chain")
    return f"insert into entries({', '.join(names)}) values ({', '.join('?' * len(names))})"  # noqa: S608 (constants)


def _keep_copy(files: JournalFiles) -> JournalFiles:
    with files.opened() as folder:
        kept = next(
            replace(locate_files(path), folder=files.folder)
            for n in count(1)
            if folder.find((path := beside(files.db, f".damaged-{n}")).name) is None
        )
        for source, target in ((files.wal, kept.wal), (files.head, kept.head), (files.db, kept.db)):
            if folder.find(source.name) is not None:
                _copy(folder, source, target)
        if folder.find(kept.db.name) is None:
            os.close(folder.create(kept.db.name))  # the name is reserved even if the database was gone
    return kept


def _copy(folder: PrivateFolder, source: Path, target: Path) -> None:
    with (
        open(folder.open(source.name, os.O_RDONLY), "rb") as old,
        open(folder.create(target.name), "wb") as new,
    ):
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
