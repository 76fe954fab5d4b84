"""Redraw the last rows of a terminal repeatedly while other lines scroll above them."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, TextIO, cast

from ...util.terminal import is_terminal
from ..execution.signal_watcher import WATCH

log = logging.getLogger("agentos")

Drawn = Sequence[tuple[str, int]]  # rows with their colours, and the width of each

_DRAW_EVERY = 0.25
_GATHER = 0.04  # seconds to gather lines before they are written, so at most 25 writes per second
_LONGEST_GONE = 2 * _DRAW_EVERY  # the longest time without the region while other writers keep writing
_MOST_GATHERED = 1 << 16  # characters; beyond it, write_above writes them itself
_PATIENCE = 1.0  # seconds to wait for a blocked terminal at the end

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ERASE_BELOW, _ERASE_LINE = "\x1b[J", "\x1b[K"

# What a closed, full or broken stream raises.
_STREAM_IS_GONE = (OSError, ValueError)


class TerminalRegion:
    """Tracks which rows are on the terminal, and returns what replaces them. Writes nothing itself.

    The cursor stays at the start of the last row: what the terminal echoes there (``^C``) is overwritten, and no row is
    broken by it.
    """

    def __init__(self) -> None:
        self._drawn: Drawn = ()

    def redraw(self, rows: Drawn | None, columns: int, above: str = "") -> str:
        """Return the text that puts *above* over the region and *rows* into it; None: the previous rows."""
        home = self._home(columns)
        if rows is not None:
            fewer = len(rows) < len(self._drawn)
            self._drawn = tuple(rows)
        else:
            fewer = False
        lines = [f"{_ERASE_LINE}{text}" for text, _ in self._drawn]
        # Rows are overwritten without clearing first, to avoid flicker. Text above may have tabs, which erase nothing.
        clear = _ERASE_BELOW if above or fewer or not lines else ""
        return f"{home}{clear}{above}" + "\r\n".join(lines) + ("\r" if lines else "")

    def _home(self, columns: int) -> str:
        # A terminal that was made narrower has wrapped our long rows.
        up = sum(max(1, -(-wide // max(1, columns))) for _, wide in self._drawn[:-1])
        return "\r" + (f"\x1b[{up}A" if up else "")


class LiveRegion:
    """Keeps a region on *stream* from ``start`` to ``end``, with a daemon thread. Never raises.

    *draw* returns the rows, four times a second; *columns* returns the width of the terminal. Text for ``write_above``
    is gathered for some milliseconds to keep the cost low.
    """

    def __init__(
        self,
        stream: TextIO,
        draw: Callable[[], Drawn],
        columns: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._draw = draw
        self._columns = columns
        self._clock = clock
        self._region = TerminalRegion()
        self._lock = threading.Lock()
        self._gathered: list[str] = []
        self._size = 0
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._draw_at = 0.0
        self._drawn_at = 0.0
        self._others_until = 0.0  # until then other writers may write
        self._thread: threading.Thread | None = None
        self._is_gone = False
        self._is_stopped = False  # SIGTSTP has stopped the process or is about to

    def start(self) -> None:
        """Show the region."""
        with self._lock:
            self._write(_HIDE_CURSOR)
        self.draw()
        atexit.register(self.end)  # always restore the cursor
        WATCH.job_control.add(self)
        self._thread = threading.Thread(target=self._resume, name="agentos-display", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None  # no thread available: it is drawn on each write

    def end(self) -> None:
        """Remove the region; text above it stays."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._wake.set()
        atexit.unregister(self.end)
        WATCH.job_control.remove(self)
        if not self._lock.acquire(timeout=_PATIENCE):
            return  # the terminal is blocked in the middle of a line
        try:
            self._write(self._region.redraw((), self._columns(), self._take()) + _SHOW_CURSOR)
        finally:
            self._lock.release()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)

    def before_stop(self) -> None:
        """Remove the region before the process is stopped and the shell gets the terminal."""
        if self._lock.acquire(timeout=_PATIENCE):  # else the terminal is blocked
            try:
                if not self._ended.is_set():
                    self._write(self._region.redraw((), self._columns(), self._take()) + _SHOW_CURSOR)
                self._is_stopped = True
            finally:
                self._lock.release()

    def after_continue(self) -> None:
        """Show the region again."""
        with self._lock:
            if self._is_stopped and not self._ended.is_set():
                self._write(_HIDE_CURSOR)
            self._is_stopped = False
        self.draw_soon()

    def write_above(self, text: str) -> bool:
        """Queue *text*, whole lines, to be written above the region; return False if the region has ended."""
        with self._lock:
            if self._ended.is_set():
                return False
            self._gathered.append(text)
            self._size += len(text)
            if self._size > _MOST_GATHERED and not self._is_stopped:
                self._write(self._region.redraw(None, self._columns(), self._take()))
        if not self._wake.is_set():
            self._wake.set()
        return True

    def clear_for_output(self) -> str:
        """Return the sequence that another writer must write before its own output, within some milliseconds.

        The region comes back by itself.
        """
        with self._lock:
            if self._ended.is_set():
                return ""
            way = self._region.redraw((), self._columns(), self._take())
            self._others_until = min(self._clock() + _GATHER, self._drawn_at + _LONGEST_GONE)
        self.draw_soon()
        return way

    def draw_soon(self) -> None:
        """Draw as soon as possible."""
        self._draw_at = 0.0
        self._wake.set()

    def draw(self) -> None:
        """Write the gathered text and, if it is due, draw."""
        rows: Drawn | None = None
        now = self._clock()
        if now >= self._draw_at:
            self._draw_at = now + _DRAW_EVERY
            rows = self._rows()
        with self._lock:
            if self._is_stopped:
                return
            if self._clock() < self._others_until:
                self.draw_soon()  # after the other writers
            elif not self._ended.is_set() and (rows is not None or self._gathered):
                self._drawn_at = now
                self._write(self._region.redraw(rows, self._columns(), self._take()))

    def _resume(self) -> None:
        while not self._ended.is_set():
            if self._wake.wait(max(0.0, self._draw_at - self._clock())):
                self._wake.clear()
                self._ended.wait(_GATHER)
            self.draw()

    def _rows(self) -> Drawn | None:
        try:
            return self._draw()
        except Exception as error:  # noqa: BLE001 - a picture that cannot be drawn must not end the lines above it
            log.debug("the display could not be drawn: %r", error)
            return None

    def _take(self) -> str:
        text = "".join(self._gathered)
        self._gathered.clear()
        self._size = 0
        return text

    def _write(self, text: str) -> None:
        if self._is_gone:
            return
        try:
            write_text(self._stream, text)
        except BlockingIOError:
            pass  # a child made the terminal non-blocking, and it is slow; the next frame may succeed
        except _STREAM_IS_GONE:
            self._is_gone = True


