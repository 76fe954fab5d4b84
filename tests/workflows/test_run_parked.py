"""Limits that last longer than a run may wait: it ends, says until when, and leaves nothing running."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentos import Cause, CredentialCoordinator, ParallelCoordinator, RateLimited
from agentos.testing import FakeClock

from .test_run import Story, limited_pool


def limited_for(seconds: float, after: int = 0) -> Callable[[int, str | None], int]:
    begun: list[int] = []

    def worker(item: int, key: str | None) -> int:
        begun.append(item)
        if len(begun) > after:
            raise RateLimited(seconds)
        return item

    return worker


@pytest.mark.parametrize("workers", [1, 3])
def test_with_max_wait_a_run_ends_when_nothing_runs_and_no_key_is_due_in_time(workers: int) -> None:
    clock = FakeClock()
    run = ParallelCoordinator(workers, limited_pool(clock), max_wait=600, clock=clock)

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
