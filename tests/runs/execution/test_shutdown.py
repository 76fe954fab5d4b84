"""A stop is announced and recorded at the right time."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentos import Command, CredentialCoordinator, ParallelCoordinator, WorkflowResult
from agentos.pool.completion_queue import QueuedRequest
from agentos.runs.core.item_scheduler import ItemScheduler
from agentos.runs.core.records import Attempt, Item
from agentos.runs.core.states import ItemStatus, Phase
from agentos.runs.engines.asyncio_tasks import AsyncioEngine
from agentos.runs.engines.executor import ExecutorEngine
from agentos.runs.engines.subprocesses import SubprocessEngine
from agentos.runs.engines.threads import ThreadEngine
from agentos.runs.execution.engine_run import EngineRun
from agentos.runs.execution.journal_writer import JournalRecorder
from agentos.runs.execution.publisher import ResultPublisher
from agentos.runs.execution.run import Run
from agentos.runs.execution.shutdown import Shutdown
from agentos.runs.execution.signal_watcher import WATCH
from tests.runs.core.invariants import l5_results_have_the_current_token

from ...background_threads import PATIENCE, Background
from ...contract.engine_contract import eventually
from ..journal.independent_reader import read


def test_a_forced_stop_is_announced_before_the_phase_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[Phase] = []
    say = Shutdown._announce_stop

    def noted(ending: Shutdown, *told: Any) -> None:
        phases.append(ending._state.scheduler.phase)
        say(ending, *told)

    monkeypatch.setattr(Shutdown, "_announce_stop", noted)
    begun, go = threading.Event(), threading.Event()

    def worker(item: str, key: str | None) -> None:
        begun.set()
        go.wait(PATIENCE)

    run = ParallelCoordinator(1)
    call = Background(lambda: run.execute_parallel(["a"], worker, str))
    assert begun.wait(PATIENCE)

    run.shutdown(force=True)

    stats, _ = call.result()
    go.set()
    assert stats.interrupted == 1
    assert phases == [Phase.DRAINING]


@pytest.mark.parametrize("how", ["done", "failed", "refused"])
def test_the_last_item_is_told_of_before_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    tell = ResultPublisher.announce

    def tell_late(publisher: ResultPublisher, results: Sequence[WorkflowResult]) -> None:
        inside = run._running[0]
        inside.shutdown.finish_if_idle()  # as another worker may, in this very moment
        if inside.is_over:
            inside.shutdown._concluded.wait(PATIENCE)
        tell(publisher, results)

    def work(item: str, key: str | None) -> None:
        if how == "failed":
            raise ValueError(item)

    def cost(item: str) -> dict[str, int]:
        if how == "refused":
            raise ValueError(item)
        return {}

    monkeypatch.setattr(ResultPublisher, "announce", tell_late)
    heard: list[str] = []
    pool = CredentialCoordinator(["a-secret-of-its-own"])
    run = ParallelCoordinator(1, pool, cost_func=cost, on_progress=lambda event: heard.append(event.kind))

    run.execute_parallel(["a"], work, str)

    assert heard == ["run_started", "item_finished", "run_finished"]


def given_up_meanwhile(attempt: Attempt, run: EngineRun) -> None:
    """As the supervisor may, on its own thread, in the moment in which a worker writes down that it begins."""
    supervisor = threading.Thread(target=run.interrupt, args=(attempt,), daemon=True)
    supervisor.start()
    supervisor.join(0.05)  # unless it has to wait until the start is written down


@pytest.mark.parametrize("start", ["queued", "strict"])
@pytest.mark.parametrize("engine", ["threads", "coroutines", "executor"])
def test_the_start_of_an_attempt_is_never_written_down_after_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, start: str, engine: str
) -> None:
    began, confirm_start = JournalRecorder.record_start, JournalRecorder.confirm_start

    begun: list[tuple[JournalRecorder, Attempt]] = []

    def is_given_up() -> bool:
        return begun[0][1].item.state is ItemStatus.INTERRUPTED

    def begin_late(ledger: JournalRecorder, attempt: Attempt) -> None:
        begun.append((ledger, attempt))
        if start == "queued":
            given_up_meanwhile(attempt, run._running[0].attempts)
        began(ledger, attempt)

    def confirm_late(ledger: JournalRecorder, attempt: Attempt, confirmed: Callable[[], None]) -> None:
        given_up_meanwhile(attempt, run._running[0].attempts)
        eventually(is_given_up)
        confirm_start(ledger, attempt, confirmed)

    monkeypatch.setattr(JournalRecorder, "record_start", begin_late)
    monkeypatch.setattr(JournalRecorder, "confirm_start", confirm_late)

    def worker(item: str, key: str | None) -> str:
        eventually(is_given_up)
        begun[0][0]._writer.flush(PATIENCE)  # or the start is left out, because the attempt has ended
        return item

    async def coroutine(item: str, key: str | None) -> str:
        return worker(item, key)

    with ThreadPoolExecutor(1) as executor:
        run = ParallelCoordinator(
            1, journal=tmp_path / "run", start=start, engine=executor if engine == "executor" else None
        )
        stats, _ = run.execute_parallel(["a"], coroutine if engine == "coroutines" else worker, str)

    rows = [(entry["kind"], entry["item"], entry["token"]) for entry in read(tmp_path / "run").entries]
    assert stats.interrupted == 1
    assert ("interrupted", "a", 1) in rows
    assert l5_results_have_the_current_token(rows) is None


def test_an_input_that_brings_an_item_while_the_run_is_concluded_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.runs.execution.item_source._SLOW", math.inf)  # the input is asked for all it has
    coordinator = ParallelCoordinator(max_workers=2)
    two_are_taken, go_on = threading.Event(), threading.Event()

    def items() -> Iterator[str]:
        yield from ("a", "b")
        two_are_taken.set()
        go_on.wait(PATIENCE)
        yield "c"

    def one_more_comes(board: ItemScheduler) -> Iterator[Item]:
        for item in waiting(board):
            go_on.set()
            eventually(lambda: [item.id for item in list(board.fresh)] == ["b", "c"])
            yield item

    waiting = ItemScheduler.waiting_items
    monkeypatch.setattr(ItemScheduler, "waiting_items", one_more_comes)

    def worker(item: str, key: str | None) -> None:
        two_are_taken.wait(PATIENCE)
        coordinator.shutdown()

    stats, results = coordinator.execute_parallel(items(), worker, str)

    assert [result.item_id for result in results] == ["a"]
    assert stats.stopped_by == "shutdown()"
    assert coordinator.get_checkpoints() == ["b", "c"]


@pytest.mark.parametrize("main_is_first", [True, False])
def test_nothing_is_raised_in_the_main_thread_once_it_sees_to_the_end_of_the_run_itself(
    monkeypatch: pytest.MonkeyPatch, main_is_first: bool
) -> None:
    """It will raise the error of a second signal when it has cleaned up, not in the midst of that."""
    raised: list[BaseException] = []
    may_raise = threading.Event()
    conclude, conclude_now, close_engine = Shutdown.conclude, Shutdown._conclude, Run.close_engine

    def is_first() -> bool:
        return main_is_first == (threading.current_thread() is threading.main_thread())

    def conclude_in_order(run: Shutdown, **instead: bool) -> None:
        assert is_first() or run._concluding.wait(PATIENCE)
        conclude(run, **instead)

    def conclude_slowly(run: Shutdown) -> None:
        eventually(lambda: run._came_back)
        conclude_now(run)

    def raise_in_main(error: BaseException, signum: int) -> bool:
        raised.append(error)
        may_raise.set()
        return True

    def close_slowly(run: Run) -> None:
        may_raise.wait(0.1)
        close_engine(run)

    monkeypatch.setattr("agentos.runs.execution.shutdown._PATIENCE", 0.0)
    monkeypatch.setattr(Shutdown, "conclude", conclude_in_order)
    monkeypatch.setattr(Shutdown, "_conclude", conclude_slowly)
    monkeypatch.setattr(Run, "close_engine", close_slowly)
    monkeypatch.setattr(WATCH, "raise_in_main", raise_in_main)
    coordinator = ParallelCoordinator(max_workers=1)
    go = threading.Event()

    def worker(item: int, key: str | None) -> None:
        for _ in range(2):
            coordinator._running[0].on_signal(signal.SIGINT)
        go.wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        coordinator.execute_parallel([1], worker, str)

    go.set()
    assert raised == []


def test_the_engine_is_closed_even_if_a_second_signal_is_raised_while_the_run_is_concluded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[ThreadEngine] = []

    def interrupted(run: Shutdown) -> None:
        conclude(run)
        raise KeyboardInterrupt

    conclude = Shutdown.conclude
    monkeypatch.setattr(Shutdown, "conclude", interrupted)
    monkeypatch.setattr(ThreadEngine, "close", lambda engine: closed.append(engine))

    with pytest.raises(KeyboardInterrupt):
        ParallelCoordinator().execute_parallel([1], lambda item, key: item, str)

    assert len(closed) == 1


@pytest.mark.parametrize("way", ["at once", "one by one", "in a loop"])
def test_a_ctrl_c_before_a_run_has_begun_leaves_its_journal_to_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    coordinator = ParallelCoordinator(journal=tmp_path, worker_version="1")

    def echo(item: str, key: str | None) -> str:
        return item

    def run() -> object:
        if way == "at once":
            return coordinator.execute_parallel(["a"], echo, str)
        if way == "one by one":
            return list(coordinator.stream(["a"], echo, str))
        return asyncio.run(coordinator.execute_async(["a"], echo, str))

    def interrupted(run: Run) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WATCH, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run()

    run()
    assert read(tmp_path).states == {"a": "done"}


def test_a_run_that_fails_still_waits_for_a_journal_that_is_slow_to_close(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    coordinator = ParallelCoordinator(journal=tmp_path)
    closed: list[float] = []

    def close_slowly(ledger: JournalRecorder, timeout: float) -> bool:
        closed.append(timeout)
        return len(closed) > 1 and close(ledger, PATIENCE)

    close = JournalRecorder.close
    monkeypatch.setattr(JournalRecorder, "close", close_slowly)

    def worker(item: str, key: str | None) -> str:
        coordinator._running[0].shutdown.on_internal_error(RuntimeError("a fault of our own"))
        return item

    with pytest.raises(RuntimeError, match="a fault of our own"):
        coordinator.execute_parallel(["a"], worker, str)

    assert read(tmp_path).entries[-1]["kind"] == "closed"


class StuckStore(CredentialCoordinator):
    """A pool whose store does not answer when a request is to be taken out of its line."""

    def __init__(self) -> None:
        super().__init__(["secret-one"])
        self.goes_on = threading.Event()
        self.got_a_key_back = threading.Event()
        runtime = self._runtime
        runtime.lease_ttl = 10.0  # as of a store that others use too
        give_back, call_off = runtime.give_back, runtime.cancel

        def tell(grant: Any) -> bool:
            ended = give_back(grant)
            self.got_a_key_back.set()
            return ended

        def stick(ticket: QueuedRequest) -> None:
            self.goes_on.wait(PATIENCE)
            call_off(ticket)

        runtime.give_back, runtime.cancel = tell, stick


def test_a_store_that_does_not_answer_does_not_delay_a_second_signal() -> None:
    pool = StuckStore()
    coordinator = ParallelCoordinator(2, pool)
    told = threading.Event()

    def worker(item: str, key: str | None) -> None:
        run = coordinator._running[0]
        eventually(lambda: run.dispatcher.requests)
        for _ in range(2):
            run.on_signal(signal.SIGINT)
        told.set()
        pool.goes_on.wait(PATIENCE)

    running = Background(lambda: coordinator.execute_parallel(["a", "b"], worker, str))

    assert told.wait(PATIENCE / 2)
    with pytest.raises(KeyboardInterrupt):
        running.result()
    pool.goes_on.set()
    eventually(lambda: not pool._runtime.core.waiting and not pool._runtime.core.leases)
    assert coordinator.get_checkpoints() == ["a", "b"]


def test_a_run_that_has_ended_stands_in_no_line() -> None:
    """Whoever asks the pool next, without waiting, would be told that others are before it."""
    pool = StuckStore()
    coordinator = ParallelCoordinator(2, pool)

    def worker(item: str, key: str | None) -> None:
        run = coordinator._running[0]
        eventually(lambda: run.dispatcher.requests)
        run.stop("somebody")

    running = Background(lambda: coordinator.execute_parallel(["a", "b"], worker, str))
    assert pool.got_a_key_back.wait(PATIENCE)
    running.join(0.05)
    assert running.running

    pool.goes_on.set()
    running.result()
    assert not pool._runtime.core.waiting
    pool.acquire_nowait().release()


@pytest.mark.parametrize(
    ("engine", "step"),
    [
        (AsyncioEngine, "_run_one"),
        (SubprocessEngine, "_run_one"),
        (ThreadEngine, "_run_one"),
        (ExecutorEngine, "_submit"),
    ],
)
def test_what_is_called_off_in_the_moment_in_which_it_begins_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: type[Any], step: str
) -> None:
    begin, finish, close_engine = getattr(engine, step), EngineRun.finish, Run.close_engine
    ran, came_back = tmp_path / "ran", threading.Event()

    def called_off_first(self: Any, attempt: Attempt) -> Any:
        """As by the supervisor of a run that is stopped by force, before it could know whom to tell."""
        self._run.shutdown.stop("somebody", force=True)
        self._run.timers._stop_all(self._run.state.clock.now())
        return begin(self, attempt)

    def noted(run: EngineRun, *how_it_went: Any) -> Any:
        verdict = finish(run, *how_it_went)
        came_back.set()
        return verdict

    def close_later(run: Run) -> None:
        assert came_back.wait(PATIENCE)  # as long as the engine is open, it would be run
        close_engine(run)

    def function(item: str, key: str | None) -> None:
        ran.touch()

    async def coroutine(item: str, key: str | None) -> None:
        ran.touch()

    monkeypatch.setattr(engine, step, called_off_first)
    monkeypatch.setattr(EngineRun, "finish", noted)
    monkeypatch.setattr(Run, "close_engine", close_later)
    workers: dict[type[Any], Any] = {AsyncioEngine: coroutine, SubprocessEngine: Command(["touch", str(ran)])}
    with ThreadPoolExecutor(1) as executor:
        run = ParallelCoordinator(1, engine=executor if engine is ExecutorEngine else None)
        stats, results = run.execute_parallel(["a"], workers.get(engine, function), str)

    assert not ran.exists()
    assert (stats.interrupted, results) == (1, [])
