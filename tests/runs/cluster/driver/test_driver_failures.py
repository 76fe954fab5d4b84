"""The driver's behaviour when a part of it or a worker slot fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentos import CredentialCoordinator, ParallelCoordinator
from agentos.runs.cluster.driver.driver_server import DriverServer
from agentos.runs.cluster.driver.engine import TIME_TO_END, ClusterEngine
from agentos.runs.cluster.driver.worker_process import WorkerProcess
from agentos.runs.cluster.wire.messages import Channel
from agentos.runs.execution.engine_run import EngineRun
from agentos.runs.output.capture import ItemOutput
from agentos.runs.remote.assignment import AssignmentBuilder
from agentos.testing import FakeClock

from .. import cluster_workers
from ..background_call import Aside
from ..local_slots import WAIT, Proxy, ThreadSeating
from .test_cluster_engine import SECRETS, eventually, is_alive, kinds, leased_of, run, shell

Use = Callable[..., ThreadSeating]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seats are let go soon."""
    monkeypatch.setattr("agentos.runs.cluster.driver.driver_server._UNUSED_TIMEOUT", 0.2)


# -- without a seat -------------------------------------------------------------------------------------------------


def test_a_run_with_nothing_to_do_ends_though_no_seat_ever_comes(seating: Use) -> None:
    seating(place=False)

    stats, results = run([], cluster_workers.doubled)

    assert (stats.success_count, results) == (0, {})


def test_a_run_whose_items_are_all_done_ends_though_no_seat_ever_comes(seating: Use, tmp_path: Path) -> None:
    seating()
    run([1, 2], cluster_workers.doubled, journal=tmp_path / "run")
    seating(place=False)

    stats, results = run([1, 2], cluster_workers.doubled, journal=tmp_path / "run")

    assert stats.cached == 2
    assert results["2"].value == 4


