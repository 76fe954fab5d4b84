"""A ready-made display for ``on_progress=``: a live region on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

try:
    from rich.console import Console, ConsoleRenderable, RenderHook
    from rich.segment import ControlType, Segment, Segments
    from rich.style import Style
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "agentos.runs.display.rich_display needs rich: pip install rich", name=error.name
    ) from error

from ...util.sanitize import apply_carriage_returns
from ...util.terminal import is_terminal
from ...util.text_width import display_width
from ..progress import Progress
from .eta import Eta, Forecasting
from .event_state import EventState
from .key_table import ASCII_GLYPHS, UNICODE_GLYPHS, Row
from .layout import DisplayState, RunningItem, render
from .live_region import Drawn, LiveRegion, Redirect, write_text
from .phrases import format_closing
from .plain_lines import PlainProgress
from .speed import SpeedMeter, WorkerCounts

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState

log = logging.getLogger("agentos")

T = TypeVar("T")

_STREAM_IS_GONE = (OSError, ValueError)
_PATIENCE = 1.0
_MAX_LINES = 20  # items whose last line is requested; more are never shown


class RichProgress:
    """Shows one run at a time: ``ParallelCoordinator(..., on_progress=RichProgress())``.

    On a terminal: a bar, the counts, the estimated end, running items, the last *failures* failures; elsewhere the
    lines of ``PlainProgress``. It writes to standard error unless given a *console*, with plain lines if standard
    output is a pipe or a file, and becomes silent when it cannot write. What is printed to the same terminal meanwhile
    appears above the region, unless *redirect* is off.

    Optional sources: *name* of the run; *keys*, such as ``pool.snapshot``, called four times a second; *parallel*, how
    many items run at once at most, and *waiting*, how many workers wait for a key, which tell what bounds the speed;
    *forecast*, the seconds for so many more items (``PoolForecast``); *running*, the ids of running items with their
    start (epoch seconds), the oldest first, which is more complete than events; *last_line*, the last line that an item
    printed.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        failures: int = 5,
        name: str = "",
        keys: Callable[[], Sequence[CredentialState]] | None = None,
        parallel: int | None = None,
        waiting: Callable[[], int] | None = None,
        forecast: Forecasting | None = None,
        running: Callable[[], Iterable[tuple[str, float]]] | None = None,
        last_line: Callable[[str], str | None] | None = None,
        redirect: bool = True,
    ) -> None:
        if isinstance(failures, bool) or not isinstance(failures, int) or failures < 0:
            raise ValueError("failures must be how many of the last failures to show, 0 or more")
        self._is_piped = console is None and not is_terminal(sys.stdout)  # `| less` and `| tee` share the terminal
        self._console = Console(stderr=True) if console is None else console
        self._keys = keys
        self._parallel = parallel
        self._waiting = waiting
        self._forecast = forecast
        self._now_running = running
        self._last_line = last_line
        self._redirect = redirect
        self._events = EventState(most_failures=failures, encoding=self._console.encoding)
        self._name = self._events.clean_id(name)
        self._eta = Eta(forecast)
        self._speed = SpeedMeter()
        self._glyphs = UNICODE_GLYPHS if self._console.encoding.lower().startswith("utf") else ASCII_GLYPHS
        self._styler = _Styler(self._console)
        self._lock = threading.Lock()
        self._closed = False
        self._live: _LiveDisplay | None = None
        self._plain = PlainProgress(
            cast(TextIO, _ConsoleFile(self._console)),
            name=name,
            keys=keys,
            parallel=parallel,
            waiting=waiting,
            running=running,
            forecast=forecast,
            failures=failures,
        )

    @classmethod
    def on(cls, stream: TextIO, environ: Mapping[str, str], *, colour: bool, **options: Any) -> RichProgress:
        """Create a display on *stream*, a terminal described by *environ*; *options* as for the class."""
        # Ask the terminal for its size: the shell's variables do not change when it is resized.
        environ = {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")}
        return cls(Console(file=stream, force_terminal=True, no_color=not colour, _environ=environ), **options)

    def __call__(self, event: Progress) -> None:
        """Show *event*."""
        if self._is_piped or not self._console.is_terminal or self._console.is_dumb_terminal:
            self._plain(event)
            return
        with self._lock:
            if event.kind == "run_started":
                self._end()
                self._begin()
            if not self._closed:
                self._show(event)

    def _begin(self) -> None:
        self._closed = False
        self._events.reset()
        self._eta = Eta(self._forecast)
        self._speed = SpeedMeter()

    def _show(self, event: Progress) -> None:
        self._events.update(event, time.time())
        if event.kind == "run_finished":
            self._end()
            self._print(*self._build_closing(event))
            return
        if self._live is None:
            self._live = _LiveDisplay(self._console, self._draw, redirect=self._redirect)
            self._live.start()
        if event.kind in ("stopping", "held", "going_on", "unreachable", "reachable"):
            self._live.region.draw_soon()

    def _end(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.end()

    def write_above(self, stream: str, text: str) -> None:
        """Print whole lines of ``"stdout"`` or ``"stderr"`` above the region, or directly if there is no region.

        *text* goes to the terminal unchanged: sanitise it first. It is written within some milliseconds. A missing
        newline at its end is added, because the region cannot start in the middle of a line.
        """
        if not text.endswith("\n"):
            text += "\n"
        live = self._live
        if live is not None and live.region.write_above(text):
            return
        target = sys.stdout if stream == "stdout" else self._console.file
        try:
            write_text(target, text)
        except _STREAM_IS_GONE:
            pass

    def close(self) -> None:
        """Remove the region, if any; show nothing until another run starts."""
        self._closed = True
        self._plain.close()
        mine = self._lock.acquire(timeout=_PATIENCE)  # fails if a blocked terminal holds up an event
        try:
            self._end()
        finally:
            if mine:
                self._lock.release()

    # -- the picture ------------------------------------------------------------------------------------------

    def _draw(self) -> Drawn:
        width, height = self._console.size
        return self._styler.render(self._rows(width, height))

    def _rows(self, width: int, height: int) -> list[Row]:
        return render(self._build_state(), width, height, clean=self._events.clean, glyphs=self._glyphs)

    def _build_state(self) -> DisplayState:
        seen, now = self._events, time.time()
        stats = seen.stats
        keys: Sequence[CredentialState] = _call_or_default(self._keys, ())
        running = self._running()
        workers = WorkerCounts(self._parallel, len(running), _call_or_default(self._waiting, 0))
        if not seen.notice:  # else the run is paused or stops
            self._speed.observe(stats, keys, workers, now)
        return DisplayState(
            stats=stats,
            now=now,
            name=self._name,
            seconds_left=self._eta.seconds_left(stats, now, keys),
            speed=() if seen.notice else self._speed.describe(stats, now),
            keys=keys,
            running=running,
            failures=seen.failures,
            notice=seen.notice,
            stopping=seen.stopping,
        )

    def _running(self) -> list[RunningItem]:
        clean_id, clean = self._events.clean_id, self._events.clean
        seen: Iterable[tuple[str, float]] = self._events.running.items()
        running = list(_call_or_default(self._now_running, seen))
        last_lines: list[str | None] = []
        if self._last_line is not None:
            last_lines = [
                _call_or_default(partial(self._last_line, item_id), None) for item_id, _ in running[:_MAX_LINES]
            ]
        return [
            RunningItem(clean_id(item_id), since, clean(apply_carriage_returns(line or "")))
            for (item_id, since), line in zip_longest(running, last_lines)
        ]

    def _build_closing(self, event: Progress) -> Iterable[Row]:
        for failure in self._events.failures:
            yield [("failed   ", "red"), (f"{failure.item_id}: {failure.why}", "")]
        first, *others = map(self._events.clean_whole, format_closing(event.stats, self._name))
        yield [(first, "bold" if event.stats.success_count == event.stats.total else "bold yellow")]
        yield from ([(line, "")] for line in others)

    def _print(self, *rows: Row) -> None:
        text = "".join(f"{line}\n" for line, _ in self._styler.render(rows))
        try:
            write_text(self._console.file, text)
        except _STREAM_IS_GONE:
            pass


def _call_or_default(question: Callable[[], T] | None, otherwise: T) -> T:
    """Return the answer of *question*, or *otherwise* if it is None or fails, so that the rest is still drawn."""
    if question is None:
        return otherwise
    try:
        return question()
    except Exception as error:  # noqa: BLE001 - it is the user's, and the next picture is due in a moment
        log.debug("a value for the display could not be read: %r", error)
        return otherwise


class _Styler:
    """Turns rows into text with the colours that a console supports."""

    def __init__(self, console: Console) -> None:
        # A separate console: the user's has render hooks and belongs to the threads that print.
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system=cast("None", console.color_system),
            no_color=console.no_color,
            legacy_windows=False,
            _environ={},
        )

    def render(self, rows: Iterable[Row]) -> Drawn:
        """Return the rows as text, each with its width."""
        rows = list(rows)
        with self._console.capture() as captured:
            self._console.print(Segments(segments(rows)), end="", soft_wrap=True)
        lines = captured.get().split("\n")
        return [(line, sum(display_width(text) for text, _ in row)) for line, row in zip(lines, rows, strict=False)]


def segments(rows: Iterable[Row]) -> list[Segment]:
    """Return the rows as rich segments: styled pieces, and a line end after each row."""
    end = Segment("\n")
    pieces = ([*(Segment(text, Style.parse(style)) for text, style in row), end] for row in rows)
    return list(chain.from_iterable(pieces))


class _LiveDisplay(RenderHook):
    """A region on a console; other output to the console appears above it."""

    def __init__(self, console: Console, draw: Callable[[], Drawn], *, redirect: bool) -> None:
        self._console = console
        self.region = LiveRegion(cast(TextIO, _ConsoleFile(console)), draw, lambda: console.width)
        # Output to another terminal than the region's is not redirected.
        self._redirect = (
            Redirect(self.region.write_above) if redirect and is_terminal(cast(TextIO, console.file)) else None
        )
        self._hooked = False

    def start(self) -> None:
        self._console.push_render_hook(self)
        self._hooked = True
        if self._redirect is not None:
            self._redirect.start()
        self.region.start()

    def end(self) -> None:
        if self._redirect is not None:
            self._redirect.end()
        self.region.end()
        if self._hooked:
            self._hooked = False
            self._console.pop_render_hook()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        # Marked as a control, so that rich does not count it as text.
        way = Segment(self.region.clear_for_output(), None, [(ControlType.CARRIAGE_RETURN,)])
        return [Segments([way]), *renderables]


class _ConsoleFile:
    """The console's file at the moment of writing: standard error may be replaced meanwhile."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.encoding = console.encoding

    def write(self, text: str) -> int:
        return self._console.file.write(text)

    def flush(self) -> None:
        self._console.file.flush()
