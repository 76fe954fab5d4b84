"""A file that lines are appended to while a run is on. What goes wrong with it is said once and never ends the run."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

from ...util.private_folder import PrivateFolder

log = logging.getLogger("agentos")


class AppendOnlyFile:
    """Appends to *path*, each line in one write, from any thread. The file and its folder are made at the first line.

    A line that cannot be written is dropped; the first time that is logged, and *what* is what the log calls the file.
    The rest of a line that a crash or a full disk tore is closed by a newline, so that it costs no other line. A file
    in *folder* is one of agentos' own, and opened through it; any other was named by the user, and links lead on.
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
        """Append *line*, which has no newline; False if it was dropped."""
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
        """Whether the path still leads to the file that was written, or nothing was written yet."""
        with self._lock:
            try:
                return self._file is None or os.path.samestat(os.fstat(self._file), os.stat(self.path))
            except OSError:
                return False

    def close(self) -> None:
        """Say how many lines are missing, if any are."""
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
            # A pipe is not to be opened for reading: its reader would never hear that it ended, nor we that he is gone.
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
    """Whether *path* is a file, or may become one: no pipe, no terminal, no device."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
