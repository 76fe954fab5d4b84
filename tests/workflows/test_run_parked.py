"""Limits that last longer than a run may wait: it ends, says until when, and leaves nothing running."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from agentos import Cause, CredentialCoordinator, ParallelCoordinator, RateLimited
from agentos.pool.completion_queue import CompletionQueue, QueuedRequest
from agentos.testing import FakeClock

from ..background_threads import Background
from ..contract.engine_contract import eventually
from .test_run import Story, limited_pool


def limited_for(seconds: float, after: int = 0) -> Callable[[int, str | None], int]:
    begun: list[int] = []

    def worker(item: int, key: str | None) -> int:
        begun.append(item)
        if len(begun) > after:
            raise RateLimited(seconds)
        return item

    return worker


@pytest.mark.parametrize("lease", ["item", "call"])
@pytest.mark.parametrize("workers", [1, 3])
def test_with_max_wait_a_run_ends_when_nothing_runs_and_no_key_is_due_in_time(workers: int, lease: Any) -> None:
    clock = FakeClock()
    run = ParallelCoordinator(workers, limited_pool(clock), max_wait=600, clock=clock, lease=lease)

    stats, results = run.execute_parallel(range(5), limited_for(3600, after=2), str)

    assert (stats.cause, len(results), stats.unfinished) == (Cause.PARKED, 2, 3)
    assert stats.wakes_at == pytest.approx(clock.wall() + 3600, abs=1)
    assert "limits that last until" in str(stats.stopped_by)


def test_a_limit_within_max_wait_is_waited_for() -> None:
    clock = FakeClock()
    begun: list[int] = []

    def worker(item: int, key: str | None) -> int:
        begun.append(item)
        if len(begun) == 1:
            raise RateLimited(500)
        return item

    story = Story(ParallelCoordinator(1, limited_pool(clock), max_wait=600, clock=clock), clock)
    story.begin([1], worker)
    stats, _ = story.end(step=60.0)

    assert (stats.cause, stats.success_count) == (None, 1)


def test_a_run_whose_first_key_wakes_after_the_deadline_ends_at_once() -> None:
    clock = FakeClock()
    run = ParallelCoordinator(1, limited_pool(clock), deadline=1800, clock=clock)

    stats, _ = run.execute_parallel(range(3), limited_for(3600), str)

    assert stats.cause is Cause.PARKED
    assert clock.now() < 1800


def test_one_whose_first_key_wakes_before_the_deadline_waits_for_it() -> None:
    clock = FakeClock()
    begun: list[int] = []

    def worker(item: int, key: str | None) -> int:
        begun.append(item)
        if len(begun) == 1:
            raise RateLimited(600)
        return item

    story = Story(ParallelCoordinator(1, limited_pool(clock), deadline=1800, clock=clock), clock)
    story.begin([1], worker)
    stats, _ = story.end(step=60.0)

    assert stats.success_count == 1


def test_without_max_wait_a_limit_of_hours_is_waited_for() -> None:
    clock = FakeClock()
    begun: list[int] = []

    def worker(item: int, key: str | None) -> int:
        begun.append(item)
        if len(begun) == 1:
            raise RateLimited(7200)
        return item

    story = Story(ParallelCoordinator(1, limited_pool(clock), clock=clock), clock)
    story.begin([1], worker)
    stats, _ = story.end(step=600.0)

    assert (stats.cause, stats.success_count) == (None, 1)


def test_the_cause_of_each_early_end_is_told() -> None:
    def fail(item: int, key: str | None) -> None:
        raise ValueError

    def reject(item: int, key: str | None) -> None:
        with pool.lease() as lease:
            lease.rejected("401")
        raise ValueError

    halted, _ = ParallelCoordinator(1, halt="soon,fail=1").execute_parallel(range(5), fail, str)
    late, _ = ParallelCoordinator(1, deadline=0.0).execute_parallel(range(5), fail, str)
    pool = CredentialCoordinator(["only-secret-1"])
    dead, _ = ParallelCoordinator(1, pool).execute_parallel(range(5), reject, str)
    through, _ = ParallelCoordinator(1).execute_parallel(range(5), fail, str)

    assert [halted.cause, late.cause, dead.cause, through.cause] == [
        Cause.HALT,
        Cause.DEADLINE,
        Cause.CREDENTIALS,
        None,
    ]


@pytest.mark.parametrize("options", [{"max_wait": 600}, {"max_wait": 600, "timeout": 30}, {"deadline": 1800}])
def test_a_key_that_was_parked_before_the_run_began_is_not_waited_for(options: dict[str, float]) -> None:
    clock = FakeClock()
    pool = limited_pool(clock)
    with pool.lease() as lease:
        lease.rate_limited(3600)

    stats, _ = ParallelCoordinator(2, pool, clock=clock, **options).execute_parallel([1], limited_for(1), str)  # type: ignore[arg-type]

    assert (stats.cause, stats.unfinished) == (Cause.PARKED, 1)


def test_the_only_item_is_limited_beyond_the_deadline() -> None:
    clock = FakeClock()

    stats, _ = ParallelCoordinator(1, limited_pool(clock), deadline=1800, clock=clock).execute_parallel(
        [1], limited_for(3600), str
    )

    assert stats.cause is Cause.PARKED


class TwoModels:
    """One item waits for an hour, and the other is about to begin when it is looked at whether the run is to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *secrets: str) -> None:
        self.clock = FakeClock()
        self.pool = CredentialCoordinator(secrets, clock=self.clock)
        self.run = ParallelCoordinator(2, self.pool, model_func=self.model_of, max_wait=600, clock=self.clock)
        self.looks_when = "in hand"
        self._looked = 0
        self._monkeypatch = monkeypatch

    def model_of(self, item: str) -> str:
        self.look("in hand", item)
        return item

    def look(self, when: str, item: str) -> None:
        if when != self.looks_when or item != "other":
            return
        (inside,) = self.run._running
        eventually(
            lambda: (
                self.clock.now() < inside.dispatcher.completions.armed_at < math.inf
                and not inside.state.scheduler.running
            )
        )
        inside.timers._check_parked(self.clock.now())
        self._looked += 1

    def everybody_stands_in_line(self) -> None:
        self._monkeypatch.setattr(self.pool._runtime, "take_now", lambda *_: None)

    def work(self, item: str, key: str | None) -> str:
        if item == "limited":
            raise RateLimited(3600, model="limited")
        return item

    def end(self) -> None:
        running = Background(lambda: self.run.execute_parallel(["limited", "other"], self.work, str))
        eventually(lambda: self._looked)

        def over() -> bool:
            self.clock.advance(1.0)  # who was limited twice rests for some seconds
            return not running.running

        eventually(over)
        stats, results = running.result()
        assert [result.value for result in results] == ["other"]
        assert (stats.cause, stats.unfinished, self._looked) == (Cause.PARKED, 1, 1)


