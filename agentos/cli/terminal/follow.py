"""Read a file that may still grow: its last lines, and what is appended later."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from ...util.private_folder import folder_of

_BLOCK: Final = 64 * 1024
_LONGEST_LINE: Final = 64 * 1024


class GrowingFile:
    """Passes the bytes of *path* to *write*, from its last *lines* lines on, or all of it. It may not exist yet.

    Memory is bounded by a block, whatever the length of the file or of a line. Raises UnsafePath if it is not an
    ordinary file.
    """

    def __init__(self, path: Path, write: Callable[[bytes], object], *, lines: int | None = None) -> None:
        self._path = path
        self._write = write
        self._lines = lines
        self._file: BinaryIO | None = None

    def write_new(self) -> bool:
        """Write what was appended since the last call; return False if nothing was."""
        if self._file is None:
            try:
                with folder_of(self._path) as folder:
                    self._file = open(folder.open(self._path.name, os.O_RDONLY), "rb")  # noqa: SIM115 - see close
            except FileNotFoundError:
                return False
            if self._lines is not None:
                self._file.seek(_start_of_last(self._file, self._lines))
        wrote = False
        while block := self._file.read(_BLOCK):
            self._write(block)
            wrote = True
        return wrote

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class SanitizedLines:
    """Passes lines on as text that is safe for a terminal. A very long line is split."""

    def __init__(self, write: Callable[[str], object], printable: Callable[[str], str]) -> None:
        self._write = write
        self._printable = printable
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._write(self._shown(line) + "\n")
        if len(self._rest) > _LONGEST_LINE:
            self._write(self._shown(self._rest))
            self._rest = b""

    def flush(self) -> None:
        """Write a last line that has no end yet."""
        if self._rest:
            self._write(self._shown(self._rest) + "\n")
            self._rest = b""

    def _shown(self, line: bytes) -> str:
        return self._printable(line.decode("utf-8", "replace").removesuffix("\r"))


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Return the offset where the last *lines* lines begin."""
    position = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return position
    wanted = lines
    first = True
    while position > 0:
        length = min(_BLOCK, position)
        position -= length
        file.seek(position)
        block = file.read(length)
        end = len(block)
        if first and block.endswith(b"\n"):
            end -= 1  # it ends the last line
        first = False
        while (end := block.rfind(b"\n", 0, end)) >= 0:
            wanted -= 1
            if wanted == 0:
                return position + end + 1
    return 0
