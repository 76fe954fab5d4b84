"""Where a run could have gone wrong: each of these once did."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from agentos import (
    CredentialCoordinator,
    JournalUnavailable,
    ParallelCoordinator,
    Progress,
    RateLimited,
    WorkflowResult,
)
from agentos.runs.journal import Journal, RecordedState
from agentos.testing import FakeClock

from ..contract.engine_contract import PATIENCE, eventually

SECRET = "sk-planted-secret-0123456789"


def nothing(item: Any, credential: str | None) -> None: ...


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def go() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread, outcome


def over_while(thread: threading.Thread, clock: FakeClock) -> None:
    """Let time pass until the thread has ended."""
    until = time.monotonic() + PATIENCE
    while thread.is_alive() and time.monotonic() < until:
        thread.join(0.01)
        clock.advance(1)


# -- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", ["item", "call"])
def test_no_secret_is_in_a_result_or_in_the_journal_however_the_key_was_leased(tmp_path: Path, lease: str) -> None:
    pool = CredentialCoordinator([SECRET])

    def worker(item: int, key: str | None) -> str:
        with pool.lease() as held:
            if item == 0:
                raise RuntimeError(f"refused: {held.reveal()}")
            return f"used {held.reveal()}"

    run = ParallelCoordinator(1, pool, lease=lease, journal=tmp_path / "run")
    _, results = run.execute_parallel([0, 1], worker, str)

    assert SECRET not in str(results[0].error)
    assert all(SECRET.encode()[:12] not in path.read_bytes() for path in (tmp_path / "run").iterdir())


def test_a_rule_that_fails_does_not_show_what_the_worker_said(caplog: pytest.LogCaptureFixture) -> None:
    def rule(error: BaseException) -> bool:
        raise error

    def worker(item: int, key: str | None) -> None:
        raise ValueError(f"with {key}")

    pool = CredentialCoordinator([SECRET])
    ParallelCoordinator(1, pool, retry_if=rule).execute_parallel([1], worker, str)

    assert SECRET not in caplog.text


# -- every item in one state --------------------------------------------------------------------------------------


def test_an_item_without_an_id_takes_no_others_place(tmp_path: Path) -> None:
    def id_of(item: dict[str, str]) -> str:
        return item["id"]

    items = [{"id": "item-1"}, {}]
    for given in (iter(items), items):
        run = ParallelCoordinator(1, journal=tmp_path / type(given).__name__)
        stats, results = run.execute_parallel(given, nothing, id_of)

        assert [r.success for r in results] == [True, False]
        journal = Journal.open(tmp_path / type(given).__name__, worker=f"{nothing.__module__}:nothing")
        (hit,) = journal.known.find(["item-1"], journal.ids_at)
        journal.close()
        assert hit is not None
        assert hit.state is RecordedState.DONE
        assert (stats.success_count, stats.failed) == (1, 1)


def test_results_that_could_not_be_recorded_are_not_finished(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def worker(item: int, key: str | None) -> None:
        if item == 2:
            shutil.rmtree(folder)

    run = ParallelCoordinator(1, journal=folder)
    with pytest.raises(JournalUnavailable):
        run.execute_parallel(iter(range(6)), worker, str)

    assert run.stats is not None
    assert str(run.stats.stopped_by).startswith("the journal")
    assert set(run.get_checkpoints()) >= {"2", "3"}


def test_refusals_that_could_not_be_recorded_are_not_finished_either(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def items() -> Iterator[str]:
        yield "a"
        shutil.rmtree(folder)
        yield "a"  # refused, as a duplicate
        yield "b"

    run = ParallelCoordinator(1, journal=folder, on_progress=lambda event: None)
    outcome: list[BaseException] = []
    try:
        run.execute_parallel(items(), nothing, lambda item: item)
    except JournalUnavailable as error:
        outcome.append(error)

    assert outcome
    assert run.stats is not None
    assert run.stats.completed + len(run.get_checkpoints()) == 3


def test_a_strict_start_that_is_never_recorded_keeps_no_key(tmp_path: Path) -> None:
    pool = CredentialCoordinator([SECRET])
    folder = tmp_path / "run"

    def worker(item: int, key: str | None) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    run = ParallelCoordinator(1, pool, journal=folder, start="strict")
    with pytest.raises(JournalUnavailable):
        run.execute_parallel(range(50), worker, str)

    eventually(lambda: pool.get_available_count() == 1)


@pytest.mark.parametrize("value", [{1: "int", "1": "text"}, {"a": [{2: 3, "2": 3}]}])
def test_a_value_that_would_come_back_changed_is_kept_as_its_repr(tmp_path: Path, value: Any) -> None:
    def worker(item: int, key: str | None) -> Any:
        return value

    run = ParallelCoordinator(1, journal=tmp_path / "run")
    run.execute_parallel([1], worker, str)
    _, (cached,) = run.execute_parallel([1], worker, str)

    assert (cached.value, cached.value_repr) == (None, repr(value))


def test_a_value_that_cannot_be_written_down_costs_nobody_anything(tmp_path: Path) -> None:
    class Odd(dict[str, int]):
        def items(self) -> Any:
            raise KeyError("no items")

    def worker(item: int, key: str | None) -> Any:
        return Odd(a=1) if item == 0 else item

    pool = CredentialCoordinator([SECRET])
    stats, _ = ParallelCoordinator(1, pool, journal=tmp_path / "run").execute_parallel(range(3), worker, str)

    assert stats.success_count == 3
    assert pool.get_available_count() == 1


@pytest.mark.parametrize("value", ["x" * 20_000, ["é" * 2_000], {"quotes": '"' * 3_000}])
def test_a_value_too_long_for_the_journal_fails_its_item_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.setattr("agentos.runs.journal.entry_text.LONGEST_ROW", 10_000)
    run = ParallelCoordinator(1, journal=tmp_path / "run")

    def worker(item: int, key: str | None) -> Any:
        return value if item == 1 else "short"

    for _ in range(2):
        _, results = run.execute_parallel([0, 1, 2], worker, str)

        assert {each.item_id: each.value for each in results} == {"0": "short", "1": None, "2": "short"}
        (failed,) = [each for each in results if not each.success]
        assert "cannot be recorded: an entry of" in str(failed.error)
        assert "10,000 at most); write it to a file and return the path of that" in str(failed.error)
        assert failed.attempts == 1
    assert failed.cached


# -- requests and wake-ups ----------------------------------------------------------------------------------------


def test_a_request_recalled_before_it_is_in_line_takes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop comes between the moment a worker decides to wait and the moment it does, and the run is over then."""
    pool = CredentialCoordinator([SECRET])
    held = pool.acquire("somebody else")
    run = ParallelCoordinator(1, pool)
    enqueue = pool._runtime.enqueue
    over = threading.Event()
    available: list[int] = []

    def stop_first(ticket: Any) -> None:
        run.shutdown()
        assert over.wait(PATIENCE)
        enqueue(ticket)
        available.append(pool.get_available_count())

    monkeypatch.setattr(pool._runtime, "enqueue", stop_first)
    stats, _ = run.execute_parallel([1, 2], nothing, str)
    held.release()
    over.set()
    eventually(lambda: available)

    assert stats.stopped_by == "shutdown()"
    assert available == [pool.get_available_count()] == [1], "no key is taken, not even for a moment"
    assert run.get_checkpoints() == ["1", "2"]


