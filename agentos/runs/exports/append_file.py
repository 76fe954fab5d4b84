"""A file that lines are appended to during a run. A write error is logged once and never ends the run."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

from ...util.private_folder import PrivateFolder

log = logging.getLogger("agentos")


class AppendOnlyFile:
    """Appends to *path*, each line in one write, from any thread. File and folder are created at the first line.

    A line that cannot be written is dropped; the first time that is logged, with *what* as the file's description. A
    line torn by a crash or a full disk is ended by a newline, so that it damages no other line. A file in *folder*
    belongs to agentos and is opened through it; any other path comes from the user, and links are followed.
    """

    def __init__(
        self, path: Path, *, what: str, header: str | None = None, folder: PrivateFolder | None = None
    ) -> None:
        self.path = path
        self._folder = folder
        self._what = what
        self._header = header
        self._lock = threading.Lock()
        self._file: int | None = None
        self._torn = False
        self._closed = False
        self.dropped = 0

    def add(self, line: str) -> bool:
        """Append *line*, which has no newline; return False if it was dropped."""
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        with self._lock:
            try:
                if self._closed:
                    raise ValueError("it is closed")  # noqa: TRY301 - one place where drops are counted
                if self._file is None:
                    self._file = self._open()
                self._write(self._file, data)
            except (OSError, ValueError) as error:
                self.dropped += 1
                if self.dropped == 1:
                    log.warning(
                        "%s %s cannot be written (%s); the run goes on without it", self._what, self.path, error
                    )
                return False
        return True

    def is_same_file(self) -> bool:
        """Return whether the path still leads to the file that was written, or nothing was written yet."""
        with self._lock:
            try:
                return self._file is None or os.path.samestat(os.fstat(self._file), os.stat(self.path))
            except OSError:
                return False

    def close(self) -> None:
        """Close the file, and log how many lines are missing, if any."""
        with self._lock:
            self._closed = True
            file, self._file = self._file, None
            if file is not None:
                os.close(file)
            if self.dropped > 1:
                log.warning("%s %s lacks %d lines", self._what, self.path, self.dropped)

    def _open(self) -> int:
        if self._folder is not None:
            ordinary, file = True, self._folder.open(self.path.name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            ordinary = is_ordinary(self.path)
            # Never open a pipe for reading: its reader would see no end of file, and we would not notice that it has
            # closed.
            mode = os.O_RDWR | os.O_CREAT if ordinary else os.O_WRONLY
            file = os.open(self.path, mode | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            length = os.fstat(file).st_size if ordinary else 0
            if length:
                self._torn = os.pread(file, 1, length - 1) != b"\n"
            elif self._header is not None:
                self._write(file, f"{self._header}\n".encode())
        except BaseException:
            os.close(file)
            raise
        return file

    def _write(self, file: int, data: bytes) -> None:
        if self._torn:
            data = b"\n" + data
        written = os.write(file, data)
        while written < len(data):
            self._torn = True
            data = data[written:]
            written = os.write(file, data)
        self._torn = False


def is_ordinary(path: Path) -> bool:
    """Return whether *path* is a regular file or does not exist: not a pipe, terminal or device."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
