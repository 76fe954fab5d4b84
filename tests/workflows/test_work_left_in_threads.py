"""Work that goes on in a thread when its attempt is over: its credential stays leased until the thread has ended."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentos import CredentialCoordinator, ParallelCoordinator
from agentos.runs.engines.loop_executor import LoopExecutor
from agentos.testing import FakeClock

from ..background_threads import PATIENCE, Background

KEY = "sk-the-only-key-of-the-pool"
ITEM = "the-item"


class Calls:
    """Calls to a provider, each of which lasts until the test ends it; and how many there were at once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gates: list[threading.Event] = []
        self._running = 0
        self.most_at_once = 0

    def call(self, *_: object) -> str:
        gate = threading.Event()
        with self._changed:
            self._gates.append(gate)
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            self._changed.notify_all()
        gate.wait(PATIENCE)
        with self._changed:
            self._running -= 1
            self._changed.notify_all()
        return "answer"

    def wait_begun(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._gates) >= count, PATIENCE), "the call never began"

    def end(self, number: int) -> None:
        self._gates[number].set()

    def end_all(self) -> None:
        for gate in self._gates:
            gate.set()


@pytest.fixture
def calls() -> Any:
    calls = Calls()
    yield calls
    calls.end_all()


def eventually(condition: Callable[[], object]) -> None:
    waited = threading.Event()
    for _ in range(int(PATIENCE / 0.005)):
        if condition():
            return
        waited.wait(0.005)
    raise AssertionError("it did not come to this")


async def in_to_thread(calls: Calls, item: object, _key: str | None) -> str:
    return await asyncio.to_thread(calls.call, item)


async def in_the_loops_executor(calls: Calls, item: object, _key: str | None) -> str:
    return await asyncio.get_running_loop().run_in_executor(None, calls.call, item)


async def in_a_task_of_its_own(calls: Calls, item: object, _key: str | None) -> str:
    return await asyncio.create_task(asyncio.to_thread(calls.call, item))


WAYS = [in_to_thread, in_the_loops_executor, in_a_task_of_its_own]


def execute(run: ParallelCoordinator, worker: Any, *, own_loop: bool) -> Any:
    if own_loop:
        return asyncio.run(run.execute_async([ITEM], worker, str))
    return run.execute_parallel([ITEM], worker, str)


@pytest.mark.parametrize("own_loop", [False, True], ids=["loop of agentos", "loop of the caller"])
@pytest.mark.parametrize("way", WAYS)
def test_the_key_of_an_attempt_that_timed_out_stays_leased_until_its_thread_has_ended(
    calls: Calls, way: Callable[..., Awaitable[str]], own_loop: bool
) -> None:
    clock = FakeClock()
    pool = CredentialCoordinator([KEY], clock=clock, debug=True)
    run = ParallelCoordinator(1, pool, timeout=10, retries=2, clock=clock)
    executed = Background(lambda: execute(run, functools.partial(way, calls), own_loop=own_loop))
    calls.wait_begun(1)

    clock.advance(11)  # the attempt is over, and would be tried again at once
    eventually(lambda: run.stats is not None and run.stats.retried == 1)
    clock.advance(60)  # its rest is over, too

    assert pool.get_stats()["available"] == 0
    calls.end(0)
    calls.wait_begun(2)
    calls.end(1)
    _, results = executed.result()
    assert [result.value for result in results] == ["answer"]
    assert calls.most_at_once == 1
    assert pool.get_stats()["available"] == 1


def test_the_key_of_a_worker_that_returned_stays_leased_until_its_thread_has_ended(calls: Calls) -> None:
    pool = CredentialCoordinator([KEY], debug=True)

    async def worker(item: str, _key: str | None) -> str:
        asyncio.get_running_loop().run_in_executor(None, calls.call)
        return item

    _, results = ParallelCoordinator(1, pool).execute_parallel([ITEM], worker, str)

    assert [result.success for result in results] == [True]
    calls.wait_begun(1)
    assert pool.get_stats()["available"] == 0
    calls.end(0)
    eventually(lambda: pool.get_stats()["available"] == 1)


def test_a_key_is_given_back_at_once_where_no_thread_is_left(calls: Calls) -> None:
    pool = CredentialCoordinator([KEY], debug=True)

    async def worker(_item: str, _key: str | None) -> str:
        return await asyncio.to_thread(str, "done")

    _, results = ParallelCoordinator(1, pool).execute_parallel(range(3), worker, str)

    assert len(results) == 3
    assert pool.get_stats()["available"] == 1