def test_a_key_that_is_free_again_is_used_though_the_window_was_empty() -> None:
    """Items come one at a time; the worker that took the last answer is busy, and others must look for more."""
    clock = FakeClock()
    pool = CredentialCoordinator(["cooling-secret-1", "cooling-secret-2"], clock=clock)
    first, second = pool.acquire(), pool.acquire()
    first.rate_limited(10)
    second.rate_limited(20)
    first.release()
    second.release()
    begun: list[int] = []
    go_on = threading.Event()

    def items() -> Iterator[int]:
        for number in range(3):
            time.sleep(0.002)  # slower than a list
            yield number

    def worker(item: int, key: str | None) -> None:
        begun.append(item)
        go_on.wait(PATIENCE)

    run = ParallelCoordinator(3, pool, clock=clock)
    thread, outcome = in_thread(lambda: run.execute_parallel(items(), worker, str))
    clock.wait_for_sleepers(1)
    eventually(lambda: pool.explain("0").state == "waiting")
    clock.advance(10)
    eventually(lambda: len(begun) == 1)
    clock.advance(10)
    eventually(lambda: len(begun) == 2)  # though the first is still at work
    go_on.set()
    over_while(thread, clock)
    assert outcome[0][0].success_count == 3


def test_an_error_whose_text_asks_the_run_something_does_not_stop_it(tmp_path: Path) -> None:
    run = ParallelCoordinator(1, journal=tmp_path / "run")

    class Curious(Exception):
        def __str__(self) -> str:
            return f"{len(run.get_checkpoints())} left"

    def worker(item: int, key: str | None) -> None:
        raise Curious

    thread, outcome = in_thread(lambda: run.execute_parallel(range(3), worker, str))
    thread.join(PATIENCE)

    assert outcome[0][0].failed == 3


