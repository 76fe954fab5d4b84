"""What a run says while it is on. One thread does all the talking, so that nobody else waits for a terminal."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from .results import ProgressStats, WorkflowResult

_LOG = logging.getLogger("agentos")

_OF_ITEMS = "item_"
_HURRY_CHECK_INTERVAL = 0.05
_HURRY_TIMEOUT = 0.25  # what is said last is what somebody who presses wants to know


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that happened in a run; what ``on_progress`` gets.

    ``kind`` is ``"run_started"``, ``"item_finished"``, ``"item_retried"``, ``"item_limited"``, ``"stopping"``,
    ``"held"``, ``"going_on"``, ``"worker_left"`` or ``"run_finished"``. ``stats`` are the counts as of then.
    ``running`` has the ids of some of the running items (up to 20), and is left empty by most events.
    """

    kind: str
    stats: ProgressStats
    item_id: str | None = None
    result: WorkflowResult | None = None
    message: str = ""
    running: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stats", replace(self.stats))  # the run goes on counting in its own


class ProgressDispatcher:
    """Says what happens in a run: to the log, and to the user's ``on_progress``, from one daemon thread of its own.

    Whoever says something goes on at once, however slow the log or the callback is. If more than *most_waiting* events
    wait to be said, the oldest of single items are dropped and counted.
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
        self._kept: deque[Progress] = deque()  # older than those, and not to be dropped
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
        """Whether anybody listens to the events of single items; if not, only failed ones need to be told."""
        return self._on_progress is not None or self._log.isEnabledFor(logging.INFO)

    def emit(self, event: Progress) -> None:
        """Have it said, in its turn. Never blocks; after ``close`` nothing is said any more."""
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
        """Say what is left, then end; give up after *patience* seconds, or in a moment if *hurry* says so.

        True: all was said.
        """
        self._closing = True
        self._wake_thread()
        with self._starting:
            thread = self._thread
        if thread is None:
            return True
        if thread is threading.current_thread():
            return False  # called by on_progress itself; the rest is said after it
        began = time.monotonic()
        while thread.is_alive():
            left = began + (min(patience, _HURRY_TIMEOUT) if hurry() else patience) - time.monotonic()
            if left <= 0 or self._given_up:
                self._given_up = True
                return False
            thread.join(min(left, _HURRY_CHECK_INTERVAL))
        return not self._given_up

    # -- whoever says -----------------------------------------------------------------------------------------

    def _wake_thread(self) -> None:
        try:
            self._wake.release()
        except RuntimeError:
            pass  # somebody else just did

    def _start(self) -> None:
        if not self._starting.acquire(False):
            return  # somebody else just does
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="agentos-progress", daemon=True)
                thread.start()
                self._thread = thread
        except RuntimeError:
            pass  # no more threads: then the run is silent, and goes on
        finally:
            self._starting.release()

    def _drop(self) -> None:
        if not self._dropping.acquire(False):
            return  # somebody else just does
        try:
            while len(self._waiting) > self._most_waiting:
                event = self._waiting.popleft()
                if event.kind.startswith(_OF_ITEMS):
                    self._dropped += 1
                else:
                    self._kept.append(event)
        except IndexError:
            pass  # they were said meanwhile
        finally:
            self._dropping.release()

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._given_up:
            event = self._next()
            if event is not None:
                self._deliver(event)
            elif self._closing:
                break
            else:
                # First say that we sleep, then look once more: what came before is seen, what comes after wakes us.
                self._asleep = True
                if not self._waiting and not self._kept and not self._closing:
                    self._wake.acquire()
                self._asleep = False
        if self._dropped:
            self._write(
                logging.WARNING,
                "%d events of items were not told: the log or on_progress was too slow for them",
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
        for level, line, arguments in _lines(event):
            self._write(level, line, *arguments)
        if self._on_progress is None:
            return
        try:
            self._on_progress(event)
        except BaseException as error:  # noqa: BLE001 - it is the user's, and must not end the talking
            if not self._has_warned:
                self._has_warned = True
                self._write(logging.ERROR, "on_progress failed (said only once): %r", error, exc_info=error)

    def _write(self, level: int, line: str, *arguments: object, exc_info: BaseException | None = None) -> None:
        try:
            self._log.log(level, "[COORDINATOR] " + line, *arguments, exc_info=exc_info)
        except Exception:  # noqa: BLE001, S110 - a log that fails cannot be told so
            pass


_Line = tuple[int, str, tuple[object, ...]]


def _lines(event: Progress) -> list[_Line]:
    match event.kind:
        case "run_started" | "going_on":
            return [(logging.INFO, "%s", (event.message,))]
        case "stopping" | "held" | "worker_left":
            return [(logging.WARNING, "%s", (event.message,))]
        case "item_finished":
            return _of_finished(event)
        case "item_retried":
            return [(logging.INFO, "item %s is tried again%s", (event.item_id, _because(event)))]
        case "item_limited":
            return [(logging.INFO, "item %s waits for a limit%s", (event.item_id, _because(event)))]
        case "run_finished":
            return [(logging.INFO, "%s", (summary(event.stats),))]
    return []


def _of_finished(event: Progress) -> list[_Line]:
    lines: list[_Line] = []
    result = event.result
    if result is not None and not result.success:
        lines.append((logging.WARNING, "item %s failed: %s", (result.item_id, result.error)))
    stats = event.stats
    if stats.total is None:
        lines.append((logging.INFO, "Progress: %d", (stats.completed,)))
    else:
        facts = (stats.completed, stats.total, stats.completion_rate)
        lines.append((logging.INFO, "Progress: %d/%d (%.1f%%)", facts))
    return lines


def _because(event: Progress) -> str:
    return f": {event.message}" if event.message else ""


def summary(stats: ProgressStats) -> str:
    """How a run ended, in one line."""
    total = stats.completed if stats.total is None else stats.total
    parts = [f"total {total}", f"succeeded {stats.success_count}", f"failed {stats.failed}"]
    parts += [
        f"{name} {count}"
        for name, count in [("interrupted", stats.interrupted), ("parked", stats.parked), ("cached", stats.cached)]
        if count
    ]
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
