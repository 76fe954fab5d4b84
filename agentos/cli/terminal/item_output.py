"""Print the output of items to stdout and stderr: line by line, in groups, or in the order of the items."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from ...util.sanitize import apply_carriage_returns, make_printable, shorten
from .spill_buffer import SpillBuffer, SpillBuffers
from .stream_writer import StreamWriter, Write, build_writers

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_ID = 40
_LONGEST_ERROR = 200


def build_screen(
    *,
    tag: bool = True,
    group: bool = False,
    keep_order: bool = False,
    quiet: bool = False,
    json: bool = False,
    write: Write | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> LineScreen | None:
    """Return the screen for these flags, or None to show nothing.

    With *json* everything goes to standard error. Text for a terminal goes through *write*, if given, because a live
    display may own the terminal. *stdout* and *stderr* default to the process's own streams.
    """
    if quiet:
        return None
    sinks = build_writers(stdout, stderr, all_to_stderr=json, write=write)
    if keep_order:
        return OrderedScreen(sinks, tag=tag)
    return GroupScreen(sinks, tag=tag) if group else LineScreen(sinks, tag=tag)


class LineScreen:
    """Prints each line at once, in one write, prefixed with its item's id in brackets. Empty lines stay empty.

    A piece of an over-long line is a line of its own on a terminal. In a pipe the pieces follow each other, unless a
    line of another item comes between: then the line is broken there.
    """

    def __init__(self, sinks: dict[str, StreamWriter], *, tag: bool = True) -> None:
        self._sinks = sinks
        self._tag = tag
        self._lock = threading.Lock()

    @property
    def stdout_is_gone(self) -> bool:
        """Return whether standard output is closed (``| head``) or cannot be written."""
        return self._sinks["stdout"].is_gone

    def list_errors(self) -> list[str]:
        """Return the errors that prevented output, other than a reader that left: a full disk, for example."""
        return list(dict.fromkeys(sink.error for sink in self._sinks.values() if sink.error))

    def line(self, item_id: str, index: int, stream: str, text: str, whole: bool) -> None:
        with self._lock:
            self._show(item_id, stream, text, whole)

    def attempt_ended(self, item_id: str, index: int, log: Path | None) -> None:
        with self._lock:
            self._end_lines(item_id)

    def item_settled(self, index: int) -> None:
        """Note that the item at *index* prints nothing more: it is done, failed, or was not run."""

    def close(self) -> None:
        """Print what is still held back."""

    def _show(self, item_id: str, stream: str, text: str, whole: bool) -> None:
        sink = self._sinks[stream]
        if sink.is_gone:
            return
        writer = (item_id, stream)
        prefix = f"[{_short(item_id)}] " if self._tag else ""
        if sink.is_terminal:
            text = make_printable(apply_carriage_returns(_readable(text)))
            sink.write(stream, f"{prefix if text else ''}{text}\n")
            return
        goes_on = sink.unfinished == writer
        start = "" if goes_on or sink.unfinished is None else "\n"
        sink.unfinished = None if whole else writer
        sink.write(stream, f"{start}{'' if goes_on or not text else prefix}{text}{chr(10) if whole else ''}")

    def _end_lines(self, item_id: str) -> None:
        """End the open lines of an item that ended or was cut off."""
        for sink in self._sinks.values():
            if sink.unfinished is not None and sink.unfinished[0] == item_id:
                stream = sink.unfinished[1]
                sink.unfinished = None
                sink.write(stream, "\n")


class GroupScreen(LineScreen):
    """Prints the output of an attempt in one piece when it has ended. Until then it is buffered, mostly on disk."""

    def __init__(self, sinks: dict[str, StreamWriter], *, tag: bool = True) -> None:
        super().__init__(sinks, tag=tag)
        self._buffers = SpillBuffers()
        self._waiting: dict[tuple[int, str], SpillBuffer] = {}

    def line(self, item_id: str, index: int, stream: str, text: str, whole: bool) -> None:
        if not self._sinks[stream].is_gone:
            self._buffer(item_id, index).add(_record(stream, text, whole))

    def attempt_ended(self, item_id: str, index: int, log: Path | None) -> None:
        self._release(item_id, index)

    def close(self) -> None:
        for index, item_id in sorted(self._waiting.copy()):
            self._release(item_id, index)
        self._buffers.close()

    def _buffer(self, item_id: str, index: int) -> SpillBuffer:
        buffer = self._waiting.get((index, item_id))
        return buffer or self._waiting.setdefault((index, item_id), self._buffers.new())

    def _release(self, item_id: str, index: int) -> None:
        buffer = self._waiting.pop((index, item_id), None)
        if buffer is None:
            return
        with self._lock:
            for stream, text, whole in _records(buffer):
                self._show(item_id, stream, text, whole)
            if buffer.error:
                self._show(item_id, "stderr", f"... the rest of the output is missing here: {buffer.error}", True)
            self._end_lines(item_id)
        buffer.close()


class OrderedScreen(GroupScreen):
    """Prints the output of each item in one piece, in the order of the input, with all its attempts.

    Call ``item_settled`` for every item, also for one that was not run: the following items wait for it.
    """

    def __init__(self, sinks: dict[str, StreamWriter], *, tag: bool = True) -> None:
        super().__init__(sinks, tag=tag)
        self._next = 0
        self._settled: set[int] = set()
        self._ids: dict[int, str] = {}
        self._turn = threading.Lock()

    def attempt_ended(self, item_id: str, index: int, log: Path | None) -> None:
        buffer = self._waiting.get((index, item_id))  # another attempt may follow
        if buffer is not None:
            buffer.spill()

    def item_settled(self, index: int) -> None:
        with self._turn:
            if index >= self._next:
                self._settled.add(index)
            while self._next in self._settled:
                self._settled.discard(self._next)
                item_id = self._ids.pop(self._next, None)
                if item_id is not None:
                    self._release(item_id, self._next)
                self._next += 1

    def _buffer(self, item_id: str, index: int) -> SpillBuffer:
        self._ids[index] = item_id
        return super()._buffer(item_id, index)


def failure_block(item_id: str, error: str | None, tail: Sequence[str], log: Path | None = None) -> str:
    """Return the report of a failed item whose output was not shown: the error, traceback or last lines, its log."""
    name = _short(item_id)
    reason = next((line for line in (error or "").splitlines() if line.strip()), "no reason given")
    lines = [f"[{name}] failed: {shorten(make_printable(reason), _LONGEST_ERROR)}"]
    lines += [f"[{name}] | {make_printable(apply_carriage_returns(line))}" for line in tail]
    if log is not None:
        lines.append(f"[{name}] all of its output: {make_printable(str(log))}")
    return "".join(f"{line}\n" for line in lines)


def _short(item_id: str) -> str:
    return shorten(make_printable(item_id[: 10 * _LONGEST_ID], tabs=False), _LONGEST_ID)


def _readable(text: str) -> str:
    """Return the text with a replacement mark for each byte that is not UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


_HEAD = struct.Struct("=??I")  # is it stderr, is the line whole, length in bytes


def _record(stream: str, text: str, whole: bool) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return _HEAD.pack(stream == "stderr", whole, len(data)) + data


def _records(buffer: SpillBuffer) -> Iterator[tuple[str, str, bool]]:
    for file in buffer.parts():
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            is_error, whole, length = _HEAD.unpack(head)
            text = file.read(length).decode("utf-8", "surrogateescape")
            yield "stderr" if is_error else "stdout", text, whole