class Redirect:
    """While active, what the program prints to a terminal appears above the region. Output to files is not changed."""

    def __init__(self, above: Callable[[str], bool]) -> None:
        self._above = above
        self._replaced: list[tuple[str, TextIO, _RedirectedStream]] = []

    def start(self) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if is_terminal(stream):
                passing = _RedirectedStream(stream, self._above)
                setattr(sys, name, passing)
                self._replaced.append((name, stream, passing))

    def end(self) -> None:
        for name, stream, passing in self._replaced:
            passing.finish()
            if getattr(sys, name) is passing:  # else other code has replaced it meanwhile
                setattr(sys, name, stream)
        self._replaced.clear()


class _RedirectedStream:
    """A stream that passes whole lines on. Lines of different threads are not mixed."""

    def __init__(self, stream: TextIO, above: Callable[[str], bool]) -> None:
        self._stream = stream
        self._above = above
        self._begun: dict[int, str] = {}  # unfinished lines, by thread

    def write(self, text: str) -> int:
        me = threading.get_ident()
        lines, newline, rest = text.rpartition("\n")
        if newline:
            lines = self._begun.pop(me, "") + lines + newline
            if not self._above(lines):
                self._stream.write(lines)
        if rest:
            self._begun[me] = self._begun.get(me, "") + rest
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        pass  # whole lines are on their way; a partial line would tear the region

    def finish(self) -> None:
        for text in list(self._begun.values()):
            self._above(text + "\n")
        self._begun.clear()

    @property
    def rich_proxied_file(self) -> TextIO:
        """Return the original stream; rich's consoles look it up by this name."""
        return self._stream

    def __getattr__(self, name: str) -> object:
        return cast(object, getattr(self._stream, name))


def write_text(stream: IO[str], text: str) -> None:
    """Write *text* and flush; characters that *stream* cannot encode are escaped."""
    try:
        stream.write(text)
    except UnicodeEncodeError as error:
        stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
    stream.flush()
