"""Paths of a journal: the database and the small files beside it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from ...util.private_folder import PrivateFolder, folder_of

DATABASE_NAME = "journal.sqlite"


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """The files of one journal. ``checkpoints`` is a folder that is created when needed.

    ``folder`` is their folder, if the caller has it open: then they are reached through it.
    """

    db: Path
    head: Path
    lock: Path
    checkpoints: Path
    folder: PrivateFolder | None = field(default=None, compare=False)

    @property
    def wal(self) -> Path:
        """SQLite's write-ahead log: it has the newest entries while the journal is open, and after a crash."""
        return beside(self.db, "-wal")

    @property
    def shm(self) -> Path:
        """SQLite's index of that log. Never open it: closing it would drop SQLite's locks on the database."""
        return beside(self.db, "-shm")

    @property
    def rollback(self) -> Path:
        """SQLite's rollback log. A journal of agentos never has one."""
        return beside(self.db, "-journal")

    def opened(self) -> AbstractContextManager[PrivateFolder]:
        """Return the folder of these files, open."""
        return folder_of(self.db, self.folder)

    def size(self, path: Path) -> int | None:
        """Return the length of one of these files, links not followed; None if it does not exist."""
        try:
            with self.opened() as folder:
                found = folder.find(path.name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if found is None else found.st_size


def locate_files(journal: str | os.PathLike[str]) -> JournalFiles:
    """Find the files of *journal*: a run folder (it exists as one, or its name has no suffix) or a database file.

    Links to folders are followed, so that two names of one journal have one lock. A link in place of the database
    itself is not followed; opening it raises.
    """
    path = Path(os.path.abspath(journal))
    if path.is_dir() or (not path.suffix and not os.path.lexists(path)):
        path = Path(os.path.realpath(path))
        held = journal if isinstance(journal, PrivateFolder) else None
        return _beside(path / DATABASE_NAME, checkpoints=path / "checkpoints", folder=held)
    path = Path(os.path.realpath(path.parent)) / path.name
    return _beside(path, checkpoints=beside(path, ".checkpoints"))


def beside(path: Path, suffix: str) -> Path:
    """Return the path next to *path* with *suffix* appended to its name."""
    return path.with_name(path.name + suffix)


def _beside(db: Path, *, checkpoints: Path, folder: PrivateFolder | None = None) -> JournalFiles:
    return JournalFiles(db, beside(db, ".head"), beside(db, ".lock"), checkpoints, folder)
