"""The worker's end of a link: what it does with its items when the driver, the network or they themselves misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentos import CredentialCoordinator
from agentos.runs.cluster.worker import client as link_module
from agentos.runs.cluster.worker import slot
from agentos.runs.cluster.worker.assigned_attempt import AssignedAttempt
from agentos.runs.cluster.worker.client import DriverEndpoint
from agentos.runs.remote.assignment import Assignment
from agentos.runs.remote.attempt_report import AttemptReport
from agentos.runs.remote.pickled import pack
from agentos.testing import FakeClock

from .. import cluster_workers
from ..background_call import Aside
from ..driver.test_cluster_engine import SECRETS, eventually, run, shell
from ..driver.test_driver_server import IDENTITY
from ..local_slots import WAIT, Proxy, ThreadSeating

Use = Callable[..., ThreadSeating]


# -- every attempt is reported on -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worker", "verb"),
    [(cluster_workers.doubled, "run_assignment"), (cluster_workers.doubled_later, "run_assignment_async")],
)
def test_whatever_goes_wrong_in_a_seat_fails_its_item_and_the_seat_takes_the_next(
    seating: Use, monkeypatch: pytest.MonkeyPatch, worker: Any, verb: str
) -> None:
    seating()
    intact = getattr(slot, verb)

    def fragile(function: Any, assignment: Assignment, **options: Any) -> Any:
        if assignment.item_id == "1":
            raise LookupError("the seat is broken")
        return intact(function, assignment, **options)

    monkeypatch.setattr(slot, verb, fragile)

    stats, results = run([1, 2], worker, workers=1, retries=0)

    assert results["1"].error == "the seat is broken"
    assert results["2"].value == 4
    assert stats.failed == 1


class OneAttempt:
    """A link that has one attempt for its seat."""

    def __init__(self, handed: AssignedAttempt) -> None:
        self.handed = handed
        self.reports: list[AttemptReport] = []

    def request_work(self, answer: Callable[[AssignedAttempt | None], object]) -> None:
        answer(self.handed)

    def report(self, _handed: AssignedAttempt, body: bytes) -> None:
        self.reports.append(pickle.loads(body))


def test_a_seat_that_is_cancelled_ends_and_reports_what_it_had_in_hand(gates: cluster_workers.Gates) -> None:
    assignment = Assignment("run", "a", 0, 1, 11, pack("a", "the item"), wants_context=False)
    link: Any = OneAttempt(AssignedAttempt(11, pickle.dumps(assignment)))

    async def sit_and_be_cancelled() -> None:
        sitting = asyncio.create_task(slot._run_coroutine_loop(link, pack(cluster_workers.never_ends, "the worker")))
        while not gates.arrived.acquire(blocking=False):
            await asyncio.sleep(0)
        sitting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(sitting, WAIT)
        assert sitting.cancelled()

    asyncio.run(sit_and_be_cancelled())

    assert [report.cancelled for report in link.reports] == [True]


# -- ending an attempt ----------------------------------------------------------------------------------------------


def test_an_attempt_that_was_told_to_end_is_not_told_again() -> None:
    handed, told = AssignedAttempt(11, b""), list[float]()
    handed.on_kill(told.append)

    handed.kill(0.0)
    handed.kill(0.0)
    handed.mark_lost()

    assert told == [0.0]


def test_an_attempt_that_was_told_to_end_can_be_told_to_hurry() -> None:
    handed, told = AssignedAttempt(11, b""), list[float]()
    handed.on_kill(told.append)

    handed.kill(60.0)
    handed.kill(90.0)
    handed.kill(0.5)

    assert told == [60.0, 0.5]


def test_a_command_that_is_to_end_has_all_its_time_for_it_however_often_its_worker_beats(
    seating: Use, tmp_path: Path, aside: Aside
) -> None:
    places, clock = seating(), FakeClock()
    begun, ending, go, cleaned = (tmp_path / name for name in ("begun", "ending", "go", "cleaned"))
    clean = f"touch {ending}; until test -e {go}; do sleep 0.01; done; touch {cleaned}; exit 3"
    script = f"trap '{clean}' TERM; touch {begun}; sleep 60 & wait"

    running = aside.submit(run, ["a"], shell(script, kill_after=WAIT), workers=1, timeout=30.0, retries=0, clock=clock)
    assert eventually(begun.exists)
    clock.advance(30.0)
    assert eventually(ending.exists)
    for _ in range(3):
        places.link._calls.call(beat, places.link)
    answered = eventually(lambda: not places.link._beats)
    go.touch()
    _, results = running.result(WAIT)

    assert answered
    assert results["a"].error == "timed out after 30s"
    assert cleaned.exists()


def beat(link: link_module.WorkerClient) -> None:
    assert link._connection is not None
    link._beat(link._connection, time.monotonic())


def test_a_command_that_its_worker_ended_for_want_of_a_driver_runs_again(
    seating: Use, aside: Aside, tmp_path: Path
) -> None:
    """As when the driver stood still for long: it has not lost the worker, but the worker had lost the driver."""
    places = seating()
    begun = tmp_path / "begun"
    script = f"test $AGENTOS_ATTEMPT = 2 && exit; touch {begun}; exec sleep 60"

    running = aside.submit(run, ["a"], shell(script), workers=1, retries=1)
    assert eventually(begun.exists)
    places.lose_driver()
    places.add_slot()
    stats, results = running.result(WAIT)

    assert results["a"].success
    assert stats.retried == 1


# -- secrets --------------------------------------------------------------------------------------------------------


def test_a_command_does_not_find_the_key_of_another_in_the_words_of_a_variable(
    seating: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    seating()
    monkeypatch.setenv("AUTH_HEADER", f"Bearer {SECRETS[1]}")
    pool = CredentialCoordinator(SECRETS)

    _, results = run(["a"], shell('echo "${AUTH_HEADER:-none}"'), pool=pool, workers=1)

    assert results["a"].value["stdout"] == "none\n"


# -- the network ----------------------------------------------------------------------------------------------------


def test_a_connection_that_goes_silent_is_replaced_in_time(
    seating: Use, proxy: Proxy, gates: cluster_workers.Gates, aside: Aside
) -> None:
    places = seating(ttl=12.0, through=proxy)  # it looks once in a second

    running = aside.submit(run, ["a"], cluster_workers.waits_for_gate, workers=1, retries=0)
    assert gates.arrived.acquire(timeout=WAIT)
    proxy.swallow()
    places.link._calls.call(has_been_silent, places.link)
    gates.go_on.set()
    _, results = running.result(WAIT)

    assert results["a"].value == ["a", 1]
    assert proxy.made == 2


def has_been_silent(link: link_module.WorkerClient) -> None:
    """For longer than a connection may that owes an answer."""
    assert link._connection is not None
    beat(link)
    link._connection.moved_at = link._beats[max(link._beats)] = -1e9


def test_a_connection_that_is_made_in_the_moment_in_which_its_time_is_over_is_cut(
    monkeypatch: pytest.MonkeyPatch, aside: Aside
) -> None:
    """Else it stays as long as the driver says nothing, and longer than the loop of its link."""
    limits: list[asyncio.Timeout] = []
    timeout, made = asyncio.timeout, link_module._DriverConnection.connection_made

    def noted(after: float) -> asyncio.Timeout:
        limit = timeout(after)
        if asyncio.get_running_loop() is link._loop:  # there may be others
            limits.append(limit)
        return limit

    def over_time(connection: Any, transport: Any) -> None:
        made(connection, transport)
        limits[-1].reschedule(0.0)

    monkeypatch.setattr(asyncio, "timeout", noted)
    monkeypatch.setattr(link_module._DriverConnection, "connection_made", over_time)
    with socket.create_server(("127.0.0.1", 0)) as driver:
        driver.settimeout(WAIT)
        ended = aside.submit(shakes_hands_and_says_nothing, driver)
        host, port = driver.getsockname()
        link = link_module.WorkerClient(DriverEndpoint("run", host, port, IDENTITY.certificate, b"x" * 32, ttl=600.0))
        link.start()

        assert ended.result(2 * WAIT)
    link._calls.call(link._fence)
    assert link._ended.wait(WAIT)


def shakes_hands_and_says_nothing(driver: socket.socket) -> bool:
    """Whether the other side ends the connection all the same."""
    raw, _ = driver.accept()
    with (
        IDENTITY.server.wrap_socket(raw, server_side=True) as secured,
        socket.socket(fileno=os.dup(secured.fileno())) as below,
    ):
        below.settimeout(WAIT)
        try:
            while below.recv(65_536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
    return True
