"""Write lines of many threads to one of the process's standard streams."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import TextIO

from ...util.terminal import is_terminal

Write = Callable[[str, str], object]  # "stdout" or "stderr", and whole lines that are safe for a terminal


class StreamWriter:
    """Writes text to a stream: to a terminal what it can show, elsewhere the original bytes.

    It never raises. After a write error it is gone. The caller holds a lock.
    """

    def __init__(self, stream: TextIO | None, name: str, write: Write | None = None) -> None:
        self._stream = stream
        self._name = name
        self.is_gone = stream is None
        self.error: str | None = None  # why it is gone; None also if only its reader left
        self.unfinished: tuple[str, str] | None = None  # owner of the unfinished line: item and stream
        self.is_terminal = is_terminal(stream)
        self._write = write if self.is_terminal else None

    def write(self, stream: str, text: str) -> None:
        """Write *text*, which is whole lines for a terminal."""
        if self.is_gone or self._stream is None:
            return
        if self._write is not None:
            self._write(stream, text)
            return
        try:
            write_bytes(self._stream, self._encoded(self._stream, text))
        except (OSError, ValueError) as error:
            self._on_write_error(self._stream, error)

    def _encoded(self, stream: TextIO, text: str) -> bytes:
        if self.is_terminal:
            return text.encode(stream.encoding or "utf-8", "replace")
        return text.encode("utf-8", "surrogateescape")

    def _on_write_error(self, stream: TextIO, error: OSError | ValueError) -> None:
        self.is_gone = True
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ECONNRESET):
            # What Python flushes there at exit must not fail.
            _redirect_to_devnull(stream)
        else:
            reason = error.strerror if isinstance(error, OSError) else "it is closed"
            self.error = f"{self._name} cannot be written: {reason}; the output is in the logs of the run"


def build_writers(
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    *,
    all_to_stderr: bool = False,
    write: Write | None = None,
) -> dict[str, StreamWriter]:
    """Return the writers of ``"stdout"`` and ``"stderr"``: one for both if they are the same terminal, pipe or file."""
    out, err = stdout or sys.stdout, stderr or sys.stderr
    errors = StreamWriter(err, "standard error", write)
    if all_to_stderr or _are_the_same(out, err):
        return {"stdout": errors, "stderr": errors}
    return {"stdout": StreamWriter(out, "standard output", write), "stderr": errors}


def write_bytes(stream: TextIO, data: bytes) -> None:
    """Write all of *data* immediately. Raises the errors of a closed, full or broken stream."""
    stream.flush()  # earlier prints come first
    try:
        file = stream.fileno()
    except (OSError, ValueError, AttributeError):
        _write_object(stream, data)
        return
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(file, left) :]
        except BlockingIOError:
            _wait_for(file)


def _write_object(stream: TextIO, data: bytes) -> None:
    """Write to a stream that is not a file."""
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(data.decode("utf-8", "replace"))
    else:
        buffer.write(data)
    stream.flush()


def _wait_for(file: int) -> None:
    """Wait until a stream that another process made non-blocking can be written."""
    import select

    select.select([], [file], [])


def _are_the_same(one: TextIO | None, other: TextIO | None) -> bool:
    try:
        return one is not None and other is not None and os.path.samestat(*(os.fstat(s.fileno()) for s in (one, other)))
    except (OSError, ValueError, AttributeError):
        return False


def _redirect_to_devnull(stream: TextIO) -> None:
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, stream.fileno())
        finally:
            os.close(nothing)
    except (OSError, ValueError, AttributeError):
        pass  # not a file
