"""Deliver a run's progress events to the log and to ``on_progress``.

One thread delivers all events, so that no other thread waits for a terminal.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from .failures import describe_result
from .results import ProgressStats, WorkflowResult

_LOG = logging.getLogger("agentos")

_ITEM_KINDS = "item_"
_HURRY_CHECK_INTERVAL = 0.05
_HURRY_TIMEOUT = 0.25  # the last event is the most interesting one after a second Ctrl-C


@dataclass(frozen=True, slots=True)
class Progress:
    """One event of a run, as ``on_progress`` receives it.

    ``kind`` is ``"run_started"``, ``"item_finished"``, ``"item_retried"``, ``"item_limited"``, ``"stopping"``,
    ``"held"``, ``"going_on"``, ``"unreachable"`` (no answer comes from the network), ``"reachable"``, ``"worker_left"``
    or ``"run_finished"``. ``stats`` are the counts at that time.
    ``running`` has the ids of up to 20 running items; most events leave it empty.
    """

    kind: str
    stats: ProgressStats
    item_id: str | None = None
    result: WorkflowResult | None = None
    message: str = ""
    running: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stats", replace(self.stats))  # a copy: the run keeps counting in its own


class ProgressDispatcher:
    """Delivers progress events to the log and to the user's ``on_progress``, from one daemon thread.

    ``emit`` returns at once, however slow the log or the callback is. If more than *most_waiting* events are queued,
    the oldest events of single items are dropped and counted.
    """

    def __init__(
        self,
        on_progress: Callable[[Progress], object] | None,
        *,
        log: logging.Logger = _LOG,
        most_waiting: int = 10_000,
    ) -> None:
        _check(on_progress)
        self._on_progress = on_progress
        self._log = log
        self._most_waiting = most_waiting
        self._waiting: deque[Progress] = deque()
        self._kept: deque[Progress] = deque()  # older than those in _waiting, and never dropped
        self._dropped = 0
        self._dropping = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asleep = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self._closing = False
        self._given_up = False
        self._has_warned = False

    @property
    def wants_items(self) -> bool:
        """True if events of single items have a receiver; if not, only failed items need an event."""
        return self._on_progress is not None or self._log.isEnabledFor(logging.INFO)

    def emit(self, event: Progress) -> None:
        """Queue an event. Never blocks; after ``close`` it does nothing."""
        if self._closing:
            return
        waiting = self._waiting
        waiting.append(event)
        if len(waiting) > self._most_waiting:
            self._drop()
        if self._asleep:
            self._wake_thread()
        elif self._thread is None:
            self._start()

    def close(self, patience: float, *, hurry: Callable[[], bool] = lambda: False) -> bool:
        """Deliver the queued events, then end. Give up after *patience* seconds, or soon if *hurry* returns True.

        Returns True if all events were delivered.
        """
        self._closing = True
        self._wake_thread()
        with self._starting:
            thread = self._thread
        if thread is None:
            return True
        if thread is threading.current_thread():
            return False  # called by on_progress itself; the remaining events follow it
        began = time.monotonic()
        while thread.is_alive():
            left = began + (min(patience, _HURRY_TIMEOUT) if hurry() else patience) - time.monotonic()
            if left <= 0 or self._given_up:
                self._given_up = True
                return False
            thread.join(min(left, _HURRY_CHECK_INTERVAL))
        return not self._given_up

    # -- called by any thread ---------------------------------------------------------------------------------

    def _wake_thread(self) -> None:
        try:
            self._wake.release()
        except RuntimeError:
            pass  # another thread just did

    def _start(self) -> None:
        if not self._starting.acquire(False):
            return  # another thread is doing it
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="agentos-progress", daemon=True)
                thread.start()
                self._thread = thread
        except RuntimeError:
            pass  # no more threads: the run continues without events
        finally:
            self._starting.release()

    def _drop(self) -> None:
        if not self._dropping.acquire(False):
            return  # another thread is doing it
        try:
            while len(self._waiting) > self._most_waiting:
                event = self._waiting.popleft()
                if event.kind.startswith(_ITEM_KINDS):
                    self._dropped += 1
                else:
                    self._kept.append(event)
        except IndexError:
            pass  # they were delivered meanwhile
        finally:
            self._dropping.release()

    # -- the delivery thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._given_up:
            event = self._next()
            if event is not None:
                self._deliver(event)
            elif self._closing:
                break
            else:
                # Set the flag first, then check once more: an earlier event is found here, a later one wakes this
                # thread.
                self._asleep = True
                if not self._waiting and not self._kept and not self._closing:
                    self._wake.acquire()
                self._asleep = False
        if self._dropped:
            self._write(
                logging.WARNING,
                "%d item events were dropped: the log or on_progress was too slow",
                self._dropped,
            )

    def _next(self) -> Progress | None:
        for queue in (self._kept, self._waiting):
            try:
                return queue.popleft()
            except IndexError:
                pass
        return None

    def _deliver(self, event: Progress) -> None:
        for level, line, arguments in _format_event(event):
            self._write(level, line, *arguments)
        if self._on_progress is None:
            return
        try:
            self._on_progress(event)
        except BaseException as error:  # noqa: BLE001 - user code must not end the delivery thread
            if not self._has_warned:
                self._has_warned = True
                self._write(logging.ERROR, "on_progress failed (logged only once): %r", error, exc_info=error)

    def _write(self, level: int, line: str, *arguments: object, exc_info: BaseException | None = None) -> None:
        try:
            self._log.log(level, "[COORDINATOR] " + line, *arguments, exc_info=exc_info)
        except Exception:  # noqa: BLE001, S110 - there is no place to report a failing log
            pass


_Line = tuple[int, str, tuple[object, ...]]


def _format_event(event: Progress) -> list[_Line]:
    match event.kind:
        case "run_started" | "going_on":
            return [(logging.INFO, "%s", (event.message,))]
        case "stopping" | "held" | "worker_left" | "unreachable" | "reachable":
            return [(logging.WARNING, "%s", (event.message,))]
        case "item_finished":
            return _format_finished(event)
        case "item_retried":
            return [(logging.INFO, "item %s is retried%s", (event.item_id, _format_reason(event)))]
        case "item_limited":
            return [(logging.INFO, "item %s waits for a key%s", (event.item_id, _format_reason(event)))]
        case "run_finished":
            return [(logging.INFO, "%s", (summary(event.stats),))]
    return []


def _format_finished(event: Progress) -> list[_Line]:
    lines: list[_Line] = []
    result = event.result
    if result is not None and not result.success:
        lines.append((logging.WARNING, "item %s failed: %s", (result.item_id, describe_result(result))))
    stats = event.stats
    if stats.total is None:
        lines.append((logging.INFO, "Progress: %d", (stats.completed,)))
    else:
        facts = (stats.completed, stats.total, stats.completion_rate)
        lines.append((logging.INFO, "Progress: %d/%d (%.1f%%)", facts))
    return lines


def _format_reason(event: Progress) -> str:
    return f": {event.message}" if event.message else ""


def summary(stats: ProgressStats) -> str:
    """Return one line that says how a run ended."""
    total = stats.completed if stats.total is None else stats.total
    parts = [f"total {total}", f"succeeded {stats.success_count}", f"failed {stats.failed}"]
    parts += [
        f"{name} {count}"
        for name, count in [("interrupted", stats.interrupted), ("parked", stats.parked), ("cached", stats.cached)]
        if count
    ]
    if stats.usage:
        parts.append(f"tokens {stats.usage.total}")
    parts.append(f"duration {stats.elapsed:.2f}s")
    if stats.stopped_by is not None:
        parts.append(f"stopped by {stats.stopped_by}")
    return "Execution complete: " + ", ".join(parts)


def _check(on_progress: object) -> None:
    if on_progress is None:
        return
    if not callable(on_progress):
        raise ValueError("on_progress must be a function of one Progress event")
    if inspect.iscoroutinefunction(on_progress) or inspect.iscoroutinefunction(type(on_progress).__call__):
        raise ValueError("on_progress must be a plain function: it is called on a thread, where nothing awaits it")
