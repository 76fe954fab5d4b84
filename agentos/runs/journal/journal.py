"""Open a journal: lock it, verify it without changing it, and only then begin to write."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentos.errors import JournalDamaged, JournalInUse, JournalMismatch, JournalUnavailable
from agentos.util.sqlite.connect import Connect, connect
from agentos.util.sqlite.errors import is_busy, transient_reason
from agentos.util.sqlite.migrations import Migration, migrate, newest_version
from agentos.version import __version__

from ...util.private_folder import make_folders
from .commit_log import CommitLog
from .database import check_files, create, open_to_write, require_sqlite
from .entry_text import StateRow, encode_row
from .head_file import HeadFile
from .host_name import HOST
from .journal_files import JournalFiles, locate_files
from .known_items import KnownItems
from .owner_lock import OwnerLock
from .salvage import salvage
from .schema import MIGRATIONS
from .verify import JournalContents, read_contents
from .writer import JournalWriter


class Journal:
    """One run's journal, locked and open. Create it with `Journal.open`.

    ``known``, ``last_token``, ``plan`` and ``entries`` describe its content when it was opened; ``session`` is the
    number of this opening, counted from 1.
    """

    def __init__(self, store: CommitLog, contents: JournalContents) -> None:
        self.files: JournalFiles = store.files
        self.session: int = store.session
        self.known: KnownItems = contents.known
        self.last_token: int = contents.last_token
        self.plan: str | None = contents.plan
        self.entries: int = contents.position.seq
        self._store = store
        self._writer: JournalWriter | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        worker: str,
        run: str | None = None,
        total: int | None = None,
        accept_loss: bool = False,
        accept_worker: bool = False,
        migrations: Sequence[Migration] = MIGRATIONS,
        connect: Connect = connect,
    ) -> Journal:
        """Open the journal at *path* for the work known as *worker*, creating it and its folder if needed.

        *run* is the name that other processes are shown while it is in use. Raises JournalInUse, NotAJournal,
        JournalTooNew, JournalDamaged, JournalMismatch or JournalUnavailable, and then nothing has been changed. With
        *accept_loss* a damaged journal is rebuilt from its intact beginning, and the damaged files are kept beside it.
        With *accept_worker* it may belong to another worker, and belongs to this one from now on.
        """
        files = locate_files(path)
        require_sqlite(files.db)
        with _Opening(files) as opening:
            make_folders(files.db.parent)
            check_files(files, to_write=True)
            name = run or files.db.parent.name
            owner = OwnerLock(files.lock, journal=files.db, run=name, folder=files.folder)
            opening.on_failure(owner.release)
            expected = None if accept_worker else worker
            contents = _check(files, expected, migrations, accept_loss=accept_loss)
            if contents.version < newest_version(migrations):
                _bring_up_to_date(files, migrations)
            head = HeadFile(files.head, files.folder)
            # Exists before the first commit, so that a crash right after it leaves no journal without a head.
            head.write(contents.position)
            head.sync()
            session = contents.session + 1
            store = CommitLog(
                files, owner=owner, head=head, position=contents.position, session=session, connect=connect
            )
            opening.on_failure(store.close)
            store.begin_session(worker, [_session_row(session, worker, total)])
        return cls(store, contents)

    def writer(
        self,
        *,
        on_committed: Callable[[list[Any]], None],
        on_trouble: Callable[[str | None], None],
        on_lost: Callable[[JournalUnavailable], None],
        nap: float = 0.002,
    ) -> JournalWriter:
        """Start the only writer of this journal; from now on, closing the writer closes the journal."""
        if self._writer is not None:
            raise ValueError("this journal has a writer already")
        self._writer = JournalWriter(
            self._store, on_committed=on_committed, on_trouble=on_trouble, on_lost=on_lost, nap=nap
        )
        return self._writer

    def fetch(self, seqs: Sequence[int]) -> list[StateRow]:
        """Return the entries with these numbers, in this order. Thread-safe."""
        return self._store.reader.fetch(seqs)

    def ids_at(self, seqs: Sequence[int]) -> dict[int, str | None]:
        """Return the item ids of the entries with these numbers. Thread-safe."""
        return self._store.reader.ids_at(seqs)

    def read_kinds(self, kinds: Sequence[str]) -> list[tuple[str, str, str | None]]:
        """Return item, kind and detail of all entries of these kinds that have an item, in order. Thread-safe."""
        return self._store.reader.read_kinds(kinds)

    def close(self, timeout: float | None = None) -> bool:
        """Close the journal, through its writer if it has one: see `JournalWriter.close`."""
        # Start a writer only to close it: it writes the entry of a clean end.
        writer = self._writer or self.writer(on_committed=_ignore, on_trouble=_ignore, on_lost=_ignore)
        return writer.close(timeout)


def _check(
    files: JournalFiles, worker: str | None, migrations: Sequence[Migration], *, accept_loss: bool
) -> JournalContents:
    """Read and verify everything; create a new journal, rebuild a damaged one, or raise."""
    contents = read_contents(files, migrations)
    if contents is None:
        create(files, migrations)
        return JournalContents(version=newest_version(migrations))
    if worker is not None and contents.worker not in (None, worker):
        raise JournalMismatch(path=str(files.db), what="worker", recorded=str(contents.worker), given=worker)
    if contents.damage is not None:
        if not accept_loss:
            raise JournalDamaged(path=str(files.db), detail=contents.damage, missing=contents.missing)
        contents = salvage(files, contents, migrations)
    return contents


def _bring_up_to_date(files: JournalFiles, migrations: Sequence[Migration]) -> None:
    connection = open_to_write(files)
    try:
        migrate(connection, migrations)
    finally:
        connection.close()


def _session_row(session: int, worker: str, total: int | None) -> str:
    card = {
        "session": session,
        "worker": worker,
        "agentos": __version__,
        "pid": os.getpid(),
        "host": HOST,
        "total": total,
    }
    return encode_row(time.time(), "session", detail=json.dumps(card))


class _Opening:
    """Undo the last registered step if a later one fails, and translate disk and SQLite errors."""

    def __init__(self, files: JournalFiles) -> None:
        self._db: Path = files.db
        self._undo: Callable[[], None] | None = None

    def on_failure(self, undo: Callable[[], None]) -> None:
        """Call *undo* on failure, instead of what was registered before."""
        self._undo = undo

    def __enter__(self) -> _Opening:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        if self._undo is not None:
            self._undo()
        if is_busy(error):
            raise JournalInUse(path=str(self._db), owner="another program, which has locked the database") from None
        if isinstance(error, (OSError, sqlite3.Error)):
            raise JournalUnavailable(path=str(self._db), detail=transient_reason(error) or str(error)) from None


def _ignore(_: object) -> None:
    pass