# -- the end ------------------------------------------------------------------------------------------------------


def test_a_slow_callback_does_not_hold_up_the_end_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.runs.execution.shutdown._LAST_WORDS", 0.3)
    release = threading.Event()

    def slow(event: Progress) -> None:
        release.wait(0.05)

    began = time.monotonic()
    stats, _ = ParallelCoordinator(3, on_progress=slow).execute_parallel(range(1000), nothing, str)
    took = time.monotonic() - began
    release.set()

    assert stats.success_count == 1000
    assert took < 20  # a thousand times 0.05 s would be 50


def test_when_no_key_can_serve_a_model_the_run_says_so() -> None:
    pool = CredentialCoordinator([SECRET])
    lease = pool.acquire()
    lease.rejected("401")
    lease.release()

    stats, _ = ParallelCoordinator(1, pool, model_func=lambda item: "m").execute_parallel([1, 2], nothing, str)

    assert stats.completed == 0
    assert "no usable credential" in str(stats.stopped_by)


def test_a_stop_that_comes_while_the_journal_is_opened_is_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ParallelCoordinator(1, journal=tmp_path / "run")
    opened = Journal.open

    def stop_meanwhile(*arguments: Any, **options: Any) -> Journal:
        run.shutdown()
        return opened(*arguments, **options)

    monkeypatch.setattr(Journal, "open", stop_meanwhile)
    stats, results = run.execute_parallel(range(5), nothing, str)

    assert (stats.stopped_by, results) == ("shutdown()", [])


def test_an_asynchronous_on_progress_is_refused_and_leaves_no_journal_locked(tmp_path: Path) -> None:
    async def on_progress(event: Progress) -> None: ...

    with pytest.raises(ValueError, match="on_progress must be a plain function"):
        ParallelCoordinator(1, journal=tmp_path / "run", on_progress=on_progress)

    assert ParallelCoordinator(1, journal=tmp_path / "run").execute_parallel([1], nothing, str)[0].success_count == 1


def test_a_cancelled_execute_async_has_closed_its_journal(tmp_path: Path) -> None:
    async def worker(item: int, key: str | None) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        run = ParallelCoordinator(2, journal=tmp_path / "run")
        task = asyncio.create_task(run.execute_async(range(4), worker, str))
        while not run.stats or not run._running or len(run._running[0].state.scheduler.running) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.get_checkpoints() == ["0", "1", "2", "3"]
        again = ParallelCoordinator(2, journal=tmp_path / "run", worker_version=f"{__name__}:" + worker.__qualname__)
        stats, _ = await again.execute_async(range(4), nothing, str)
        assert stats.success_count == 4

    asyncio.run(main())


