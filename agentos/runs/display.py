"""A ready-made display for ``on_progress=``: a live region on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TextIO

try:
    from rich.console import Console, Group, RenderableType
    from rich.errors import LiveError
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "agentos.runs.display needs rich: pip install 'agentos-parallel[display]'", name=error.name
    ) from error

from .progress import Progress, summary
from .results import ProgressStats

_LONGEST_ID = 40
_LONGEST_ERROR = 200
_PLAIN_LINE_EVERY = 30.0
_PLAIN_STEPS = 10
_REFRESHES_PER_SECOND = 4

# A terminal's control sequences, whole: without its first character the rest of one would be left as text.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, moves
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, the clipboard
    r"|\x1b.?"
)

# What a closed, full or broken stream raises; SystemExit is what rich makes of a broken pipe.
_STREAM_IS_GONE = (OSError, ValueError, SystemExit)


class RichProgress:
    """Shows one run at a time: ``ParallelCoordinator(..., on_progress=RichProgress())``.

    On a terminal: a bar, the counts, what is running, the last *failures* failures. Elsewhere: a line at the start,
    every tenth of the way or 30 seconds, and at the end. It writes to standard error unless given a *console*; when
    that cannot be written to any more, it falls silent.
    """

    def __init__(self, console: Console | None = None, *, failures: int = 5) -> None:
        if isinstance(failures, bool) or not isinstance(failures, int) or failures < 0:
            raise ValueError("failures must be how many of the last failures to show, 0 or more")
        self._console = _StandardError() if console is None else console
        self._most_failures = failures
        self._live: _QuietLive | None = None
        self._on = False
        self._is_gone = False
        self._forget()

    def __call__(self, event: Progress) -> None:
        """Show what happened."""
        if event.kind == "run_started":
            self._end()
            self._forget()
        self._note(event)
        if event.kind == "run_finished":
            self._end()
            self._print(*self._closing_lines(event.stats))
            return
        if not self._on:
            self._begin()
        if self._live is None:
            self._print(*self._plain_lines(event))

    # -- what is known ----------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._stats = ProgressStats(total=None)
        self._running: tuple[str, ...] = ()
        self._failures: tuple[tuple[str, str], ...] = ()
        self._notice = ""
        self._said_tenths = 0
        self._said_at = 0.0

    def _note(self, event: Progress) -> None:
        # Each a whole new value: the thread that draws may look at any moment.
        self._stats = event.stats
        if event.running:
            self._running = event.running
        if event.kind == "item_finished":
            self._running = tuple(each for each in self._running if each != event.item_id)
            result = event.result
            if result is not None and not result.success and self._most_failures:
                failure = (self._clean(result.item_id, _LONGEST_ID), self._clean(_first_line(result.error)))
                self._failures = (*self._failures, failure)[-self._most_failures :]
        elif event.kind in ("stopping", "held"):
            self._notice = self._clean(event.message)
        elif event.kind == "going_on":
            self._notice = ""

    def _clean(self, text: str, longest: int = _LONGEST_ERROR) -> str:
        """What a terminal can be trusted with: no control characters, nothing it cannot encode, not too long."""
        text = _shortened(_printable(text[: 10 * longest]), longest)
        encoding = self._console.encoding
        return text.encode(encoding, "backslashreplace").decode(encoding)

    # -- on a terminal ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._on = True
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            live = _QuietLive(self._draw, self._console)
            self._live = live if live.begin() else None

    def _end(self) -> None:
        self._on = False
        if self._live is not None:
            self._live.end()
            self._live = None

    def _draw(self) -> RenderableType:
        return Group(*self._rows())

    def _rows(self) -> Iterator[RenderableType]:
        stats = self._stats
        bar = ProgressBar(stats.total, stats.completed, pulse=stats.total is None)
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(ratio=1)
        for _ in range(3):
            row.add_column(no_wrap=True)
        row.add_row(bar, Text(_how_far(stats), "bold"), Text(_hours(stats.elapsed)), Text(_time_left(stats)))
        yield row
        yield _line(*_counts(stats))
        if self._running:
            ids = ", ".join(self._clean(each, _LONGEST_ID) for each in self._running)
            yield _line(("running  ", "cyan"), (_shortened(ids, self._console.width - 9), ""))
        for item_id, why in self._failures:
            said = _shortened(f"{item_id}: {why}", self._console.width - 9)
            yield _line(("failed   ", "red"), (said, ""))
        if self._notice:
            yield Text(self._notice, "bold yellow")

    # -- elsewhere --------------------------------------------------------------------------------------------

    def _plain_lines(self, event: Progress) -> Iterator[Text]:
        stats = event.stats
        if event.kind == "run_started":
            yield Text(self._clean(event.message) or "Starting")
        elif event.kind in ("stopping", "held", "going_on") and event.message:
            yield Text(self._clean(event.message))
        tenths = stats.completed * _PLAIN_STEPS // stats.total if stats.total else 0
        if tenths > self._said_tenths or stats.elapsed - self._said_at >= _PLAIN_LINE_EVERY:
            self._said_tenths, self._said_at = tenths, stats.elapsed
            counts = "".join(text for text, _ in _counts(stats))
            yield Text(f"{_how_far(stats)}: {counts}, {_hours(stats.elapsed)}, {_time_left(stats)}")

    def _closing_lines(self, stats: ProgressStats) -> Iterator[Text]:
        if self._console.is_terminal:
            for item_id, why in self._failures:
                yield Text.assemble(("failed   ", "red"), f"{item_id}: {why}")
        yield Text(self._clean(summary(stats)), "bold" if stats.success_count == stats.total else "bold yellow")

    def _print(self, *lines: Text) -> None:
        try:
            for line in lines:
                if not self._is_gone:
                    self._console.print(line, soft_wrap=True, highlight=False)
        except _STREAM_IS_GONE:
            self._is_gone = True


class _QuietLive(Live):
    """A live region that never raises, neither here nor on the thread that draws it."""

    def __init__(self, draw: Callable[[], RenderableType], console: Console) -> None:
        super().__init__(
            console=console,
            get_renderable=draw,
            transient=True,
            refresh_per_second=_REFRESHES_PER_SECOND,
            # What is printed to the same terminal goes above the region. What is printed to a file stays there.
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        self._is_gone = False

    def begin(self) -> bool:
        """False: another live region has this console."""
        try:
            self.start(refresh=True)
        except LiveError:
            return False
        except _STREAM_IS_GONE:
            self.end()
        return True

    def refresh(self) -> None:
        if self._is_gone:
            return
        try:
            super().refresh()
        except _STREAM_IS_GONE:
            self._is_gone = True

    def end(self) -> None:
        try:
            self.stop()
        except _STREAM_IS_GONE:
            self._is_gone = True


class _StandardError(Console):
    """Standard error. When its reader is gone it says just that, where rich would end the program."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False  # closed


