"""What the journal's tests share: a listener that can be waited for, and ways to write, copy and fingerprint one."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Event
from typing import Any

from agentos.errors import JournalUnavailable
from agentos.runs.journal import Journal, JournalWriter, encode_row, locate_files

WORKER = "tests.work:answer"
PATIENCE = 20.0


class Listener:
    """Hears everything a writer tells, in order, and lets a test wait until it has heard enough."""

    def __init__(self) -> None:
        self.receipts: list[Any] = []
        self.commits: list[list[Any]] = []
        self.troubles: list[str | None] = []
        self.lost: list[JournalUnavailable] = []
        self._changed = Condition()

    def committed(self, receipts: list[Any]) -> None:
        with self._changed:
            self.receipts += receipts
            self.commits.append(receipts)
            self._changed.notify_all()

    def troubled(self, text: str | None) -> None:
        with self._changed:
            self.troubles.append(text)
            self._changed.notify_all()

    def was_lost(self, error: JournalUnavailable) -> None:
        with self._changed:
            self.lost.append(error)
            self._changed.notify_all()

    def wait(self, condition: Callable[[Listener], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), PATIENCE), "it was not told in time"

    def listen(self, journal: Journal, *, nap: float = 0.002) -> JournalWriter:
        return journal.writer(on_committed=self.committed, on_trouble=self.troubled, on_lost=self.was_lost, nap=nap)


def opened(path: Path, **options: Any) -> Journal:
    return Journal.open(path, worker=WORKER, **options)


def done(n: int, value: str = '"yes"') -> str:
    content = json.dumps({"n": n}) if n % 2 else None  # entries with and without the columns of format 2
    return encode_row(1_790_000_000.25 + n, "done", f"item-{n}", n, 1, "key-a", 0.5, "f" * 16, value, content=content)


def write(path: Path, numbers: range, *, start: bool = False) -> None:
    """One session that records these items as done, each in a commit of its own, and ends cleanly."""
    journal = opened(path)
    for n in numbers:
        begun = [encode_row(1.0, "start", f"item-{n}", n, 1)] if start else []
        journal._store.append([*begun, done(n)])  # a writer might take the two apart, if one of them came late
    assert journal.close(PATIENCE)


def fingerprints(path: Path) -> dict[str, str]:
    """The contents of db, log and head. Only for a journal nobody in this process has open."""
    files = locate_files(path)
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (files.db, files.wal, files.head)
        if file.exists()
    }


def copy_of(journal: Path, folder: Path) -> Path:
    """The database, log and head of a run folder, in a new one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in journal.iterdir():
        if not file.name.endswith(("-shm", ".lock")):
            shutil.copyfile(file, folder / file.name)
    return folder


def flip_bit(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << (bit % 8)
    file.write_bytes(content)


def child(mode: str, path: Path) -> subprocess.Popen[str]:
    """A real process that does what `tests.runs.journal.journal_child` says of *mode*."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runs.journal.journal_child", mode, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


class Faulty:
    """Makes connections whose appends go wrong: ``before`` and ``after`` are called around each."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = _nothing
        self.after: Callable[[], None] = _nothing
        self.on_open: Callable[[sqlite3.Connection], None] = lambda connection: None
        self.connections: list[sqlite3.Connection] = []

    @contextmanager
    def held_in_commit(self, writer: JournalWriter) -> Iterator[None]:
        """Whatever is put meanwhile comes into one commit, the next: the writer is at one, of an item 0, until then."""
        begun, go, before = Event(), Event(), self.before

        def wait_in_commit() -> None:
            self.before = before
            begun.set()
            assert go.wait(PATIENCE)

        self.before = wait_in_commit
        writer.put(done(0), 0, urgent=True)
        assert begun.wait(PATIENCE)
        yield
        go.set()

    def connect(self, uri: str) -> sqlite3.Connection:
        faulty = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                append = sql.startswith("insert into entries") and not self.in_transaction
                if append:
                    faulty.before()
                cursor = super().execute(sql, *parameters)
                if append:
                    faulty.after()
                return cursor

        connection = sqlite3.connect(
            uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False, factory=Connection
        )
        self.connections.append(connection)
        self.on_open(connection)
        return connection


def failing_once(code: int) -> Callable[[], None]:
    """Raise that error of SQLite the first time, and nothing later."""
    errors = [sqlite3.OperationalError("disk I/O error")]
    errors[0].sqlite_errorcode = code

    def fail() -> None:
        if errors:
            raise errors.pop()

    return fail


def _nothing() -> None:
    pass
