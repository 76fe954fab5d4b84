"""Output that has to wait: in memory as long as all of it together is small, else on disk."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from typing import BinaryIO

_IN_MEMORY = 16 << 20  # bytes, of all spools together
_WORTH_A_WRITE = 1 << 12  # bytes


class SpillBuffers:
    """The spools of a screen, and the temporary folder they may use. No file stays open."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._room = in_memory
        self._lock = threading.Lock()
        self._folder: str | None = None
        self._made = 0

    def new(self) -> SpillBuffer:
        return SpillBuffer(self)

    def close(self) -> None:
        """Remove the folder. The spools are used no more."""
        import shutil

        with self._lock:
            folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def are_full(self) -> bool:
        """Whether there is more in memory than there should be."""
        return self._room < 0

    def count(self, size: int) -> None:
        """So many bytes more are in memory; below 0: less."""
        with self._lock:
            self._room -= size

    def new_path(self) -> str:
        """Where a spool may keep what is too much for the memory."""
        import tempfile

        with self._lock:
            if self._folder is None:
                self._folder = tempfile.mkdtemp(prefix="agentos-output-")
            self._made += 1
            return os.path.join(self._folder, str(self._made))


class SpillBuffer:
    """Pieces of bytes in the order they came, until they are read."""

    def __init__(self, spools: SpillBuffers) -> None:
        self._spools = spools
        self._lock = threading.Lock()
        self._memory = bytearray()
        self._path: str | None = None
        self.error: str | None = None  # why it does not have all

    def add(self, data: bytes) -> None:
        """Keep *data*. If the disk does not take it, nothing that follows is kept either."""
        with self._lock:
            if self.error is not None:
                return
            self._memory += data
            self._spools.count(len(data))
            if self._spools.are_full and len(self._memory) >= _WORTH_A_WRITE:
                self._to_disk()

    def spill(self) -> None:
        """It may be long until it is read: leave the memory to others, if there is not enough."""
        with self._lock:
            if self._memory and self._spools.are_full:
                self._to_disk()

    def parts(self) -> Iterator[BinaryIO]:
        """All there is; no piece lies in two parts."""
        if self._path is not None:
            try:
                with open(self._path, "rb") as file:
                    yield file
            except OSError as error:
                self.error = _reason(error)
        yield io.BytesIO(self._memory)

    def close(self) -> None:
        with self._lock:
            self._forget_memory()
            if self._path is not None:
                try:
                    os.unlink(self._path)
                except OSError:
                    pass  # the folder goes in the end

    def _to_disk(self) -> None:
        try:
            if self._path is None:
                self._path = self._spools.new_path()
            _append(self._path, bytes(self._memory))
        except OSError as error:
            self.error = _reason(error)
        self._forget_memory()

    def _forget_memory(self) -> None:
        self._spools.count(-len(self._memory))
        self._memory.clear()


def _append(path: str, data: bytes) -> None:
    """All of *data*, or nothing."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(file).st_size
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            os.ftruncate(file, size)
            raise
    finally:
        os.close(file)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
