"""Where a journal lives: the database, and the small files that stand beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DATABASE_NAME = "journal.sqlite"


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """The files of one journal. ``checkpoints`` is a folder that whoever needs it creates."""

    db: Path
    head: Path
    lock: Path
    checkpoints: Path

    @property
    def wal(self) -> Path:
        """SQLite's write-ahead log: it holds the newest entries while the journal is open, and after a crash."""
        return beside(self.db, "-wal")

    @property
    def shm(self) -> Path:
        """SQLite's index of that log. Never open it: closing it would drop every lock SQLite has on the database."""
        return beside(self.db, "-shm")


def files_of(journal: str | os.PathLike[str]) -> JournalFiles:
    """Find the files of *journal*: a run folder (it exists as one, or its name has no suffix) or a database file.

    Links are followed, so that two names of one journal have one lock, and the log is looked for where SQLite puts it.
    """
    path = Path(os.path.realpath(journal))
    if path.is_dir() or (not path.suffix and not path.exists()):
        db = Path(os.path.realpath(path / DATABASE_NAME))
        return _beside(db, checkpoints=path / "checkpoints")
    return _beside(path, checkpoints=beside(path, ".checkpoints"))


def beside(path: Path, suffix: str) -> Path:
    """The file next to *path* whose name is longer by *suffix*."""
    return path.with_name(path.name + suffix)


def _beside(db: Path, *, checkpoints: Path) -> JournalFiles:
    return JournalFiles(db=db, head=beside(db, ".head"), lock=beside(db, ".lock"), checkpoints=checkpoints)
