"""Progress events are delivered in order, and emitting one never blocks."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Iterator

import pytest

from agentos.runs import progress
from agentos.runs.progress import Progress, ProgressDispatcher
from agentos.runs.results import ProgressStats, WorkflowResult

LONG = 20.0


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelname, record.getMessage()))


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def log(lines: Lines) -> Iterator[logging.Logger]:
    log = logging.getLogger("agentos-test")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.addHandler(lines)
    yield log
    log.removeHandler(lines)


def stats(completed: int = 0, total: int | None = 10) -> ProgressStats:
    return ProgressStats(total=total, completed=completed, success_count=completed, start_time=0.0, end_time=1.234)


def finished(number: int, error: str | None = None, total: int | None = 10) -> Progress:
    item_id = f"item-{number}"
    result = WorkflowResult(item_id, error is None, error)
    return Progress("item_finished", stats(number, total), item_id=item_id, result=result)


class Gate:
    """A callback that stands still until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.heard: list[Progress] = []

    def __call__(self, event: Progress) -> None:
        self.entered.set()
        assert self.let_go.wait(LONG)
        self.heard.append(event)


def test_the_counts_of_an_event_are_those_of_its_moment() -> None:
    counting = stats(3)

    event = Progress("item_finished", counting)
    counting.completed = 4

    assert event.stats.completed == 3


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (Progress("run_started", stats(), message="Starting 10 items"), [("INFO", "Starting 10 items")]),
        (finished(5), [("INFO", "Progress: 5/10 (50.0%)")]),
        (finished(5, total=None), [("INFO", "Progress: 5")]),
        (finished(5, "Oh: %s"), [("WARNING", "item item-5 failed: Oh: %s"), ("INFO", "Progress: 5/10 (50.0%)")]),
        (Progress("item_retried", stats(), item_id="a"), [("INFO", "item a is retried")]),
        (Progress("item_retried", stats(), item_id="a", message="late"), [("INFO", "item a is retried: late")]),
        (Progress("item_limited", stats(), item_id="a"), [("INFO", "item a waits for a key")]),
        (Progress("stopping", stats(), message="waiting for 3"), [("WARNING", "waiting for 3")]),
        (Progress("held", stats(), message="disk full"), [("WARNING", "disk full")]),
        (Progress("going_on", stats(), message="space again"), [("INFO", "space again")]),
        (Progress("of the future", stats()), []),
    ],
)  # fmt: skip
def test_what_the_log_says(log: logging.Logger, lines: Lines, event: Progress, said: list[tuple[str, str]]) -> None:
    announcer = ProgressDispatcher(None, log=log)

    announcer.emit(event)

    assert announcer.close(LONG)
    assert lines.said == [(level, "[COORDINATOR] " + line) for level, line in said]


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({}, "total 10, succeeded 9, failed 1, duration 1.23s"),
        ({"total": None}, "total 10, succeeded 9, failed 1, duration 1.23s"),
        (
            {"interrupted": 2, "parked": 3, "cached": 4, "stopped_by": "SIGINT"},
            "total 10, succeeded 9, failed 1, interrupted 2, parked 3, cached 4, duration 1.23s, stopped by SIGINT",
        ),
    ],
)
def test_the_last_line_sums_the_run_up(log: logging.Logger, lines: Lines, ended: dict[str, object], said: str) -> None:
    counts = stats(10)
    counts.success_count, counts.failed = 9, 1
    for name, value in ended.items():
        setattr(counts, name, value)
    announcer = ProgressDispatcher(None, log=log)

    announcer.emit(Progress("run_finished", counts))

    assert announcer.close(LONG)
    assert lines.said == [("INFO", "[COORDINATOR] Execution complete: " + said)]


def test_every_event_is_heard_in_order_on_one_thread(log: logging.Logger) -> None:
    heard: list[tuple[Progress, str]] = []
    announcer = ProgressDispatcher(lambda event: heard.append((event, threading.current_thread().name)), log=log)
    events = [finished(number) for number in range(1000)]

    for event in events:
        announcer.emit(event)

    assert announcer.close(LONG)
    assert [event for event, _ in heard] == events
    assert {name for _, name in heard} == {"agentos-progress"}


def test_no_wake_up_is_lost(log: logging.Logger) -> None:
    """One event at a time, each said only after the last was heard: the thread falls asleep before every one."""
    log.setLevel(logging.ERROR)
    heard = threading.Semaphore(0)
    announcer = ProgressDispatcher(lambda event: heard.release(), log=log)

    for number in range(3000):
        announcer.emit(finished(number))
        assert heard.acquire(timeout=LONG), f"event {number} was never said"

    assert announcer.close(LONG)