def test_a_run_does_not_end_while_a_worker_has_an_item_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    TwoModels(monkeypatch, "planted").end()


def test_a_run_does_not_end_while_a_request_is_on_its_way_to_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    story = TwoModels(monkeypatch, "planted")
    enqueue = story.pool._runtime.enqueue
    story.everybody_stands_in_line()
    story.looks_when = "on its way"

    def slowly(ticket: QueuedRequest) -> None:
        story.look("on its way", ticket.item.id)
        enqueue(ticket)

    monkeypatch.setattr(story.pool._runtime, "enqueue", slowly)

    story.end()


def test_a_run_does_not_end_while_an_answer_is_being_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    story, made = (
        TwoModels(monkeypatch, "planted-1", "planted-2"),
        CompletionQueue.__init__,
    )  # the second is in the answer
    story.everybody_stands_in_line()
    story.looks_when = "taken"

    class Answered(deque[QueuedRequest]):
        def popleft(self) -> QueuedRequest:
            ticket = super().popleft()
            story.look("taken", ticket.item.id)
            return ticket

    def make(desk: CompletionQueue, on_news: Callable[[], None]) -> None:
        made(desk, on_news)
        desk.completed = Answered()

    monkeypatch.setattr(CompletionQueue, "__init__", make)

    story.end()