def test_a_call_that_no_thread_has_taken_yet_does_not_keep_the_key(calls: Calls) -> None:
    clock = FakeClock()
    pool = CredentialCoordinator([KEY], clock=clock, debug=True)
    executor = LoopExecutor()
    for _ in range(executor._max_workers):
        executor.submit(calls.call)  # nobody's: all threads are busy

    async def story() -> Any:
        asyncio.get_running_loop().set_default_executor(executor)
        run = ParallelCoordinator(1, pool, timeout=10, retries=0, clock=clock)
        worker = functools.partial(in_to_thread, calls)
        executing = asyncio.create_task(run.execute_async([ITEM], worker, str))
        while not run.get_running():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.advance(11)
        try:
            return await executing
        finally:
            calls.end_all()

    _, results = asyncio.run(story())

    assert [result.success for result in results] == [False]
    assert pool.get_stats()["available"] == 1


def test_an_executor_that_the_caller_gave_its_loop_is_left_alone() -> None:
    async def story() -> object:
        loop = asyncio.get_running_loop()
        mine = ThreadPoolExecutor(1)
        loop.set_default_executor(mine)

        async def worker(item: int, _key: str | None) -> int:
            return await asyncio.to_thread(int, item)

        await ParallelCoordinator(1, CredentialCoordinator([KEY])).execute_async([1], worker, str)
        return loop._default_executor is mine  # type: ignore[attr-defined]

    assert asyncio.run(story())


# -- a forced stop, in a program that goes on ---------------------------------------------------------------------


def passing(clock: FakeClock, seconds: float, until: Background[Any]) -> Callable[[], bool]:
    """Let time pass each time it is asked whether the call has ended."""

    def has_ended() -> bool:
        clock.advance(seconds)
        return not until.running

    return has_ended


def force(run: ParallelCoordinator) -> None:
    run.shutdown(force=True)


def worker_in(kind: str, calls: Calls) -> Any:
    return calls.call if kind == "thread" else functools.partial(in_to_thread, calls)


@pytest.mark.parametrize("kind", ["thread", "to_thread"])
def test_after_a_forced_stop_the_log_names_the_item_whose_worker_still_runs(
    calls: Calls, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = CredentialCoordinator([KEY], debug=True)
    run = ParallelCoordinator(1, pool)
    executed = Background(lambda: run.execute_parallel([ITEM], worker_in(kind, calls), str))
    calls.wait_begun(1)

    with caplog.at_level(logging.WARNING, "agentos"):
        force(run)
        executed.result()

    assert f"{ITEM} was stopped and its worker still runs with key-1" in caplog.text
    assert pool.get_stats()["available"] == 0  # in memory it is free when the thread returns
    calls.end(0)
    eventually(lambda: pool.get_stats()["available"] == 1)


@pytest.mark.parametrize("kind", ["thread", "to_thread"])
def test_after_a_forced_stop_a_shared_store_frees_the_key_of_a_worker_that_never_returns(
    calls: Calls, kind: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    store = f"sqlite:///{tmp_path / 'pool.db'}"
    pool = CredentialCoordinator([KEY], store=store, clock=clock, lease_ttl=60.0, debug=True)
    run = ParallelCoordinator(1, pool, clock=clock)
    executed = Background(lambda: run.execute_parallel([ITEM], worker_in(kind, calls), str))
    calls.wait_begun(1)
    force(run)
    eventually(passing(clock, 0.1, until=executed))  # the time to clean up

    others = CredentialCoordinator([KEY], store=store, clock=clock, lease_ttl=60.0, debug=True)
    got = Background(lambda: others.acquire("another run"))
    eventually(lambda: others.explain("another run").state == "waiting")
    eventually(passing(clock, 10.0, until=got))  # this process renews its session all the while

    assert got.result().held
    assert calls.most_at_once == 1  # the thread never returned


def test_a_worker_that_ended_before_the_forced_stop_is_over_holds_no_key(
    calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    pool = CredentialCoordinator([KEY], debug=True)
    run = ParallelCoordinator(1, pool)

    async def worker(_item: str, _key: str | None) -> None:
        calls._gates.append(threading.Event())
        with calls._changed:
            calls._changed.notify_all()
        await asyncio.sleep(PATIENCE)

    executed = Background(lambda: run.execute_parallel([ITEM], worker, str))
    calls.wait_begun(1)

    with caplog.at_level(logging.WARNING, "agentos"):
        force(run)
        executed.result()

    assert "still runs" not in caplog.text
    assert pool.get_stats()["available"] == 1