def test_a_stream_left_in_a_cycle_ends_when_it_is_collected() -> None:
    run = ParallelCoordinator(2)

    class Holder:
        results: Iterator[WorkflowResult]
        me: Holder

    holder = Holder()
    holder.me = holder
    holder.results = run.stream(iter(int, 1), nothing, lambda item: object())
    next(holder.results)
    del holder

    # Again and again: a collection asked for while another thread is in one is none at all.
    eventually(lambda: gc.collect() >= 0 and not run._running)


def test_a_stream_whose_run_has_been_concluded_is_left_in_one_step() -> None:
    """After a second signal its loop may have no other: it is being closed, and the stream was left to it."""

    async def main() -> None:
        coordinator = ParallelCoordinator(1)
        stream = coordinator.stream_async(range(3), nothing, str)
        await anext(stream)
        (run,) = coordinator._running
        coordinator.shutdown(force=True)
        async with asyncio.timeout(PATIENCE):
            while not run.is_over:
                await asyncio.sleep(0)
        run.conclude()

        with pytest.raises(StopIteration):
            stream.aclose().send(None)  # type: ignore[attr-defined]

        assert coordinator._running == []

    asyncio.run(main())


# -- as the original ----------------------------------------------------------------------------------------------


def test_a_subclass_may_raise_the_cap_and_an_attribute_the_number_of_workers() -> None:
    class Wide(ParallelCoordinator):
        MAX_PARALLELISM = 50

    assert Wide(40).max_workers == 40
    run = ParallelCoordinator(1)
    run.max_workers = 4
    together = threading.Barrier(4)

    def worker(item: int, key: str | None) -> None:
        together.wait(PATIENCE)

    assert run.execute_parallel(range(4), worker, str)[0].success_count == 4


@pytest.mark.parametrize("is_async", [False, True])
def test_a_mock_of_the_original_pool_is_a_pool(is_async: bool) -> None:
    """It answers to any name, those of our own pool too."""
    pool = Mock()
    pool.acquire_credential.return_value = "mocked-credential"
    given: list[str | None] = []

    def plain(item: int, key: str | None) -> None:
        given.append(key)

    async def awaited(item: int, key: str | None) -> None:
        given.append(key)

    stats, _ = ParallelCoordinator(2, pool).execute_parallel(range(4), awaited if is_async else plain, str)

    assert stats.success_count == 4
    assert given == ["mocked-credential"] * 4
    assert pool.release_credential.call_count == 4


def test_a_foreign_pool_that_cannot_be_told_of_limits_gets_its_key_back(caplog: pytest.LogCaptureFixture) -> None:
    class Pool:
        def __init__(self) -> None:
            self.free = [SECRET]

        def acquire_credential(self) -> str | None:
            return self.free.pop() if self.free else None

        def release_credential(self, key: str) -> None:
            self.free.append(key)

        def mark_rate_limited(self, key: str, seconds: float) -> None:
            raise KeyError(key)

    clock = FakeClock()
    limited = [True]

    def worker(item: int, key: str | None) -> None:
        if limited:
            limited.clear()
            raise RateLimited(1)

    pool = Pool()
    run = ParallelCoordinator(1, pool, clock=clock)
    with caplog.at_level(logging.DEBUG, "agentos"):
        thread, outcome = in_thread(lambda: run.execute_parallel([1], worker, str))
        over_while(thread, clock)

    assert outcome[0][0].success_count == 1
    assert pool.free == [SECRET]
    assert SECRET not in caplog.text


def test_items_that_wait_for_a_key_are_among_those_that_did_not_finish() -> None:
    """Of an input that is no list, whose items are known only by where they are."""
    coordinator = ParallelCoordinator(2, CredentialCoordinator(["secret-one"]))
    seen: list[list[str]] = []

    def work(item: str, key: str | None) -> None:
        if not seen:  # whichever has the key first
            run = coordinator._running[0]
            eventually(lambda: run.dispatcher.requests)
            seen.append(coordinator.get_checkpoints())

    coordinator.execute_parallel(iter("ab"), work, str)

    assert seen == [["a", "b"]]
