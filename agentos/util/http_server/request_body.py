"""The body of one request: in memory while it is small, in an unlinked file when it is large or memory is short."""

from __future__ import annotations

import tempfile
from typing import IO

_PIECE = 256 * 1024


class BodyMemory:
    """The memory that all bodies of one server share. A body that finds none left goes to a file."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class RequestBody:
    """The bytes of a body. Above *spool_above* bytes, or when *memory* is used up, they are kept in a file.

    The file has no name and is readable by this process only. :meth:`close` returns the memory or removes the file.
    """

    __slots__ = ("_file", "_memory", "_pieces", "_spool_above", "size")

    def __init__(self, spool_above: int | None = None, memory: BodyMemory | None = None) -> None:
        self._spool_above = spool_above
        self._memory = memory
        self._pieces = bytearray()
        self._file: IO[bytes] | None = None
        self.size = 0

    @property
    def is_spooled(self) -> bool:
        """Return True if the bytes are in a file."""
        return self._file is not None

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Append *piece*. Raises OSError if the file cannot be written."""
        self.size += len(piece)
        if self._file is not None:
            self._file.write(piece)
            return
        memory = self._memory
        if (self._spool_above is not None and self.size > self._spool_above) or (
            memory is not None and memory.used + len(piece) > memory.limit
        ):
            self._file = tempfile.TemporaryFile(prefix="agentos-body-")  # noqa: SIM115 - closed by close()
            self._file.write(self._pieces)
            self._file.write(piece)
            self._return_memory()
            self._pieces = bytearray()
            return
        self._pieces += piece
        if memory is not None:
            memory.used += len(piece)

    def read(self) -> bytes:
        """Return all bytes."""
        return self.start(self.size)

    def start(self, most: int) -> bytes:
        """Return the first *most* bytes."""
        if self._file is None:
            return bytes(self._pieces[:most])
        self._file.seek(0)
        return self._file.read(most)

    def end(self, most: int) -> bytes:
        """Return the last *most* bytes."""
        if self._file is None:
            return bytes(self._pieces[-most:])
        self._file.seek(max(0, self.size - most))
        return self._file.read()

    def piece_at(self, position: int) -> bytes:
        """Return the next bytes from *position* on, some hundred kilobytes at most; empty at the end."""
        if self._file is None:
            return bytes(self._pieces[position : position + _PIECE])
        self._file.seek(position)
        return self._file.read(_PIECE)

    def close(self) -> None:
        """Free the memory or the file. Idempotent."""
        self._return_memory()
        self._pieces = bytearray()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _return_memory(self) -> None:
        if self._memory is not None:
            self._memory.used -= len(self._pieces)
