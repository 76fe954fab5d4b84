"""Buffers for output that has to wait: in memory while the total is small, else on disk."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from typing import BinaryIO

_IN_MEMORY = 16 << 20  # bytes, of all buffers together
_WORTH_A_WRITE = 1 << 12  # bytes


class SpillBuffers:
    """The buffers of a screen, and their temporary folder. No file stays open."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._room = in_memory
        self._lock = threading.Lock()
        self._folder: str | None = None
        self._made = 0

    def new(self) -> SpillBuffer:
        return SpillBuffer(self)

    def close(self) -> None:
        """Remove the folder. The buffers must not be used afterwards."""
        import shutil

        with self._lock:
            folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def are_full(self) -> bool:
        """Return whether more is in memory than allowed."""
        return self._room < 0

    def count(self, size: int) -> None:
        """Count *size* more bytes in memory; negative: fewer."""
        with self._lock:
            self._room -= size

    def new_path(self) -> str:
        """Return a path for a buffer's data on disk."""
        import tempfile

        with self._lock:
            if self._folder is None:
                self._folder = tempfile.mkdtemp(prefix="agentos-output-")
            self._made += 1
            return os.path.join(self._folder, str(self._made))


class SpillBuffer:
    """Pieces of bytes in order, until they are read."""

    def __init__(self, buffers: SpillBuffers) -> None:
        self._buffers = buffers
        self._lock = threading.Lock()
        self._memory = bytearray()
        self._path: str | None = None
        self.error: str | None = None  # why data is missing

    def add(self, data: bytes) -> None:
        """Append *data*. After a disk error nothing more is kept."""
        with self._lock:
            if self.error is not None:
                return
            self._memory += data
            self._buffers.count(len(data))
            if self._buffers.are_full and len(self._memory) >= _WORTH_A_WRITE:
                self._to_disk()

    def spill(self) -> None:
        """Move the data to disk if memory is short, because it may be read much later."""
        with self._lock:
            if self._memory and self._buffers.are_full:
                self._to_disk()

    def parts(self) -> Iterator[BinaryIO]:
        """Yield all data; no piece is split between two parts."""
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
                    pass  # the folder is removed at the end

    def _to_disk(self) -> None:
        try:
            if self._path is None:
                self._path = self._buffers.new_path()
            _append(self._path, bytes(self._memory))
        except OSError as error:
            self.error = _reason(error)
        self._forget_memory()

    def _forget_memory(self) -> None:
        self._buffers.count(-len(self._memory))
        self._memory.clear()


def _append(path: str, data: bytes) -> None:
    """Append all of *data*, or nothing."""
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