def test_in_a_hurry_events_that_are_quick_to_deliver_are_delivered(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_HURRY_TIMEOUT", LONG)
    pressed = threading.Event()
    announcer = ProgressDispatcher(lambda event: assert_set(pressed), log=log)
    announcer.emit(finished(1))

    def hurry() -> bool:
        pressed.set()
        return True

    assert announcer.close(LONG, hurry=hurry)


def assert_set(event: threading.Event) -> None:
    assert event.wait(LONG)


def test_many_threads_may_speak_at_once(log: logging.Logger) -> None:
    log.setLevel(logging.ERROR)
    heard: list[Progress] = []
    announcer = ProgressDispatcher(heard.append, log=log)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def speak() -> None:
        for number in range(300):
            announcer.emit(finished(number))

    try:
        threads = [threading.Thread(target=speak) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
    finally:
        sys.setswitchinterval(interval)

    assert announcer.close(LONG)
    assert len(heard) == 8 * 300


def test_emit_does_not_wait_for_a_blocked_callback(log: logging.Logger) -> None:
    gate = Gate()
    announcer = ProgressDispatcher(gate, log=log)
    events = [finished(number) for number in range(100)]

    for event in events:
        announcer.emit(event)  # would never come back if it waited

    assert gate.entered.wait(LONG)
    gate.let_go.set()
    assert announcer.close(LONG)
    assert gate.heard == events


def test_too_many_waiting_events_of_items_are_dropped_oldest_first_and_counted(
    log: logging.Logger, lines: Lines
) -> None:
    log.setLevel(logging.WARNING)
    gate = Gate()
    announcer = ProgressDispatcher(gate, log=log, most_waiting=10)
    first, stopping = Progress("run_started", stats()), Progress("stopping", stats(), message="stop")
    announcer.emit(first)
    assert gate.entered.wait(LONG)
    announcer.emit(stopping)
    events = [finished(number) for number in range(100)]

    for event in events:
        announcer.emit(event)
    gate.let_go.set()

    assert announcer.close(LONG)
    assert gate.heard == [first, stopping, *events[-10:]]
    assert lines.said[-1] == (
        "WARNING",
        "[COORDINATOR] 90 item events were dropped: the log or on_progress was too slow",
    )


def test_a_failing_callback_is_complained_of_once_and_called_again(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    log.addHandler(caplog.handler)
    heard: list[Progress] = []

    def failing(event: Progress) -> None:
        heard.append(event)
        raise KeyboardInterrupt if len(heard) > 1 else LookupError("no such thing")

    announcer = ProgressDispatcher(failing, log=log)
    for number in range(3):
        announcer.emit(finished(number))

    assert announcer.close(LONG)
    assert len(heard) == 3
    complaints = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in complaints] == [
        "[COORDINATOR] on_progress failed (logged only once): LookupError('no such thing')"
    ]
    assert complaints[0].exc_info is not None
    log.removeHandler(caplog.handler)


def test_a_failing_log_does_not_stop_the_delivery() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise BrokenPipeError

    log = logging.Logger("agentos-test", logging.INFO)
    log.addHandler(Broken())
    heard: list[Progress] = []
    announcer = ProgressDispatcher(heard.append, log=log)

    announcer.emit(finished(1))

    assert announcer.close(LONG)
    assert len(heard) == 1


def test_closing_gives_up_on_a_callback_that_never_returns(log: logging.Logger) -> None:
    gate = Gate()
    announcer = ProgressDispatcher(gate, log=log)
    announcer.emit(finished(1))
    announcer.emit(finished(2))
    assert gate.entered.wait(LONG)

    assert not announcer.close(0.01)
    assert not announcer.close(LONG)

    gate.let_go.set()
    thread = announcer._thread
    assert thread is not None
    thread.join(LONG)
    assert len(gate.heard) == 1, "what was given up is not said later"


def test_closing_twice_or_with_nothing_ever_said_is_fine(log: logging.Logger) -> None:
    announcer = ProgressDispatcher(None, log=log)
    assert announcer.close(0.0)
    assert announcer.close(0.0)

    other = ProgressDispatcher(None, log=log)
    other.emit(finished(1))
    assert other.close(LONG)
    assert other.close(0.0)


def test_after_closing_nothing_is_said(log: logging.Logger, lines: Lines) -> None:
    announcer = ProgressDispatcher(None, log=log)
    announcer.close(LONG)

    announcer.emit(finished(1))

    assert announcer._thread is None
    assert lines.said == []


def test_a_callback_may_close(log: logging.Logger) -> None:
    answers: list[bool] = []
    announcer = ProgressDispatcher(lambda event: answers.append(announcer.close(LONG)), log=log)
    announcer.emit(finished(1))

    announcer.close(LONG)

    assert answers == [False]


def test_no_thread_runs_before_the_first_event(log: logging.Logger) -> None:
    announcer = ProgressDispatcher(lambda event: None, log=log)
    assert announcer._thread is None

    announcer.emit(finished(1))

    assert announcer.close(LONG)


def test_items_are_wanted_by_a_callback_or_a_log_at_info(log: logging.Logger) -> None:
    assert ProgressDispatcher(None, log=log).wants_items
    log.setLevel(logging.WARNING)
    assert not ProgressDispatcher(None, log=log).wants_items
    assert ProgressDispatcher(lambda event: None, log=log).wants_items


async def coroutine(event: Progress, more: int = 0) -> None: ...


class AsyncCallable:
    async def __call__(self, event: Progress) -> None: ...


@pytest.mark.parametrize(
    "on_progress", [coroutine, functools.partial(coroutine, more=1), AsyncCallable(), AsyncCallable().__call__, 3]
)
def test_what_cannot_be_called_on_a_thread_is_refused(on_progress: object) -> None:
    with pytest.raises(ValueError, match="on_progress"):
        ProgressDispatcher(on_progress)  # type: ignore[arg-type]