def _printable(text: str) -> str:
    text = _ESCAPES.sub("", text)
    return "".join(" " if each.isspace() else each for each in text if each.isspace() or _is_harmless(each))


def _is_harmless(character: str) -> bool:
    # C: controls, invisible marks that turn the direction of the text, halves of characters.
    return unicodedata.category(character)[0] != "C"


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: max(0, longest - 3)] + "..."


def _first_line(text: str | None) -> str:
    return next((line for line in (text or "").splitlines() if line.strip()), "")


def _line(*parts: tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="crop")


def _how_far(stats: ProgressStats) -> str:
    if stats.total is None:
        return str(stats.completed)
    return f"{stats.completed}/{stats.total} ({stats.completion_rate:.1f}%)"


def _counts(stats: ProgressStats) -> Iterator[tuple[str, str]]:
    yield f"done {stats.success_count}", "green"
    yield f", failed {stats.failed}", "red" if stats.failed else ""
    for name in ("retried", "limited", "cached"):
        count = getattr(stats, name)
        if count:
            yield f", {name} {count}", ""


def _hours(seconds: float) -> str:
    return str(timedelta(seconds=max(0, int(seconds))))


def _time_left(stats: ProgressStats) -> str:
    """At the pace so far; what came from an earlier run took no time."""
    paced = stats.completed - stats.cached
    if stats.unfinished is None or paced <= 0:
        return "time left not known"
    return f"about {_hours(stats.elapsed / paced * stats.unfinished)} left"
