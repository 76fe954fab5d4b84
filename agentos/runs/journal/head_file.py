"""The head file: number and chain value of the newest commit, kept outside the database.

SQLite silently drops the end of a damaged write-ahead log, and what is left looks complete. The head is written after
each commit, without a sync, and records how far the journal had come. It is never ahead of what is durable, because its
commit was synced first; it may be one commit behind.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from ...util.private_folder import PrivateFolder, folder_of
from .hash_chain import ORIGIN


class CommitPosition(NamedTuple):
    """The newest entry of a journal and the chain value there."""

    seq: int
    chain: str


# Before the first commit.
START: Final = CommitPosition(0, ORIGIN)


def read_head(path: Path, folder: PrivateFolder | None = None) -> CommitPosition | None:
    """Return the recorded position; None if the head file is missing or torn, which is not damage of the journal.

    Raises UnsafePath if it is not an ordinary file.
    """
    try:
        with folder_of(path, folder) as opened:
            file = opened.open(path.name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        line = os.read(file, 2 * _LENGTH)
    finally:
        os.close(file)
    try:
        seq, chain, _ = line.decode("ascii").split(" ")
        head = CommitPosition(int(seq), chain.rstrip("."))
    except ValueError:
        return None
    return head if _line(head) == line else None


class HeadFile:
    """The head file of an open journal. Only one thread may use it."""

    def __init__(self, path: Path, folder: PrivateFolder | None = None) -> None:
        with folder_of(path, folder) as opened:
            self._file = opened.open(path.name, os.O_RDWR | os.O_CREAT)

    def write(self, position: CommitPosition) -> None:
        """Record that the journal is durable up to *position*."""
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, _line(position))

    def sync(self) -> None:
        """Make the newest line durable, and truncate what an older, longer file may have behind it."""
        os.ftruncate(self._file, _LENGTH)
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def _line(position: CommitPosition) -> bytes:
    """Return the line of *position*. All lines have the same length, so that overwriting leaves no remains."""
    words = f"{position.seq:020d} {position.chain:.<32}"
    return f"{words} {blake2b(words.encode('ascii'), digest_size=4).hexdigest()}\n".encode("ascii")


_LENGTH = len(_line(START))