def test_a_run_that_waits_for_its_reader_goes_on_though_no_seat_ever_comes(
    seating: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentos.runs.execution.dispatcher.CHUNK", 1)
    items = list(range(30))
    seating()
    run(items, cluster_workers.doubled, journal=tmp_path / "run")
    seating(place=False)
    monkeypatch.setattr("agentos.runs.execution.publisher._MAX_UNPUBLISHED", 4)

    results = ParallelCoordinator(2, journal=tmp_path / "run").stream(items, cluster_workers.doubled, str)

    assert [result.value for result in results] == [2 * item for item in items]


def test_an_attempt_whose_seat_is_gone_gives_its_key_back_and_has_not_begun(
    seating: Use, aside: Aside, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = seating()
    pool = CredentialCoordinator(SECRETS[:1])
    cut = threading.Event()
    carry_out = ClusterEngine._run_on_worker

    def cut_off_first(self: ClusterEngine, hub: DriverServer, ask: Any, attempt: Any) -> Any:
        if not cut.is_set():
            hub._calls.call(withdraw, hub, ask.worker)
            hub._calls.call(cut.set)
            assert cut.wait(WAIT)
        return carry_out(self, hub, ask, attempt)

    monkeypatch.setattr(ClusterEngine, "_run_on_worker", cut_off_first)
    running = aside.submit(
        run, ["a"], cluster_workers.with_secret, workers=1, pool=pool, journal=tmp_path / "run", retries=0
    )
    assert cut.wait(WAIT)
    given_back = eventually(lambda: not leased_of(pool))
    places.add_slot()
    _, results = running.result(WAIT)

    assert given_back
    assert results["a"].success
    assert results["a"].attempts == 1


def withdraw(hub: DriverServer, member: WorkerProcess) -> None:
    """As when its connection breaks."""
    hub._requests.withdraw(member)
    member.requests.clear()


def test_an_attempt_that_nobody_wants_any_more_is_not_handed_out(
    seating: Use, monkeypatch: pytest.MonkeyPatch, aside: Aside
) -> None:
    """It is given up in the moment between its beginning and its way to the seat."""
    seating()
    coordinator = ParallelCoordinator(1)
    handed: list[Any] = []
    begun, over = threading.Event(), threading.Event()
    assignment = AssignmentBuilder.build

    def wait_for_the_end(self: AssignmentBuilder, attempt: Any) -> Any:
        begun.set()
        assert over.wait(WAIT)
        return assignment(self, attempt)

    monkeypatch.setattr(AssignmentBuilder, "build", wait_for_the_end)
    monkeypatch.setattr(DriverServer, "assign", lambda _hub, _ask, errand: handed.append(errand))
    running = aside.submit(coordinator.execute_parallel, [1], cluster_workers.doubled, str)
    assert begun.wait(WAIT)
    coordinator.shutdown(force=True)
    stats, _ = running.result(WAIT)
    over.set()
    ended = eventually(lambda: not any(thread.name == "agentos-worker-1" for thread in threading.enumerate()))

    assert ended
    assert stats.interrupted == 1
    assert handed == []


@pytest.mark.parametrize("start", ["queued", "strict"])
def test_an_attempt_that_the_run_stopped_on_its_way_to_a_seat_is_not_interrupted(
    seating: Use, monkeypatch: pytest.MonkeyPatch, aside: Aside, tmp_path: Path, start: Any
) -> None:
    seating()
    coordinator = ParallelCoordinator(1, journal=tmp_path / "run", start=start)
    begun, stopped = threading.Event(), threading.Event()
    check = EngineRun.check_still_wanted

    def wait_for_the_stop(self: EngineRun, attempt: Any) -> None:
        begun.set()
        assert stopped.wait(WAIT)
        check(self, attempt)

    monkeypatch.setattr(EngineRun, "check_still_wanted", wait_for_the_stop)
    running = aside.submit(coordinator.execute_parallel, [1], cluster_workers.doubled, str)
    assert begun.wait(WAIT)
    coordinator.shutdown()
    stopped.set()
    stats, _ = running.result(WAIT)

    assert (stats.interrupted, stats.unfinished) == (0, 1)


def test_nothing_begins_while_the_hub_holds(
    seating: Use, gates: cluster_workers.Gates, aside: Aside, tmp_path: Path
) -> None:
    places = seating()
    pool = CredentialCoordinator(SECRETS)
    coordinator = ParallelCoordinator(2, pool, journal=tmp_path / "run", ship_secrets=True)

    running = aside.submit(coordinator.execute_parallel, list("abcdef"), cluster_workers.waits_for_gate, str)
    for _ in range(2):
        assert gates.arrived.acquire(timeout=WAIT)
    hub = places.hub
    assert hub is not None
    hub.pause(True)
    gates.go_on.set()
    all_wait = eventually(lambda: hub.count_waiting() == 2)
    leased = leased_of(pool)
    coordinator.shutdown()
    stats, _ = running.result(WAIT)

    assert all_wait
    assert leased == 0
    assert (stats.success_count, stats.interrupted, stats.unfinished) == (2, 0, 4)
    assert "interrupted" not in kinds(tmp_path / "run")


def test_a_driver_that_can_start_no_thread_says_so(seating: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    seating(place=False)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("agentos-worker"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        run([1], cluster_workers.doubled)


# -- seats without work ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2])
def test_seats_without_work_are_let_go_and_placed_again_when_there_is_some(
    seating: Use, aside: Aside, impatient: None, width: int
) -> None:
    places = seating(width=width)
    pool = CredentialCoordinator(SECRETS[:1])
    lease = pool.acquire()

    running = aside.submit(
        run, [1, 2, 3], cluster_workers.doubled_later if width > 1 else cluster_workers.doubled, pool=pool
    )
    assert places.placed.wait(WAIT)
    left = eventually(lambda: not places.taken)
    lease.release()
    stats, _ = running.result(WAIT)

    assert left
    assert (stats.success_count, stats.retried, stats.failed) == (3, 0, 0)


def test_a_seat_with_work_stays_while_those_without_leave(
    seating: Use, gates: cluster_workers.Gates, aside: Aside, impatient: None
) -> None:
    places = seating()
    pool = CredentialCoordinator(SECRETS[:1])

    running = aside.submit(run, ["a", "b"], cluster_workers.waits_for_gate, pool=pool, workers=2)
    assert gates.arrived.acquire(timeout=WAIT)
    left = eventually(lambda: places.taken == 1)
    gates.go_on.set()
    stats, _ = running.result(WAIT)

    assert left
    assert stats.success_count == 2


def test_a_key_that_comes_while_there_is_no_seat_is_not_kept(
    seating: Use, aside: Aside, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = seating()
    pool = CredentialCoordinator(SECRETS[:1])
    lease = pool.acquire()
    needed = threading.Event()

    running = aside.submit(run, [1, 2], cluster_workers.doubled, pool=pool)
    assert places.placed.wait(WAIT)
    assert eventually(lambda: not places.taken)
    monkeypatch.setattr(places, "request_slots", needed.set)
    lease.release()
    assert needed.wait(WAIT)
    kept = leased_of(pool)
    places.add_slot()
    stats, _ = running.result(WAIT)

    assert kept == 0
    assert stats.success_count == 2


def test_all_workers_have_seats_again_when_there_is_work_for_all_of_them(
    seating: Use, gates: cluster_workers.Gates, aside: Aside, impatient: None
) -> None:
    places = seating()
    pool = CredentialCoordinator(SECRETS)
    leases = [pool.acquire() for _ in SECRETS]

    running = aside.submit(run, ["a", "b"], cluster_workers.waits_for_gate, pool=pool)
    assert places.placed.wait(WAIT)
    assert eventually(lambda: not places.taken)
    for lease in leases:
        lease.release()
    arrived = [gates.arrived.acquire(timeout=WAIT) for _ in leases]
    gates.go_on.set()
    running.result(WAIT)

    assert arrived == [True, True]


# -- what is heard --------------------------------------------------------------------------------------------------


def test_a_command_whose_output_cannot_be_kept_is_ended_before_its_key_is_given_back(
    seating: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seating()
    mark = tmp_path / "pid"

    def full(_output: ItemOutput, _stream: str, _data: bytes) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(ItemOutput, "write", full)
    script = f"echo $$ > {mark}; echo something; exec sleep 60"

    _, results = run(["x"], shell(script, kill_after=0.2), retries=0)

    assert results["x"].error == "no space left"
    assert not is_alive(int(mark.read_text()))


def test_what_cannot_be_read_of_what_a_worker_says_does_not_end_its_attempt(
    seating: Use, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seating()
    monkeypatch.setattr("agentos.runs.cluster.worker.slot._send_message", tell_nonsense)
    pool = CredentialCoordinator(SECRETS[:1])

    _, results = run(["a"], cluster_workers.told_all, pool=pool, retries=0)

    assert results["a"].success
    assert "a message of a cannot be read" in caplog.text


def tell_nonsense(link: Any, handed: Any, _thing: Any) -> None:
    link.send_data(handed, Channel.MESSAGE, b"no pickle")


def test_a_late_result_is_evidence_though_the_driver_has_not_yet_seen_that_its_worker_was_lost(
    seating: Use,
    proxy: Proxy,
    gates: cluster_workers.Gates,
    aside: Aside,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    places = seating(through=proxy)
    held = threading.Event()

    class Held(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            held.wait(WAIT)

    handler = Held()
    logging.getLogger("agentos.worker").addHandler(handler)
    try:
        running = aside.submit(run, ["a"], cluster_workers.logs_then_first_waits, workers=1, journal=tmp_path / "run")
        assert gates.arrived.acquire(timeout=WAIT)
        proxy.shut = True
        proxy.cut()
        places.lose_driver()
        places.lose_workers()
        lost = eventually(lambda: "attempts lost with it" in caplog.text)
        gates.go_on.set()
        proxy.shut = False
        late = eventually(lambda: "late" in kinds(tmp_path / "run"))
    finally:
        held.set()
        logging.getLogger("agentos.worker").removeHandler(handler)
        places.add_slot()
    running.result(WAIT)

    assert lost
    assert late


def test_a_coroutine_that_overruns_on_a_lost_worker_is_lost_and_not_left_behind(
    seating: Use, proxy: Proxy, gates: cluster_workers.Gates, aside: Aside
) -> None:
    places, clock = seating(through=proxy), FakeClock()

    running = aside.submit(run, ["a"], cluster_workers.never_ends, workers=1, retries=0, timeout=30.0, clock=clock)
    assert gates.arrived.acquire(timeout=WAIT)
    assert places.hub is not None
    ((errand, _),) = places.hub._attempts.values()
    proxy.shut = True
    proxy.cut()
    clock.advance(30.0)
    assert eventually(lambda: errand.kill_unconfirmed)
    clock.wait_for_sleepers(1)
    clock.advance(2 * TIME_TO_END)
    clock.wait_for_sleepers(1)  # it was looked at once more, and is not left behind
    places.lose_workers()
    _, results = running.result(WAIT)

    assert results["a"].metadata["error_type"] == "WorkerLost"
