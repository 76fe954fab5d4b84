"""Capture what items print: redact it, write it to the item's log and the screen, and keep a part."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...util.private_folder import PrivateFolder
from ...util.sanitize import make_printable, shorten
from .attempt_ends import format_end, format_heading
from .item_log import MAX_LOG_SIZE, ItemLog, LogFolder
from .line_buffer import LineBuffer, cut, cut_start, split
from .stream_redaction import StreamRedactor

if TYPE_CHECKING:
    from ..core.records import Attempt

MAX_KEPT = 1 << 16  # bytes at the end of standard output that become the item's value
MAX_HEAD = 1 << 12  # bytes at its beginning that are kept too, if there was more

_TAIL = 20  # lines
_LONGEST_LINE = 500  # characters of a line of the tail
_AT_ONCE = 1 << 16
_LONGEST_VIEWED = 1 << 25

Redactors = Callable[[str | None], StreamRedactor]  # redactor for one stream, by credential name


class OutputView(Protocol):
    """Reads the standard output of an attempt, and says what people are shown of it. The log has all of it."""

    def feed(self, line: str) -> Sequence[str]:
        """Return the lines to show and keep instead of *line*."""
        ...


class OutputScreen(Protocol):
    """Shows what items print. Must be thread-safe."""

    def line(self, item_id: str, index: int, stream: str, text: str, whole: bool) -> None:
        """Show a line without its end. If not *whole*, it is a piece of an over-long one and more follows.

        Bytes that are not UTF-8 are surrogates: ``text.encode("utf-8", "surrogateescape")`` restores them.
        """

    def attempt_ended(self, item_id: str, index: int, log: Path | None) -> None:
        """Handle the end of an attempt. *log* is the path of its output, if it had any."""


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """The part of an attempt's output that is kept."""

    stdout: str  # its end
    stdout_head: str | None  # its beginning; None if ``stdout`` is all of it
    tail: tuple[str, ...]  # last non-blank lines of both streams, safe for a terminal
    error_tail: tuple[str, ...]  # the same of standard error alone
    silent_since: float  # time of the last byte, or of the start, by the clock of ``OutputCapture``
    log: Path | None
    redacted: bool = False  # a secret was removed from standard output

    @property
    def truncated(self) -> bool:
        return self.stdout_head is not None


