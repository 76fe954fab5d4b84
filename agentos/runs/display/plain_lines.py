"""Progress as plain lines for log files and terminals without a live display. Needs only the standard library."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from ...util.durations import format_hours
from ..progress import Progress
from .eta import Eta, Forecasting
from .event_state import EventState
from .phrases import (
    describe_network,
    describe_no_usable_key,
    format_closing,
    format_counts,
    format_progress,
    format_time_left,
)
from .speed import SpeedMeter, WorkerCounts

if TYPE_CHECKING:
    from ...pool.snapshot import CredentialState

_LINE_EVERY, _LINE_AT_MOST_EVERY = 30.0, 2.0
_OBSERVE_AT_MOST_EVERY = 1.0
_STEPS = 10
_NOTICES = ("stopping", "held", "going_on", "unreachable", "reachable")


class PlainProgress:
    """``on_progress=PlainProgress()``: a line at the start, at every tenth or 30 seconds, and at the end.

    It writes to *stream*, by default standard error, and becomes silent when that cannot be written. While the run has
    no events, only calls of ``tick`` produce lines.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        name: str = "",
        keys: Callable[[], Sequence[CredentialState]] | None = None,
        parallel: int | None = None,
        waiting: Callable[[], int] | None = None,
        running: Callable[[], Iterable[object]] | None = None,
        forecast: Forecasting | None = None,
        failures: int = 5,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._stream = stream
        self._keys = keys
        self._parallel = parallel
        self._waiting = waiting
        self._running = running
        self._forecast = forecast
        self._now = now
        self._events = EventState(
            most_failures=failures, encoding=getattr(stream or sys.stderr, "encoding", None) or "utf-8"
        )
        self._name = self._events.clean_id(name)
        self._lock = threading.Lock()
        self._on = False
        self._is_gone = False
        self._forget()

    def __call__(self, event: Progress) -> None:
        """Write a line about *event* if one is due."""
        with self._lock:
            if event.kind == "run_started":
                self._forget()
                self._on = True
            if not self._on:
                return
            self._events.update(event, self._now())
            self._on = event.kind != "run_finished"
            self._observe()
            self._write_line(*self._lines(event))

    def tick(self) -> None:
        """Write a progress line if there was none for 30 seconds."""
        with self._lock:
            if self._on:
                self._observe()
                if self._is_time():
                    self._write_line(self._line())

    def close(self) -> None:
        """Write nothing more until another run starts."""
        self._on = False  # without the lock: a blocked stream may hold it forever

    def _forget(self) -> None:
        self._events.reset()
        self._eta = Eta(self._forecast)
        self._speed = SpeedMeter()
        self._observed_at = -math.inf
        self._written_tenths = 0
        self._written_at = 0.0

    def _observe(self) -> None:
        """Note what bounds the speed, at most once a second."""
        now = self._now()
        if not self._events.notice and not 0 <= now - self._observed_at < _OBSERVE_AT_MOST_EVERY:
            self._observed_at = now
            running = self._events.running if self._running is None else self._running()
            workers = WorkerCounts(self._parallel, len(list(running)), 0 if self._waiting is None else self._waiting())
            self._speed.observe(self._events.stats, () if self._keys is None else self._keys(), workers, now)

    def _lines(self, event: Progress) -> Iterator[str]:
        if event.kind == "run_finished":
            yield from (f"failed {failure.item_id}: {failure.why}" for failure in self._events.failures)
            yield from map(self._events.clean_whole, format_closing(event.stats, self._name))
            return
        if event.kind == "run_started":
            yield self._events.clean(event.message) or "Starting"
        elif event.kind in _NOTICES and event.message:
            yield self._events.clean(event.message, 10_000)
        if self._is_time():
            yield self._line()

    def _is_time(self) -> bool:
        stats = self._events.stats
        tenths = stats.completed * _STEPS // stats.total if stats.total else 0
        since = stats.elapsed - self._written_at
        return (tenths > self._written_tenths and since >= _LINE_AT_MOST_EVERY) or since >= _LINE_EVERY

    def _line(self) -> str:
        stats, now = self._events.stats, self._now()
        self._written_tenths = stats.completed * _STEPS // stats.total if stats.total else 0
        self._written_at = stats.elapsed
        parts = ["".join(text for text, _ in format_counts(stats)), format_hours(stats.elapsed)]
        keys = () if self._keys is None else self._keys()
        if stats.unfinished != 0 and not self._events.stopping:
            parts.append(format_time_left(self._eta.seconds_left(stats, now, keys), now))
        speed = [] if self._events.notice else self._speed.describe(stats, now)
        rest = describe_network(stats) or describe_no_usable_key(keys) or ", ".join(speed)
        return f"{format_progress(stats)}: {', '.join(parts)}{f'; {rest}' if rest else ''}"

    def _write_line(self, *lines: str) -> None:
        if self._is_gone or not lines:
            return
        stream = sys.stderr if self._stream is None else self._stream
        try:
            stream.write("".join(f"{line}\n" for line in lines))
            stream.flush()
        except (OSError, ValueError, AttributeError):  # full, broken or closed; None in a program without a terminal
            self._is_gone = True
