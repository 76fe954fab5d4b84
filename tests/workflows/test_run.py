"""What a run promises, told through ParallelCoordinator."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Context,
    Credential,
    CredentialCoordinator,
    DuplicateItems,
    InputFailed,
    ParallelCoordinator,
    ProgressStats,
    RateLimited,
    RunStopped,
    Transient,
    WorkflowResult,
)
from agentos.testing import FakeClock

from ..contract.engine_contract import PATIENCE, eventually


def by_id(results: list[WorkflowResult]) -> dict[str, WorkflowResult]:
    return {result.item_id: result for result in results}


def nothing(item: Any, credential: str | None) -> None: ...


# -- the original promises ----------------------------------------------------------------------------------------


def test_every_item_is_run_with_a_credential_and_its_value_comes_back() -> None:
    pool = CredentialCoordinator(["secret-number-one", "secret-number-two"])
    run = ParallelCoordinator(4, pool)

    stats, results = run.execute_parallel([1, 2, 3, 4, 5], lambda item, key: (item * 2, key), lambda item: f"n{item}")

    assert {r.item_id: r.value[0] for r in results} == {"n1": 2, "n2": 4, "n3": 6, "n4": 8, "n5": 10}
    assert {r.value[1] for r in results} <= {"secret-number-one", "secret-number-two"}
    assert {r.credential for r in results} <= {"key-1", "key-2"}
    assert (stats.total, stats.completed, stats.success_count, stats.failed) == (5, 5, 5, 0)
    assert stats.completion_rate == 100.0
    assert pool.get_available_count() == 2


def test_a_failing_item_fails_alone() -> None:
    def worker(item: int, _key: str | None) -> int:
        return 10 // item

    stats, results = ParallelCoordinator(2).execute_parallel([2, 0, 5], worker, str)

    found = by_id(results)
    assert found["0"].success is False
    assert found["0"].error == "integer division or modulo by zero"
    assert found["0"].metadata["error_type"] == "ZeroDivisionError"
    assert (stats.completed, stats.success_count, stats.failed) == (3, 2, 1)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_even_an_exit_of_a_worker_fails_only_its_item(raised: BaseException) -> None:
    def worker(item: int, _key: str | None) -> None:
        if item == 1:
            raise raised

    stats, _ = ParallelCoordinator(2).execute_parallel([0, 1, 2], worker, str)

    assert (stats.success_count, stats.failed) == (2, 1)


def test_no_items_is_a_finished_run() -> None:
    stats, results = ParallelCoordinator().execute_parallel([], nothing, str)

    assert (stats.total, stats.completed, results) == (0, 0, [])
    assert stats.completion_rate == 0.0


def test_the_number_of_workers_is_capped_with_a_warning_that_says_how_to_lift_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert ParallelCoordinator().max_workers == 3 == ParallelCoordinator.DEFAULT_PARALLELISM
    assert ParallelCoordinator(10).max_workers == 10 == ParallelCoordinator.MAX_PARALLELISM
    with caplog.at_level(logging.WARNING, "agentos"):
        assert ParallelCoordinator(50).max_workers == 10
    assert "exceeds maximum 10. Capping to 10; max_parallelism=50 lifts it" in caplog.text
    assert ParallelCoordinator(50, max_parallelism=64).max_workers == 50
    assert ParallelCoordinator(max_parallelism=64).max_workers == 64
    assert ParallelCoordinator(max_parallelism=10).max_workers == 10
    assert ParallelCoordinator(max_parallelism=2).max_workers == 2


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3"])
def test_less_than_one_worker_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="max_workers must be a whole number of at least 1"):
        ParallelCoordinator(wrong)
    with pytest.raises(ValueError, match="max_parallelism must be a whole number of at least 1"):
        ParallelCoordinator(max_parallelism=wrong)


def test_a_dry_run_prints_the_ids_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stats, results = ParallelCoordinator().execute_parallel(["a", "b"], pytest.fail, str, dry_run=True)

    assert capsys.readouterr().out == "[COORDINATOR] Dry run mode - would process 2 items:\n  - a\n  - b\n"
    assert (stats.total, results) == (2, [])


def test_at_most_max_workers_items_run_at_once() -> None:
    running = Counter[str]()
    most = 0
    lock = threading.Lock()
    barrier = threading.Barrier(3)

    def worker(item: int, _key: str | None) -> None:
        nonlocal most
        with lock:
            running["now"] += 1
            most = max(most, running["now"])
        barrier.wait(PATIENCE)  # three must be there at the same time
        with lock:
            running["now"] -= 1

    ParallelCoordinator(3).execute_parallel(range(9), worker, str)

    assert most == 3


def test_parallelism_follows_the_pool() -> None:
    pool = CredentialCoordinator(["only-secret-one", "only-secret-two"])
    held = Counter[str]()
    worst = 0
    lock = threading.Lock()

    def worker(item: int, key: str | None) -> None:
        nonlocal worst
        with lock:
            held[str(key)] += 1
            worst = max(worst, *held.values())
        time.sleep(0)
        with lock:
            held[str(key)] -= 1

    stats, _ = ParallelCoordinator(8, pool).execute_parallel(range(200), worker, str)

    assert stats.success_count == 200
    assert worst == 1


# -- ids ----------------------------------------------------------------------------------------------------------


def test_duplicate_ids_in_a_list_are_refused_before_anything_starts() -> None:
    with pytest.raises(DuplicateItems, match=r"'a' at items\[0\] and items\[2\]; nothing was started"):
        ParallelCoordinator().execute_parallel(["a", "b", "a"], pytest.fail, str)


def test_a_late_duplicate_in_an_iterator_fails_that_item_only() -> None:
    stats, results = ParallelCoordinator(1).execute_parallel(iter(["a", "b", "a"]), nothing, str)

    assert [(r.item_id, r.success) for r in results] == [("a", True), ("b", True), ("a", False)]
    assert "duplicate id" in str(results[2].error)
    assert (stats.total, stats.failed) == (3, 1)


def test_an_exception_in_item_id_func_fails_that_item_as_its_place() -> None:
    def id_of(item: int) -> str:
        if item == 1:
            raise KeyError("no id")
        return f"n{item}"

    for items in ([0, 1, 2], iter([0, 1, 2])):
        stats, results = ParallelCoordinator(1).execute_parallel(items, nothing, id_of)

        found = by_id(results)
        assert set(found) == {"n0", "item-1", "n2"}
        assert "item_id_func failed for items[1]: KeyError" in str(found["item-1"].error)
        assert (stats.success_count, stats.failed) == (2, 1)


def test_an_input_that_raises_ends_the_run_with_what_it_has() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the file is gone")

    with pytest.raises(InputFailed, match="OSError: the file is gone") as caught:
        ParallelCoordinator(1).execute_parallel(items(), nothing, str)

    assert isinstance(caught.value.__cause__, OSError)
    assert [r.item_id for r in caught.value.results] == ["1", "2"]
    assert caught.value.stats.success_count == 2


@pytest.mark.parametrize("wrong", ["abc", b"abc", 5, None])
def test_what_is_no_list_of_items_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="items must be a list of items or another iterable"):
        ParallelCoordinator().execute_parallel(wrong, nothing, str)


# -- streaming ----------------------------------------------------------------------------------------------------


def test_an_endless_input_is_streamed_until_the_loop_is_left() -> None:
    seen = []
    run = ParallelCoordinator(3)
    for result in run.stream(count(), lambda item, key: item, str):
        seen.append(result.value)
        if len(seen) == 1000:
            break

    assert len(set(seen)) == 1000
    assert run.stats is not None
    assert run.stats.stopped_by == "the end of the loop over its results"


def test_a_consumer_that_takes_nothing_stops_the_run_from_going_on() -> None:
    """Only a bounded number of results is ever kept for it."""
    started = Counter[str]()

    def worker(item: int, _key: str | None) -> int:
        started["n"] += 1
        return item

    run = ParallelCoordinator(3)
    results = run.stream(count(), worker, str)
    next(results)
    eventually(lambda: len(run._running[0].state.idle) == 3)
    assert started["n"] < 3000

    assert len([next(results) for _ in range(5000)]) == 5000
    results.close()  # type: ignore[attr-defined]


def test_the_total_of_an_iterator_is_known_at_the_end() -> None:
    run = ParallelCoordinator(2)
    totals = []
    for _ in run.stream(iter(range(3)), nothing, str):
        assert run.stats is not None
        totals.append(run.stats.total)

    assert totals[0] is None
    assert run.stats is not None
    assert run.stats.total == 3


# -- asyncio ------------------------------------------------------------------------------------------------------


def test_coroutines_and_functions_run_inside_a_loop_over_lists_and_async_iterables() -> None:
    async def awaited(item: int, key: str | None) -> int:
        await asyncio.sleep(0)
        return item

    def plain(item: int, key: str | None) -> int:
        return item

    async def numbers() -> Any:
        for number in range(100):
            yield number

    async def main() -> None:
        pool = CredentialCoordinator([Credential("a-secret-of-many", slots=8)])
        run = ParallelCoordinator(8, pool)
        for worker in (awaited, plain):
            stats, results = await run.execute_async(range(100), worker, str)
            assert stats.success_count == 100
            assert sorted(r.value for r in results) == list(range(100))
            stats, results = await run.execute_async(numbers(), worker, str)
            assert sorted(r.value for r in results) == list(range(100))
            assert sorted([r.value async for r in run.stream_async(numbers(), worker, str)]) == list(range(100))

    asyncio.run(main())


def test_coroutines_run_without_a_loop_of_the_caller() -> None:
    async def worker(item: int, key: str | None) -> int:
        await asyncio.sleep(0)
        return item + 1

    stats, results = ParallelCoordinator(5).execute_parallel(range(50), worker, str)

    assert stats.success_count == 50
    assert sorted(r.value for r in results) == list(range(1, 51))


@pytest.mark.parametrize("awaits", [False, True], ids=["function", "coroutine"])
def test_a_coroutine_that_was_not_awaited_fails_its_item_at_once(awaits: bool) -> None:
    async def ask() -> int:
        return 1

    def plain(item: int, key: str | None) -> Any:
        return ask()

    async def forgetful(item: int, key: str | None) -> Any:
        return ask()

    run = ParallelCoordinator(1, retries=2)
    _, (result,) = run.execute_parallel([1], forgetful if awaits else plain, str)

    assert (result.success, result.value, result.attempts) == (False, None, 1)
    said = "the worker returned a coroutine that was not awaited: write `await` before the call"
    assert result.error == said + ("" if awaits else ", in a worker that is declared `async def`")


def test_a_task_that_was_not_awaited_fails_its_item_too() -> None:
    async def worker(item: int, key: str | None) -> Any:
        return asyncio.ensure_future(asyncio.sleep(0))

    _, (result,) = ParallelCoordinator(1).execute_parallel([1], worker, str)

    assert "returned an awaitable Task that was not awaited" in (result.error or "")


def test_a_thousand_coroutines_are_in_flight_at_once() -> None:
    arrived = 0
    together = asyncio.Event()

    async def worker(item: int, key: str | None) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 1000:
            together.set()
        await together.wait()

    async def main() -> ProgressStats:
        stats, _ = await ParallelCoordinator(max_parallelism=1000).execute_async(range(1000), worker, str)
        return stats

    assert asyncio.run(main()).success_count == 1000


# -- limits and retries -------------------------------------------------------------------------------------------


def limited_pool(clock: FakeClock, keys: int = 1) -> CredentialCoordinator:
    return CredentialCoordinator([f"limited-secret-{n}" for n in range(keys)], clock=clock)


class Story:
    """Runs a coordinator in a thread while the test moves the clock."""

    def __init__(self, run: ParallelCoordinator, clock: FakeClock) -> None:
        self.run = run
        self.clock = clock
        self.outcome: Any = None

    def begin(self, items: Any, worker: Callable[..., Any]) -> None:
        def go() -> None:
            try:
                self.outcome = self.run.execute_parallel(items, worker, str)
            except BaseException as error:
                self.outcome = error

        self.thread = threading.Thread(target=go, daemon=True)
        self.thread.start()

    def end(self, step: float = 1.0) -> tuple[ProgressStats, list[WorkflowResult]]:
        """Let time pass until the run is over."""
        until = time.monotonic() + PATIENCE
        while self.thread.is_alive() and time.monotonic() < until:
            self.thread.join(0.01)
            self.clock.advance(step)
        assert not self.thread.is_alive(), "the run did not end"
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        found: tuple[ProgressStats, list[WorkflowResult]] = self.outcome
        return found


def test_a_rate_limited_item_waits_and_costs_no_try() -> None:
    clock = FakeClock()
    pool = limited_pool(clock)
    attempts = Counter[int]()
    began: list[tuple[int, float]] = []

    def worker(item: int, key: str | None) -> str:
        attempts[item] += 1
        began.append((item, clock.now()))
        if item == 0 and attempts[0] <= 3:
            raise RateLimited(30)
        return "ok"

    story = Story(ParallelCoordinator(1, pool, retries=0, clock=clock), clock)
    story.begin([0, 1], worker)
    stats, results = story.end()

    assert [r.success for r in results] == [True, True]
    assert attempts == {0: 4, 1: 1}
    assert (stats.limited, stats.retried) == (3, 0)
    instants = [at for item, at in began if item == 0]
    assert all(later - earlier >= 30 for earlier, later in pairwise(instants))
    assert by_id(results)["0"].attempts == 4


def test_an_exception_after_the_lease_reported_a_limit_is_a_limit_not_a_failure() -> None:
    clock = FakeClock()
    pool = limited_pool(clock)
    calls = 0

    def worker(item: int, key: str | None, context: Context) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert context.lease is not None
            context.lease.rate_limited(5)
            raise RuntimeError("429 from the SDK")
        return f"attempt {context.attempt}"

    story = Story(ParallelCoordinator(1, pool, retries=0, clock=clock), clock)
    story.begin([0], worker)
    stats, results = story.end()

    assert results[0].value == "attempt 2"
    assert stats.limited == 1


def test_a_worker_that_reports_a_limit_and_returns_is_done() -> None:
    clock = FakeClock()
    pool = limited_pool(clock, 2)

    def worker(item: int, key: str | None) -> str:
        with pool.lease() as lease:  # the item's own, on loan
            lease.rate_limited(1)
        return lease.name

    story = Story(ParallelCoordinator(2, pool, clock=clock), clock)
    story.begin(range(6), worker)
    stats, results = story.end()

    assert stats.success_count == 6
    assert all(r.value == r.credential for r in results)


def test_an_item_that_never_fits_fails_while_others_go_on() -> None:
    clock = FakeClock()
    pool = limited_pool(clock, 2)

    def worker(item: int, key: str | None) -> None:
        if item == 0:
            raise RateLimited(0)
        clock_step()

    def clock_step() -> None: ...

    story = Story(ParallelCoordinator(2, pool, clock=clock), clock)

    def items() -> Iterator[int]:
        yield 0
        for number in count(1):  # others go on until it has failed
            yield number
            if number > 100 and story.run.stats is not None and story.run.stats.failed:
                return
            time.sleep(0.001)

    story.begin(items(), worker)
    _, results = story.end(step=30.0)

    failed = [r for r in results if not r.success]
    assert [r.item_id for r in failed] == ["0"]
    assert "never fits: rate-limited 20 times in a row" in str(failed[0].error)


def test_transient_errors_are_tried_again_and_others_are_not() -> None:
    clock = FakeClock()
    tries = Counter[str]()

    def worker(item: str, key: str | None) -> str:
        tries[item] += 1
        if item == "connection" and tries[item] < 3:
            raise ConnectionResetError("gone")
        if item == "always":
            raise Transient("503")
        if item == "bug":
            raise ValueError("no")
        return "ok"

    story = Story(ParallelCoordinator(1, retries=2, clock=clock), clock)
    story.begin(["connection", "always", "bug"], worker)
    stats, results = story.end()

    assert tries == {"connection": 3, "always": 3, "bug": 1}
    found = by_id(results)
    assert (found["connection"].success, found["connection"].attempts) == (True, 3)
    assert (found["always"].success, found["always"].error) == (False, "503")
    assert stats.retried == 4


def test_which_errors_are_tried_again_is_one_replaceable_function() -> None:
    clock = FakeClock()
    tries = Counter[int]()

    def worker(item: int, key: str | None) -> None:
        tries[item] += 1
        raise ValueError("mine")

    run = ParallelCoordinator(1, retries=4, retry_if=lambda error: isinstance(error, ValueError), clock=clock)
    story = Story(run, clock)
    story.begin([0], worker)
    story.end(step=30)

    assert tries[0] == 5


def test_when_no_credential_can_ever_serve_the_items_stay_pending() -> None:
    pool = CredentialCoordinator(["secret-that-dies"])

    def worker(item: int, key: str | None) -> None:
        with pool.lease() as lease:
            lease.rejected("401")
        raise PermissionError("401")

    run = ParallelCoordinator(2, pool)
    stats, results = run.execute_parallel(range(5), worker, str)

    assert results == []
    assert "no usable credential" in str(stats.stopped_by)
    assert run.get_checkpoints() == ["0", "1", "2", "3", "4"]


def test_an_item_that_no_limit_admits_fails_and_the_others_are_done() -> None:
    pool = CredentialCoordinator([Credential("secret-with-limit", tpm=100)])
    run = ParallelCoordinator(2, pool, cost_func=lambda item: {"tokens": item})

    stats, results = run.execute_parallel([10, 5000, 20], nothing, str)

    assert {r.item_id: r.success for r in results} == {"10": True, "20": True, "5000": False}
    assert "never fits" in str(by_id(results)["5000"].error)
    assert stats.stopped_by is None


# -- what is refused or warned of before the run -----------------------------------------------------------------


def test_a_worker_with_a_wrong_signature_is_refused_before_the_run(tmp_path: Path) -> None:
    def ask(item: int) -> None: ...

    run = ParallelCoordinator(1, journal=tmp_path / "run")

    with pytest.raises(ValueError, match=r"cannot be called with \(item, credential\).*it is ask\(item\)"):
        run.execute_parallel(range(3), ask, str)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("lease", ["item", "call"])
def test_a_run_with_an_empty_pool_is_refused_and_the_pool_alone_is_not(tmp_path: Path, lease: str) -> None:
    pool = CredentialCoordinator([])
    run = ParallelCoordinator(1, pool, journal=tmp_path / "run", lease=lease)

    with pytest.raises(ValueError, match="credential_coordinator has no credentials"):
        run.execute_parallel(range(3), nothing, str)
    with pytest.raises(ValueError, match="credential_coordinator has no credentials"):
        asyncio.run(run.execute_async(range(3), nothing, str))
    assert not (tmp_path / "run").exists()

    pool.add("sk-a-key-that-came-later")

    assert run.execute_parallel(range(3), nothing, str)[0].success_count == 3


def test_a_blocking_run_inside_a_loop_warns_once_and_names_the_other_method(caplog: pytest.LogCaptureFixture) -> None:
    run = ParallelCoordinator(1)

    async def inside() -> None:
        for _ in range(2):
            run.execute_parallel(range(2), nothing, str)
        list(ParallelCoordinator(1).stream(range(2), nothing, str))
        await ParallelCoordinator(1).execute_async(range(2), nothing, str)

    run.execute_parallel(range(2), nothing, str)
    with caplog.at_level(logging.WARNING, "agentos"):
        asyncio.run(inside())

    assert [record.getMessage() for record in caplog.records] == [
        "[COORDINATOR] execute_parallel() blocks the running event loop until the run ends; "
        "use `await execute_async()` in a coroutine",
        "[COORDINATOR] stream() blocks the running event loop until the run ends; "
        "use `async for ... in stream_async()` in a coroutine",
    ]


# -- stopping early -----------------------------------------------------------------------------------------------


def test_a_halt_clause_stops_soon_after_so_many_failures() -> None:
    def worker(item: int, key: str | None) -> None:
        raise ValueError("bad")

    run = ParallelCoordinator(1, halt="soon,fail=3")
    stats, _ = run.execute_parallel(range(100), worker, str)

    assert stats.failed == 3
    assert stats.stopped_by == "halt at soon,fail=3"
    assert run.get_checkpoints() == [str(n) for n in range(3, 100)]


def test_a_run_that_was_stopped_can_be_made_an_error() -> None:
    def worker(item: int, key: str | None) -> None:
        if item == 1:
            raise ValueError("bad")

    whole, _ = ParallelCoordinator(1).execute_parallel(range(5), worker, str)
    whole.raise_if_stopped()
    stopped, _ = ParallelCoordinator(1, halt="soon,fail=1").execute_parallel(range(5), worker, str)

    with pytest.raises(RunStopped) as raised:
        stopped.raise_if_stopped()

    assert str(raised.value) == "the run was stopped by halt at soon,fail=1: 1 of 5 items are done, 1 failed"
    assert (raised.value.stopped_by, raised.value.stats) == ("halt at soon,fail=1", stopped)


@pytest.mark.parametrize("known", [True, False])
def test_a_percentage_of_failures_does_not_stop_a_run_at_its_first_items(known: bool) -> None:
    def worker(item: int, key: str | None) -> None:
        if item < 5:
            raise ValueError("bad")

    items = range(200) if known else iter(range(200))
    stats, _ = ParallelCoordinator(1, halt="soon,fail=10%").execute_parallel(items, worker, str)

    assert (stats.stopped_by, stats.failed, stats.completed) == (None, 5, 200)


def test_a_run_stops_once_more_than_the_percentage_of_all_its_items_has_failed() -> None:
    def worker(item: int, key: str | None) -> None:
        raise ValueError("bad")

    stats, _ = ParallelCoordinator(1, halt="soon,fail=10%").execute_parallel(range(200), worker, str)

    assert (stats.stopped_by, stats.failed) == ("halt at soon,fail=10%", 21)


def test_failures_of_earlier_starts_do_not_count_for_a_halt_clause(tmp_path: Path) -> None:
    def worker(item: int, key: str | None) -> None:
        if item < 3:
            raise ValueError("bad")

    def start(halt: str) -> ProgressStats:
        run = ParallelCoordinator(1, journal=tmp_path / "run", halt=halt)
        return run.execute_parallel(range(10), worker, str)[0]

    assert start("soon,fail=3").failed == 3

    again = start("soon,fail=10%")

    assert (again.stopped_by, again.cached, again.completed) == (None, 3, 10)


def test_after_the_deadline_nothing_starts() -> None:
    clock = FakeClock()
    ran = []

    def worker(item: int, key: str | None) -> None:
        ran.append(item)
        clock.advance(40)

    run = ParallelCoordinator(1, deadline=100, clock=clock)
    story = Story(run, clock)
    story.begin(range(50), worker)
    stats, _ = story.end(step=0.0)

    assert len(ran) < 50
    assert stats.stopped_by == "the deadline"
    assert stats.success_count == len(ran)


def test_shutdown_drains_and_the_object_can_be_used_again() -> None:
    run = ParallelCoordinator(2)
    begun = threading.Event()
    go_on = threading.Event()

    def worker(item: int, key: str | None) -> int:
        begun.set()
        go_on.wait(PATIENCE)
        return item

    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(run.execute_parallel(range(10), worker, str)))
    thread.start()
    begun.wait(PATIENCE)
    run.shutdown()
    go_on.set()
    thread.join(PATIENCE)

    stats, results = outcome[0]
    assert 1 <= len(results) <= 2
    assert stats.stopped_by == "shutdown()"
    assert len(run.get_checkpoints()) == 10 - len(results)
    again, _ = run.execute_parallel(range(3), nothing, str)
    assert again.success_count == 3
    assert run.get_checkpoints() == []


def test_a_forced_shutdown_leaves_stuck_threads_behind() -> None:
    run = ParallelCoordinator(2)
    begun = threading.Barrier(3)
    never = threading.Event()

    def worker(item: int, key: str | None) -> None:
        begun.wait(PATIENCE)
        never.wait()

    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(run.execute_parallel(range(10), worker, str)))
    thread.start()
    begun.wait(PATIENCE)
    run.shutdown(force=True)
    thread.join(PATIENCE)

    stats, results = outcome[0]
    assert (results, stats.interrupted) == ([], 2)
    assert run.get_checkpoints() == [str(n) for n in range(10)]
    never.set()


# -- time ---------------------------------------------------------------------------------------------------------


def test_a_thread_that_takes_too_long_is_left_behind_and_keeps_its_credential() -> None:
    clock = FakeClock()
    pool = limited_pool(clock, 2)
    begun, never = threading.Event(), threading.Event()

    def worker(item: int, key: str | None) -> str:
        if item == 0:
            begun.set()
            never.wait()
        return "ok"

    run = ParallelCoordinator(1, pool, timeout=10, clock=clock)
    story = Story(run, clock)
    story.begin(range(5), worker)
    assert begun.wait(PATIENCE)
    clock.advance(10)
    _, results = story.end(step=0.0)  # the others take no time

    found = by_id(results)
    assert "timed out after 10s" in str(found["0"].error)
    assert all(found[str(n)].success for n in range(1, 5))
    assert pool.get_available_count() == 1  # the other is still in its hands
    never.set()
    eventually(lambda: pool.get_available_count() == 2)


def test_a_coroutine_that_takes_too_long_is_cancelled_and_tried_again() -> None:
    clock = FakeClock()
    begun = cancelled = 0

    async def worker(item: int, key: str | None) -> None:
        nonlocal begun, cancelled
        begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    run = ParallelCoordinator(1, timeout=10, retries=1, clock=clock)
    story = Story(run, clock)
    story.begin([0], worker)
    eventually(lambda: begun == 1)
    clock.advance(10)
    eventually(lambda: run.stats is not None and run.stats.retried == 1)
    clock.advance(60)  # the rest before the second attempt
    eventually(lambda: begun == 2)
    clock.advance(10)
    _, results = story.end(step=0.0)

    assert cancelled == 2
    assert (results[0].error, results[0].attempts) == ("timed out after 10s", 2)


# -- foreign pools ------------------------------------------------------------------------------------------------


class Original:
    """A pool as the original program had it: plain strings, None when there is none."""

    def __init__(self, keys: list[str]) -> None:
        self.free = list(keys)
        self.lock = threading.Lock()
        self.double = 0

    def acquire_credential(self) -> str | None:
        with self.lock:
            return self.free.pop() if self.free else None

    def release_credential(self, key: str) -> None:
        with self.lock:
            self.double += key in self.free
            self.free.append(key)


class Blocking:
    """A pool whose acquire() waits, and cannot be told not to."""

    def __init__(self, keys: list[str]) -> None:
        self.free = list(keys)
        self.changed = threading.Condition()

    def acquire(self) -> str:
        with self.changed:
            self.changed.wait_for(lambda: self.free)
            return self.free.pop()

    def release(self, key: str) -> None:
        with self.changed:
            self.free.append(key)
            self.changed.notify()


class Reserving:
    def __init__(self, keys: list[str]) -> None:
        self.inner = Original(keys)

    def reserve(self, timeout: float | None = None) -> str | None:
        return self.inner.acquire_credential()

    def release(self, key: str) -> None:
        self.inner.release_credential(key)


@pytest.mark.parametrize("kind", [Original, Blocking, Reserving])
@pytest.mark.parametrize("is_async", [False, True])
def test_any_pool_with_the_usual_verbs_works(kind: Any, is_async: bool) -> None:
    pool = kind(["foreign-secret-1", "foreign-secret-2"])
    used = Counter[str]()

    def plain(item: int, key: str | None) -> None:
        used[str(key)] += 1
        if item == 3:
            raise ValueError(f"with {key}")

    async def awaited(item: int, key: str | None) -> None:
        plain(item, key)
        await asyncio.sleep(0)

    stats, results = ParallelCoordinator(4, pool).execute_parallel(range(40), awaited if is_async else plain, str)

    assert (stats.success_count, stats.failed) == (39, 1)
    assert set(used) <= {"foreign-secret-1", "foreign-secret-2"}
    assert "foreign-secret" not in repr(results)


def test_an_object_that_is_no_pool_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="credential_coordinator must have one of these pairs of methods"):
        ParallelCoordinator(1, object())


# -- what a worker is given ---------------------------------------------------------------------------------------


def test_a_worker_is_told_of_its_attempt(caplog: pytest.LogCaptureFixture) -> None:
    pool = CredentialCoordinator(["context-secret-1"])

    def worker(item: str, key: str | None, context: Context) -> str:
        assert context.lease is not None
        assert context.lease.reveal() == key
        assert context.settle(tokens=5)
        assert not context.stopping.is_set()
        context.log.info("hello")
        context.checkpoint.write_text("half-way")
        return f"{context.item_id} {context.attempt}"

    with caplog.at_level(logging.INFO, "agentos"):
        _, results = ParallelCoordinator(1, pool).execute_parallel(["../x"], worker, str)

    assert results[0].value == "../x 1"
    assert "[../x] hello" in caplog.text


def test_with_lease_call_the_worker_takes_its_own() -> None:
    pool = CredentialCoordinator(["lease-per-call-1", "lease-per-call-2"])

    def worker(item: int, key: str | None) -> str:
        assert key is None
        with pool.lease() as lease:
            return lease.reveal()

    _, results = ParallelCoordinator(4, pool, lease="call").execute_parallel(range(20), worker, str)

    assert {r.value for r in results} <= {"lease-per-call-1", "lease-per-call-2"}


def test_workers_that_ask_the_pool_again_do_not_wait_for_each_other() -> None:
    """Three keys, three workers, each asking for a second lease: they would wait for ever."""
    pool = CredentialCoordinator(["borrowed-secret-1", "borrowed-secret-2", "borrowed-secret-3"])

    def worker(item: int, key: str | None) -> bool:
        with pool.lease() as lease:
            return lease.reveal() == key

    _, results = ParallelCoordinator(3, pool).execute_parallel(range(30), worker, str)

    assert all(r.value for r in results)
    assert pool.get_available_count() == 3


def test_secrets_do_not_show_in_errors() -> None:
    pool = CredentialCoordinator(["very-secret-secret-1"])

    def worker(item: int, key: str | None) -> None:
        raise ValueError(f"401 for {key}")

    _, results = ParallelCoordinator(1, pool).execute_parallel([1], worker, str)

    assert results[0].error == "401 for <secret>"