class OutputCapture:
    """Captures what the items of a run print.

    Each item has its log in *logs*, if that is given. *redactors* are the pool's; without them nothing is redacted.
    """

    def __init__(
        self,
        logs: Path | None,
        redactors: Redactors | None = None,
        screen: OutputScreen | None = None,
        keep: int = MAX_KEPT,
        *,
        longest_log: int = MAX_LOG_SIZE,
        folder: PrivateFolder | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.keep = keep
        self.screen = screen
        self.redactors = redactors
        self.clock = clock
        self._wall = wall
        self._logs = None if logs is None else LogFolder(logs, longest_log, inside=folder)
        self._open: dict[str, ItemOutput] = {}
        self._printed: set[str] = set()  # items whose attempt has ended, and has output in their log

    def open(
        self,
        item_id: str,
        index: int,
        attempt: int,
        credential_name: str | None = None,
        view: OutputView | None = None,
    ) -> ItemOutput:
        """Open the output of one attempt. The caller finishes it."""
        log = None
        if self._logs is not None:
            log = self._logs.open_attempt(item_id, format_heading(attempt, self._wall(), credential_name))
        output = self._open[item_id] = ItemOutput(self, item_id, index, credential_name, log, view)
        return output

    def open_attempt(self, attempt: Attempt, view: OutputView | None = None) -> ItemOutput:
        """Open the output of an attempt of a run."""
        name = None if attempt.grant is None else attempt.grant.key.name
        return self.open(attempt.item.id, attempt.item.index, attempt.number, name, view)

    def last_line(self, item_id: str) -> str | None:
        """Return the last line that a running item printed, safe for a terminal."""
        output = self._open.get(item_id)
        return None if output is None else output.last_line

    def discard(self, output: ItemOutput, *, printed: bool) -> None:
        """Forget a finished output; *printed*: it has something in the item's log."""
        if self._open.get(output.item_id) is output:
            self._open.pop(output.item_id, None)
        if printed:
            self._printed.add(output.item_id)

    def note_end(
        self,
        item_id: str,
        number: int,
        key: str | None,
        kind: str,
        seconds: float,
        error: str | None,
        facts: Mapping[str, Any],
    ) -> bool | None:
        """Note how an attempt ended, for the log of its item; see ``format_end``. Never blocks.

        Returns what to call ``write_ends`` with; None: nothing is to be written now.
        """
        if self._logs is None:
            return None
        printed = item_id in self._printed
        self._printed.discard(item_id)
        if kind == "done" and not printed and number == 1:
            return None  # the journal has it; a log would have nothing else
        heading = format_heading(number, self._wall() - seconds, key)
        end = format_end(number, kind, seconds, error, facts, output=printed)
        self._logs.ends.add(item_id, heading, end, printed=printed)
        if printed or kind == "failed":
            return True
        return False if kind == "done" else None

    def note_killed(self, item_id: str, number: int, at: float, key: str | None) -> None:
        """Note that an attempt of an earlier session began at *at* and did not end."""
        if self._logs is not None:
            end = f"--- attempt {number} interrupted: the run was killed ---"
            self._logs.ends.add(item_id, format_heading(number, at, key), end, printed=None)

    def write_ends(self, item_id: str, *, create: bool) -> None:
        """Write the noted ends of an item to its log; not *create*: only if there is a log."""
        if self._logs is not None:
            self._logs.write_ends(item_id, create=create)


class ItemOutput:
    """The output of one attempt. Thread-safe."""

    def __init__(
        self,
        outputs: OutputCapture,
        item_id: str,
        index: int,
        credential_name: str | None,
        log: ItemLog | None,
        view: OutputView | None = None,
    ) -> None:
        self.item_id = item_id
        self.index = index
        self._outputs = outputs
        self._credential_name = credential_name
        self._log = log
        self._view = None if view is None else _ViewedLines(view)
        self._lock = threading.Lock()
        self._streams: dict[str, _OutputStream] = {}
        self._head = b""
        self._end = bytearray()
        self._printed = 0  # bytes of standard output
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._error_tail: deque[str] = deque(maxlen=_TAIL)
        self._captured: CapturedOutput | None = None
        self.silent_since = outputs.clock()

    @property
    def finished(self) -> bool:
        return self._captured is not None

    @property
    def last_line(self) -> str | None:
        try:
            return self._tail[-1]
        except IndexError:
            return None

    def write(self, stream: str, data: bytes) -> None:
        """Process data of ``"stdout"`` or ``"stderr"``. Does nothing after finish()."""
        with self._lock:
            if self._captured is not None or not data:
                return
            self.silent_since = self._outputs.clock()
            known = self._streams.get(stream) or self._new_stream(stream)
            # In parts, so that memory use is bounded by the size of the data, not a multiple of it.
            for start in range(0, len(data), _AT_ONCE):
                self._take(known, data[start : start + _AT_ONCE])

    def finish(self) -> CapturedOutput:
        """Process the data held back, and close the log."""
        with self._lock:
            if self._captured is None:
                self._captured = self._finish()
            return self._captured

    def _finish(self) -> CapturedOutput:
        for stream in self._streams.values():
            if stream.redactor is not None:
                self._pass_on(stream, stream.lines.feed(stream.redactor.flush()))
            self._pass_on(stream, stream.lines.flush(), at_end=True)
        path = None
        if self._log is not None:
            self._log.close()
            path = self._log.path if self._log.has_begun else None
        outputs = self._outputs
        outputs.discard(self, printed=path is not None)
        if outputs.screen is not None:
            outputs.screen.attempt_ended(self.item_id, self.index, path)
        end, head = bytes(self._end[-outputs.keep :]), None
        if self._printed > outputs.keep:
            end, head = cut_start(end), cut(self._head, MAX_HEAD).decode("utf-8", "replace")
        stdout = self._streams.get("stdout")
        return CapturedOutput(
            end.decode("utf-8", "replace"),
            head,
            tuple(self._tail),
            tuple(self._error_tail),
            self.silent_since,
            path,
            stdout is not None and stdout.redactor is not None and stdout.redactor.has_redacted,
        )

    def _new_stream(self, name: str) -> _OutputStream:
        redactors = self._outputs.redactors
        redactor = None if redactors is None else redactors(self._credential_name)
        stream = self._streams[name] = _OutputStream(name, redactor)
        return stream

    def _take(self, stream: _OutputStream, data: bytes) -> None:
        text = data if stream.redactor is None else stream.redactor.feed(data)
        self._pass_on(stream, stream.lines.feed(text))

    def _pass_on(self, stream: _OutputStream, text: bytes, *, at_end: bool = False) -> None:
        """Write *text*, which consists of whole lines, to log, screen and kept part."""
        if not text:
            return
        if stream.redactor is not None:
            text = stream.redactor.redact_without_colors(text)
        if self._log is not None:
            self._log.write(text)
        if self._view is not None and stream.name == "stdout":
            text = self._view.render(text, at_end=at_end)
        self._keep(stream, text)
        screen = self._outputs.screen
        if screen is not None:
            for piece, whole in split(text, at_end=at_end):
                screen.line(self.item_id, self.index, stream.name, piece.decode("utf-8", "surrogateescape"), whole)

    def _keep(self, stream: _OutputStream, text: bytes) -> None:
        if stream.name == "stdout":
            if len(self._head) <= MAX_HEAD:
                self._head += text[: MAX_HEAD + 1 - len(self._head)]  # one byte more, by which it is cut
            self._printed += len(text)
            self._end += text
            if len(self._end) > 2 * self._outputs.keep:  # not at each line: that would move all of it each time
                del self._end[: -self._outputs.keep]
        for line in stream.last_lines(text):
            self._tail.append(line)
            if stream.name == "stderr":
                self._error_tail.append(line)


class _OutputStream:
    """The state of one of the two streams."""

    __slots__ = ("_within", "lines", "name", "redactor")

    def __init__(self, name: str, redactor: StreamRedactor | None) -> None:
        self.name = name
        self.redactor = redactor
        self.lines = LineBuffer()
        self._within = False  # the last line has not ended

    def last_lines(self, text: bytes) -> list[str]:
        """Return the last non-blank lines that begin in *text*."""
        if self._within:
            _, end, text = text.partition(b"\n")
            if not end:
                return []
        self._within = bool(text) and not text.endswith(b"\n")
        # Twice as many as wanted, because some may be blank; the text before those is not a line.
        lines = text.rsplit(b"\n", 2 * _TAIL)[-2 * _TAIL :]
        shown = [_shown(line) for line in lines if line]
        return [line for line in shown if line.strip()][-_TAIL:]


class _ViewedLines:
    """Passes whole lines to a view, and returns its own as text. A line that is too long is left out."""

    def __init__(self, view: OutputView) -> None:
        self._view = view
        self._begun: list[bytes] = []  # pieces of a line that goes on
        self._size = 0

    def render(self, text: bytes, *, at_end: bool) -> bytes:
        shown: list[str] = []
        for piece, whole in split(text, at_end=at_end):
            self._size += len(piece)
            if self._size <= _LONGEST_VIEWED:
                self._begun.append(piece)
            if whole:
                if self._size <= _LONGEST_VIEWED:
                    shown += self._view.feed(b"".join(self._begun).decode("utf-8", "replace"))
                self._begun.clear()
                self._size = 0
        return "".join(f"{line}\n" for line in shown).encode("utf-8", "replace")


def _shown(line: bytes) -> str:
    # What a terminal would show in the end: each lone carriage return restarts the line.
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    # A character has at most four bytes; twice that, because there may be colours.
    return shorten(make_printable(line[: 8 * _LONGEST_LINE].decode("utf-8", "replace")), _LONGEST_LINE)
