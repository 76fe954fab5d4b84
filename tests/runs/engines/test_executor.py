"""Items on the user's own executor, in other processes. Behaviour of all engines is tested in tests/contract."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Cause,
    Command,
    Context,
    Credential,
    CredentialCoordinator,
    NoCredentialAvailable,
    NotPicklable,
    ParallelCoordinator,
    ProgressStats,
    WorkflowResult,
)
from agentos.testing import FakeClock

from ...contract import engine_contract as contract
from ..journal import independent_reader
from . import engine_workers
from .sample_executors import PATIENCE, ByHand, CountingThreads, Elsewhere, LosesTheFirst

SECRETS = [f"sk-executor-{number}-0123456789abcdef" for number in range(2)]


def spawned(count: int = 2) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


@contextmanager
def _loky() -> Iterator[Executor]:
    loky = import_module("loky")
    executor = loky.ProcessPoolExecutor(2)
    yield executor
    executor.shutdown(kill_workers=True)


@contextmanager
def _dask() -> Iterator[Executor]:
    """In threads of this process: that items may go anywhere is told with a real cluster elsewhere."""
    distributed = import_module("distributed")
    # Its profiler asks for all frames, in which Python 3.11 may stand still if a thread starts (cpython#106883).
    import_module("dask").config.set({"distributed.worker.profile.enabled": False})
    cluster = distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    )
    with cluster, distributed.Client(cluster) as client, client.get_executor() as executor:
        yield executor


MAKERS: dict[str, Callable[[], AbstractContextManager[Executor]]] = {
    "processes": spawned,
    "loky": _loky,
    "dask": _dask,
}


@pytest.fixture(scope="module", params=MAKERS)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with MAKERS[request.param]() as made:
        yield made


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with spawned(1) as made:
        yield made


@pytest.fixture
def pool() -> CredentialCoordinator:
    return CredentialCoordinator(SECRETS)


@pytest.fixture
def known(pool: CredentialCoordinator, monkeypatch: pytest.MonkeyPatch) -> CredentialCoordinator:
    """The pool, whose secrets can be found by their names."""
    for number, secret in enumerate(SECRETS, 1):
        monkeypatch.setenv(f"KEY_{number}", secret)
    return pool


BY_HAND = contract.Engine("an executor of the test's", coroutines=False, in_loop=False)


def story(run: ParallelCoordinator, items: Any, worker: Any = engine_workers.double) -> contract.Story:
    """A run under way in a thread of its own, while the test acts."""
    return contract.Story(BY_HAND, run, items, worker)


def values(results: list[WorkflowResult]) -> dict[str, Any]:
    return {result.item_id: result.value for result in results}


# -- on all of them -----------------------------------------------------------------------------------------------


def test_values_and_errors_come_home(executor: Executor, known: CredentialCoordinator) -> None:
    run = ParallelCoordinator(3, known, engine=executor)

    stats, results = run.execute_parallel(range(6), engine_workers.three_fails, str)

    failed = [result for result in results if not result.success]
    assert (stats.success_count, stats.failed, stats.stopped_by) == (5, 1, None)
    assert [(r.item_id, r.error, r.metadata["error_type"]) for r in failed] == [("3", "3: no threes", "Picky")]


def test_coroutines_run_there_too(executor: Executor, known: CredentialCoordinator) -> None:
    run = ParallelCoordinator(3, known, engine=executor)

    _, results = run.execute_parallel(range(6), engine_workers.double_later, str)

    assert values(results) == {str(n): 2 * n for n in range(6)}


@pytest.mark.parametrize("worker", [engine_workers.double, engine_workers.double_later], ids=["function", "coroutine"])
def test_a_caller_with_a_loop_waits_on_it(executor: Executor, known: CredentialCoordinator, worker: Any) -> None:
    run = ParallelCoordinator(2, known, engine=executor)

    async def main() -> dict[str, Any]:
        return values([result async for result in run.stream_async(iter(range(5)), worker, str)])

    assert asyncio.run(main()) == {str(n): 2 * n for n in range(5)}


def test_what_a_worker_says_comes_home(
    executor: Executor, known: CredentialCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    run = ParallelCoordinator(1, known, engine=executor, retries=0)

    stats, (result,) = run.execute_parallel([1], engine_workers.say_much, str)

    assert result.value == ("half", result.credential, True)
    assert (result.attempts, stats.limited, stats.retried) == (2, 1, 0)
    assert [r.message for r in caplog.records if r.name == "agentos.worker"] == ["[1] attempt 1", "[1] attempt 2"]
    assert any("rate-limited for 0.0s" in record.message for record in caplog.records)


def test_a_failure_comes_home_with_its_place_and_its_traceback(executor: Executor) -> None:
    _, (result,) = ParallelCoordinator(1, engine=executor).execute_parallel([3], engine_workers.three_fails, str)

    facts = result.metadata
    assert facts["error_type"] == "Picky"
    assert re.fullmatch(r".*engine_workers\.py:\d+ in three_fails", facts["place"])
    lines = facts["traceback"].splitlines()
    assert lines[-2:] == ['    raise Picky(3, "no threes")', "tests.runs.engines.engine_workers.Picky: 3: no threes"]
    assert not any("agentos/runs" in line for line in lines)


def test_a_value_that_cannot_travel_fails_its_item_alone(executor: Executor) -> None:
    _, results = ParallelCoordinator(1, engine=executor).execute_parallel(range(3), engine_workers.give_a_lock, str)

    errors = {result.item_id: result.error for result in results}
    assert (errors["0"], errors["2"]) == (None, None)
    assert "what its worker returned cannot be pickled" in (errors["1"] or "")


def test_an_item_that_cannot_travel_fails_alone(executor: Executor) -> None:
    items = [1, threading.Lock(), 3]

    _, results = ParallelCoordinator(1, engine=executor).execute_parallel(
        items, engine_workers.double, lambda item: str(item) if isinstance(item, int) else "lock"
    )

    errors = {result.item_id: result.error for result in results}
    assert (errors["1"], errors["3"]) == (None, None)
    assert "the item cannot be pickled" in (errors["lock"] or "")


def test_what_is_done_is_not_done_again(executor: Executor, tmp_path: Path) -> None:
    first = ParallelCoordinator(2, engine=executor, journal=tmp_path / "run", start="strict")
    first.execute_parallel(range(4), engine_workers.double, str)

    stats, results = ParallelCoordinator(2, engine=executor, journal=tmp_path / "run").execute_parallel(
        range(6), engine_workers.double, str
    )

    assert stats.cached == 4
    assert values(results) == {str(n): 2 * n for n in range(6)}


# -- threads of this process --------------------------------------------------------------------------------------


def test_on_threads_nothing_has_to_travel(pool: CredentialCoordinator) -> None:
    lock = threading.Lock()

    def closure(item: object, credential: str | None) -> object:
        return item, lock

    with ThreadPoolExecutor(2) as executor:
        _, (result,) = ParallelCoordinator(2, pool, engine=executor).execute_parallel([lock], closure, lambda _: "lock")

    assert result.value == (lock, lock)


def test_a_coroutine_on_threads_has_a_live_context_and_the_lease_of_its_item(pool: CredentialCoordinator) -> None:
    async def borrow(item: int, credential: str | None, context: Context) -> tuple[bool, bool]:
        async with pool.lease() as lease:
            return lease.reveal() == credential, context.lease is lease

    with ThreadPoolExecutor(2) as executor:
        _, results = ParallelCoordinator(2, pool, engine=executor).execute_parallel(range(4), borrow, str)

    assert [result.value for result in results] == [(True, True)] * 4


def test_a_coroutine_that_nobody_awaits_fails_its_item_there_too() -> None:
    async def forget(item: int, credential: str | None) -> Any:
        return engine_workers.double_later(item, credential)

    with ThreadPoolExecutor(1) as executor:
        run = ParallelCoordinator(1, engine=executor)
        _, (plain,) = run.execute_parallel(
            [1], lambda item, credential: engine_workers.double_later(item, credential), str
        )
        _, (awaited,) = run.execute_parallel([1], forget, str)

    assert "declared `async def`" in (plain.error or "")
    assert (awaited.success, awaited.attempts) == (False, 1)
    assert (awaited.error or "").endswith("a coroutine that was not awaited: write `await` before the call")


# -- secrets ------------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere() as made:
        yield made


def test_processes_of_this_machine_get_the_secret_without_asking(processes: Executor) -> None:
    pool = CredentialCoordinator(SECRETS[:1])

    _, (result,) = ParallelCoordinator(1, pool, engine=processes).execute_parallel([1], engine_workers.give_all, str)

    assert result.value == (1, SECRETS[0])


def test_elsewhere_the_secret_is_found_by_name_and_does_not_travel(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_KEY_1", SECRETS[0])
    pool = CredentialCoordinator([Credential(SECRETS[0], name="acme-key-1")])

    _, (result,) = ParallelCoordinator(1, pool, engine=elsewhere).execute_parallel([1], engine_workers.give_all, str)

    assert result.value == (1, SECRETS[0])
    assert not any(SECRETS[0].encode() in sent for sent in elsewhere.sent)


def test_a_secret_that_is_missing_there_stops_the_run_and_fails_nothing(
    elsewhere: Elsewhere, pool: CredentialCoordinator
) -> None:
    run = ParallelCoordinator(1, pool, engine=elsewhere)

    stats, results = run.execute_parallel(range(20), engine_workers.double, str)

    assert (results, stats.failed, stats.cause) == ([], 0, Cause.FAULT)
    assert "the credential key-1 was not found" in (stats.stopped_by or "")
    assert "ship_secrets=True" in (stats.stopped_by or "")
    assert len(run.get_checkpoints()) == 20


def test_a_dask_executor_without_client_names_the_client_when_a_secret_is_missing(
    pool: CredentialCoordinator,
) -> None:
    executor = type("ClientExecutor", (Elsewhere,), {"__module__": "distributed.cfexecutor"})()

    with executor:
        stats, _ = ParallelCoordinator(1, pool, engine=executor).execute_parallel([1], engine_workers.double, str)

    assert "or give engine=<the Client> in place of" in (stats.stopped_by or "")


def test_it_travels_when_that_is_asked_for_and_shows_itself_nowhere(elsewhere: Elsewhere) -> None:
    pool = CredentialCoordinator(SECRETS[:1])
    run = ParallelCoordinator(1, pool, engine=elsewhere, ship_secrets=True)

    _, (result,) = run.execute_parallel([{"a": "private item"}], engine_workers.give_all, lambda item: "an-id")

    assert result.value == ({"a": "private item"}, SECRETS[0])
    assert "an-id" in elsewhere.shown
    assert SECRETS[0] not in elsewhere.shown
    assert "private" not in elsewhere.shown


def test_a_dask_executor_without_client_gets_no_secrets(
    pool: CredentialCoordinator,
) -> None:
    kind = type("ClientExecutor", (ByHand,), {"__module__": "distributed.cfexecutor"})
    executor = kind()

    with pytest.raises(ValueError, match=r"^ship_secrets: .* through its scheduler.*engine=<the Client>"):
        ParallelCoordinator(1, pool, engine=executor, ship_secrets=True).execute_parallel(
            [1], engine_workers.double, str
        )

    assert executor.taken == []


def test_with_a_lease_for_each_call_the_worker_gets_none(elsewhere: Elsewhere, pool: CredentialCoordinator) -> None:
    run = ParallelCoordinator(1, pool, engine=elsewhere, lease="call")

    _, (result,) = run.execute_parallel([1], engine_workers.give_all, str)

    assert result.value == (1, None)


# -- Dask's own ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    with _dask() as made:
        yield made


def test_a_dask_executor_gets_worker_slots_and_no_items(dask: Executor) -> None:
    """Its scheduler runs again what a dying worker had, and asks nobody: a seat may be run twice, an item may not."""
    _, results = ParallelCoordinator(2, engine=dask).execute_parallel(range(4), engine_workers.task_of_dask, str)

    assert [str(result.value).startswith("agentos-seat-") for result in results] == [True] * 4, values(results)


def test_dasks_own_may_have_secrets_for_they_do_not_pass_its_scheduler(dask: Executor) -> None:
    run = ParallelCoordinator(1, CredentialCoordinator(SECRETS[:1]), engine=dask, ship_secrets=True)

    _, (result,) = run.execute_parallel([1], engine_workers.give_all, str)

    assert result.value == (1, SECRETS[0])


def test_dasks_own_runs_commands_too(dask: Executor) -> None:
    stats, _ = ParallelCoordinator(1, engine=dask).execute_parallel([1], Command(["true"]), str)

    assert stats.success_count == 1


# -- how much it is given -----------------------------------------------------------------------------------------


def test_a_key_that_is_in_use_on_an_unknown_executor_does_not_come_free_with_the_process(tmp_path: Path) -> None:
    """Nobody there can be told to stop: its lease runs out by its time."""
    store, clock = f"sqlite:///{tmp_path / 'pool.db'}", FakeClock()
    ours, others = (CredentialCoordinator(SECRETS[:1], store=store, clock=clock) for _ in range(2))
    executor = ByHand()
    coordinator = ParallelCoordinator(1, ours, engine=executor, ship_secrets=True)
    with ThreadPoolExecutor(1) as aside:
        running = aside.submit(coordinator.execute_parallel, [1], engine_workers.double, str)
        executor.wait_for(1)
        assert ours._runtime.store is not None

        ours._runtime.store.leave()
        with pytest.raises(NoCredentialAvailable):
            others.acquire_nowait()
        clock.advance(ours.lease_ttl or 0.0)
        lease = others.acquire_nowait()

        executor.run(1)
        running.result(PATIENCE)
    assert lease.held
    others.close()


def test_it_never_has_more_than_the_run_has_workers(elsewhere: Elsewhere) -> None:
    run = ParallelCoordinator(3, engine=elsewhere)

    stats, _ = run.execute_parallel(range(60), engine_workers.double, str)

    assert stats.success_count == 60
    assert elsewhere.most <= 3


def test_nor_more_than_it_can_run_where_that_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """What waits in its queue would hold a credential for nothing, and its timeout would run."""
    two = threading.Barrier(2)

    def meet(_item: int, _credential: str | None) -> None:
        two.wait(PATIENCE)

    with CountingThreads(2) as executor, caplog.at_level(logging.INFO, "agentos"):
        stats, _ = ParallelCoordinator(8, engine=executor).execute_parallel(range(50), meet, str)

    assert (stats.success_count, executor.most) == (50, 2)
    assert "the executor has 2 workers" in caplog.text


def test_it_is_left_open_for_its_owner(elsewhere: Elsewhere) -> None:
    ParallelCoordinator(2, engine=elsewhere).execute_parallel(range(3), engine_workers.double, str)

    assert not elsewhere.closed
    assert elsewhere.submit(os.getpid).result() == os.getpid()


def test_an_input_that_takes_its_time_does_not_hold_up_what_runs(elsewhere: Elsewhere) -> None:
    seen: list[str] = []
    first_is_done = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        assert first_is_done.wait(PATIENCE), "the first result did not come"
        yield 2

    for result in ParallelCoordinator(2, engine=elsewhere).stream(items(), engine_workers.double, str):
        seen.append(result.item_id)
        first_is_done.set()

    assert seen == ["1", "2"]


# -- what it cannot do --------------------------------------------------------------------------------------------


def test_commands_are_refused(elsewhere: Elsewhere) -> None:
    with pytest.raises(ValueError, match=r"^engine: an executor runs functions and coroutines, not commands"):
        ParallelCoordinator(engine=elsewhere).execute_parallel([1], Command(["true"]), str)


def test_a_worker_that_cannot_travel_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, processes: Executor
) -> None:
    monkeypatch.delitem(sys.modules, "cloudpickle", raising=False)

    def local(item: int, credential: str | None) -> None: ...

    with pytest.raises(NotPicklable, match=r"^the worker function cannot be pickled"):
        ParallelCoordinator(engine=processes).execute_parallel([1], local, str)


def test_a_call_that_cannot_be_is_no_run_that_stops(
    elsewhere: Elsewhere, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = ParallelCoordinator(engine=elsewhere, journal=tmp_path / "run")

    with caplog.at_level(logging.INFO), pytest.raises(ValueError, match="not commands"):
        run.execute_parallel([1], Command(["true"]), str)

    assert [record for record in caplog.records if record.name.startswith("agentos")] == []
    assert not (tmp_path / "run").exists()


# -- when it breaks -----------------------------------------------------------------------------------------------


def test_a_process_that_dies_ends_the_run_and_another_executor_goes_on(tmp_path: Path) -> None:
    def run(executor: Executor, worker: Any) -> tuple[ProgressStats, list[WorkflowResult]]:
        made = ParallelCoordinator(1, engine=executor, journal=tmp_path / "run", worker_version="1")
        return made.execute_parallel(range(4), worker, str)

    with spawned(1) as executor:
        stats, results = run(executor, engine_workers.kill_process)
    states = independent_reader.read(tmp_path / "run").states

    assert (values(results), stats.cause) == ({"0": 0}, Cause.FAULT)
    assert "an executor that cannot be used (BrokenProcessPool" in (stats.stopped_by or "")
    assert "start the run again with another: with a journal it continues where it stopped" in (stats.stopped_by or "")
    assert (states["0"], states["1"]) == ("done", "interrupted")
    with Elsewhere() as another:
        stats, results = run(another, engine_workers.double)
    assert (values(results), stats.cached) == ({"0": 0, "1": 2, "2": 4, "3": 6}, 1)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("cannot schedule new futures after shutdown"), BrokenExecutor("gone\n\nfor good\n")],
    ids=["shut", "broken"],
)
def test_one_that_takes_nothing_ends_the_run_and_fails_no_item(error: Exception) -> None:
    run = ParallelCoordinator(2, engine=ByHand(refuse=error))

    stats, results = run.execute_parallel(range(5), engine_workers.double, str)

    assert (results, stats.failed, stats.cause) == ([], 0, Cause.FAULT)
    assert " ".join(str(error).split()) in (stats.stopped_by or "")
    assert run.get_checkpoints() == ["0", "1", "2", "3", "4"]


def test_what_its_owner_cancels_is_interrupted(pool: CredentialCoordinator) -> None:
    executor = ByHand()
    under_way = story(ParallelCoordinator(1, pool, engine=executor, ship_secrets=True), range(3))

    executor.wait_for(1).cancel()
    stats, results = under_way.end()

    assert (results, stats.interrupted, stats.cause) == ([], 1, Cause.FAULT)


def test_a_machine_without_agentos_ends_the_run(pool: CredentialCoordinator) -> None:
    executor = ByHand()
    under_way = story(ParallelCoordinator(1, pool, engine=executor, ship_secrets=True), range(3))

    executor.wait_for(1).set_exception(ModuleNotFoundError("No module named 'agentos'"))
    stats, _ = under_way.end()

    assert (stats.failed, stats.cause) == (0, Cause.FAULT)
    assert "No module named 'agentos'" in (stats.stopped_by or "")


def test_what_it_loses_is_tried_again() -> None:
    executor, clock = LosesTheFirst(), FakeClock()
    run = ParallelCoordinator(1, engine=executor, retries=1, clock=clock)

    stats, (result,) = contract.Story(BY_HAND, run, [4], engine_workers.double, clock).end()

    assert (result.value, result.attempts, stats.retried) == (8, 2, 1)


def test_what_it_loses_every_time_fails_and_says_how() -> None:
    executor = ByHand()
    under_way = story(ParallelCoordinator(1, engine=executor, retries=0), [4])

    executor.wait_for(1).set_exception(OSError("the node is gone"))
    _, (result,) = under_way.end()

    assert result.error == "the executor lost it: OSError: the node is gone"
    assert result.metadata["error_type"] == "WorkerLost"


# -- stopping -----------------------------------------------------------------------------------------------------


def test_what_has_not_begun_is_taken_back_by_a_forced_stop(pool: CredentialCoordinator) -> None:
    gate = threading.Event()
    with ThreadPoolExecutor(2) as executor:
        taken = [executor.submit(gate.wait, PATIENCE) for _ in range(2)]  # its owner has other things to do
        run = ParallelCoordinator(2, pool, engine=executor)
        under_way = story(run, range(5))
        contract.eventually(lambda: len(run.get_running()) == 2)

        run.shutdown(force=True)
        stats, results = under_way.end()
        leases = [row.leases for row in pool.snapshot()]
        gate.set()

    assert (results, stats.interrupted, leases) == ([], 2, [0, 0])
    assert all(future.result() for future in taken)


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "as it seems not begun"])
def test_elsewhere_a_forced_stop_leaves_behind_what_may_run_and_its_key_with_it(
    pool: CredentialCoordinator, begun: bool
) -> None:
    executor = ByHand()
    run = ParallelCoordinator(1, pool, engine=executor, ship_secrets=True)
    under_way = story(run, range(3))
    future = executor.wait_for(1)
    if begun:
        future.set_running_or_notify_cancel()

    run.shutdown(force=True)
    stats, results = under_way.end()

    assert (results, stats.interrupted, future.cancelled()) == ([], 1, False)
    assert sum(row.leases for row in pool.snapshot()) == 1
    executor.run(1)
    contract.eventually(lambda: sum(row.leases for row in pool.snapshot()) == 0)


def test_a_stop_waits_for_what_runs() -> None:
    executor = ByHand()
    run = ParallelCoordinator(1, engine=executor)
    under_way = story(run, range(5))
    executor.wait_for(1)

    run.shutdown()
    executor.run(1)
    stats, results = under_way.end()

    assert (values(results), stats.stopped_by) == ({"0": 0}, "shutdown()")


def test_what_comes_back_too_late_is_evidence_and_gives_its_key_back_then(
    tmp_path: Path, pool: CredentialCoordinator
) -> None:
    executor, clock = ByHand(), FakeClock()
    run = ParallelCoordinator(
        1, pool, engine=executor, ship_secrets=True, timeout=10, clock=clock, journal=tmp_path / "run"
    )
    under_way = story(run, [1, 2])
    executor.wait_for(1).set_running_or_notify_cancel()
    clock.wait_for_sleepers(1)

    clock.advance(10.0)
    executor.wait_for(2).set_running_or_notify_cancel()  # another place was made
    assert sum(row.leases for row in pool.snapshot()) == 2
    executor.run(1)
    executor.run(2)
    _, results = under_way.end()

    errors = {result.item_id: (result.value, result.error) for result in results}
    assert errors["2"] == (4, None)
    assert "timed out after 10s; its worker could not be stopped" in str(errors["1"][1])
    late = [entry for entry in independent_reader.read(tmp_path / "run").entries if entry["kind"] == "late"]
    assert [(entry["item"], entry["value"]) for entry in late] == [("1", "2")]
    assert sum(row.leases for row in pool.snapshot()) == 0


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "as it seems not begun"])
def test_elsewhere_what_takes_too_long_keeps_its_key_whatever_its_future_says(
    pool: CredentialCoordinator, begun: bool
) -> None:
    """Futures of a cluster may let themselves be cancelled while their call goes on."""
    executor, clock = ByHand(), FakeClock()
    run = ParallelCoordinator(1, pool, engine=executor, ship_secrets=True, timeout=10, retries=0, clock=clock)
    under_way = story(run, [1])
    future = executor.wait_for(1)
    if begun:
        future.set_running_or_notify_cancel()
    clock.wait_for_sleepers(1)

    clock.advance(10.0)
    _, (result,) = under_way.end()

    assert "could not be stopped" in (result.error or "")
    assert sum(row.leases for row in pool.snapshot()) == 1
    executor.run(1)
    contract.eventually(lambda: sum(row.leases for row in pool.snapshot()) == 0)


def test_items_that_do_not_return_keep_their_place_in_an_executor_that_has_no_other() -> None:
    clock, begun, gate = FakeClock(), threading.Event(), threading.Event()

    def block(item: int, credential: str | None) -> None:
        begun.set()
        gate.wait(PATIENCE)

    with ThreadPoolExecutor(1) as executor:
        under_way = story(ParallelCoordinator(2, engine=executor, timeout=10, clock=clock), range(3), block)
        assert begun.wait(PATIENCE)
        clock.wait_for_sleepers(1)
        clock.advance(10.0)
        stats, _ = under_way.end()
        gate.set()

    assert (stats.failed, stats.cause) == (1, Cause.FAULT)
    assert "hold every worker of the executor" in (stats.stopped_by or "")


def test_an_attempt_shows_nothing_of_itself_when_it_is_pickled_by_name_only(elsewhere: Elsewhere) -> None:
    ParallelCoordinator(1, engine=elsewhere).execute_parallel(["x"], engine_workers.give_all, str)

    function, (_, assignment, is_async), _ = pickle.loads(elsewhere.sent[0])
    assert (function.__name__, repr(assignment), is_async) == ("agentos_item", "<assignment x attempt 1>", False)
