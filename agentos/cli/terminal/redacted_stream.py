"""Redact secrets in what user code prints to stdout and stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from ...runs.output.line_buffer import LineBuffer, split
from ...util.sanitize import apply_carriage_returns, make_printable
from ...util.terminal import is_terminal
from .stream_writer import write_bytes

if TYPE_CHECKING:
    from ...runs.output.capture import Redactors


class RedactedStream:
    """Passes output that belongs to no item to *real* in whole lines, redacted and safe for a terminal.

    Lines for a terminal go through *write*, if given, because a live display may own the terminal. A forked child
    starts over: with its own locks, on the bare descriptor, and without its parent's buffered text.
    """

    def __init__(
        self, real: TextIO | None, redactors: Redactors | None, write: Callable[[str], object] | None = None
    ) -> None:
        self.real = real
        self._redactors = redactors
        self._write = write
        self._begin()
        if self._redactor is not None:
            # Load the secrets now: a child forked while another thread loads them would wait forever.
            self._redactor.flush()
        _streams.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a signal handler may print during a print
        self._redactor = None if self._redactors is None else self._redactors(None)
        self._lines = LineBuffer()
        self._is_terminal = is_terminal(self.real)

    def write_text(self, text: str) -> None:
        if self.real is not None:
            self.write_bytes(text.encode(self._encoding, "backslashreplace"))

    def write_bytes(self, data: bytes) -> None:
        with self._lock:
            if self._redactor is not None:
                data = self._redactor.feed(data)
            self._pass_on(self._lines.feed(data))

    def flush(self) -> None:
        """Pass on an unfinished line, except what may begin a secret. A terminal gets whole lines only."""
        if not self._is_terminal:
            with self._lock:
                self._pass_on(self._lines.flush())

    def finish(self) -> None:
        """Pass on everything that is still held back."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            rest = b"" if self._redactor is None else self._redactor.flush()
            self._pass_on(self._lines.feed(rest) + self._lines.flush())

    def begin_in_child(self) -> None:
        """Reset in a forked process: the holder of a lock does not exist there."""
        self.real = _open_unbuffered(self.real)
        self._write = None
        self._begin()
        _finish_when_it_ends(self)

    @property
    def _encoding(self) -> str:
        return getattr(self.real, "encoding", None) or "utf-8"

    def _pass_on(self, data: bytes) -> None:
        if self.real is None or not data:
            return
        if not self._is_terminal:
            write_bytes(self.real, data)
            return
        text = self._sanitize(data)
        if self._write is not None:
            self._write(text)
        else:
            write_bytes(self.real, text.encode(self._encoding, "replace"))

    def _sanitize(self, data: bytes) -> str:
        if self._redactor is not None:
            data = self._redactor.redact_without_colors(data)
        lines = [line.decode(self._encoding, "replace") for line, _ in split(data, at_end=True)]
        return "".join(f"{make_printable(apply_carriage_returns(line))}\n" for line in lines)


_streams: weakref.WeakSet[RedactedStream] = weakref.WeakSet()


def _begin_in_child() -> None:
    for stream in list(_streams):
        stream.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def _open_unbuffered(stream: TextIO | None) -> TextIO | None:
    """Return the same descriptor unbuffered: the buffer of *stream* may be locked, or hold the parent's text."""
    if stream is None:
        return None
    try:
        file = io.FileIO(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError, AttributeError):
        return stream  # not a file
    return io.TextIOWrapper(file, encoding=stream.encoding, errors=stream.errors, write_through=True)


def _finish_when_it_ends(stream: RedactedStream) -> None:
    """Register ``finish`` with ``multiprocessing``, whose processes end by ``os._exit`` after their finalizers."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(stream, lambda stream: util.Finalize(None, stream.finish, exitpriority=0))
