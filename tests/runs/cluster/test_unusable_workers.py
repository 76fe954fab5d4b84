"""Workers on which items cannot begin (missing key, module or folder) are excluded; the others go on."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentos import Cause, Command, Credential, CredentialCoordinator
from agentos.runs.cluster.driver import driver_server as hub_module
from agentos.runs.cluster.driver.driver_server import DriverServer
from agentos.runs.cluster.driver.worker_process import WorkerProcess
from agentos.runs.cluster.wire.messages import FrameKind
from agentos.runs.cluster.worker.client import DriverEndpoint

from . import cluster_workers
from .background_call import Aside
from .dask_processes import ROOT
from .driver.test_cluster_engine import SECRETS, eventually, run
from .driver.test_driver_server import IDENTITY, TTL, Open
from .local_slots import WAIT, ThreadSeating

SIT = """
import pickle, sys
from agentos.runs.cluster.worker.slot import run_worker_slot
run_worker_slot(pickle.load(sys.stdin.buffer))
"""
KEY = Credential(SECRETS[0], "my-key-7")

Use = Callable[..., ThreadSeating]
Sit = Callable[[DriverEndpoint | None], None]


@pytest.fixture
def sit_elsewhere() -> Iterator[Sit]:
    """Place a seat in a process of its own, in whose environment no key is."""
    with ExitStack() as stack:

        def sit(post: DriverEndpoint | None) -> None:
            environ = {name: value for name, value in os.environ.items() if name != "MY_KEY_7"}
            process = subprocess.Popen(
                [sys.executable, "-c", SIT],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environ, "PYTHONPATH": str(ROOT)},
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdin is not None
            with process.stdin as stdin:
                stdin.write(pickle.dumps(post))

        yield sit


@pytest.fixture
def nobody_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_JOIN_TIMEOUT", 0.0)
    monkeypatch.setattr(hub_module, "_CHECKS_PER_TTL", 600)  # in one time to live: ten in a second


def test_a_worker_without_the_key_gets_no_items_and_those_that_have_it_do_them_all(
    seating: Use,
    sit_elsewhere: Sit,
    aside: Aside,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(hub_module, "_JOIN_TIMEOUT", WAIT)
    monkeypatch.setenv("MY_KEY_7", SECRETS[0])
    places = seating(place=False)
    pool = CredentialCoordinator([KEY])

    running = aside.submit(
        run, list("abcdef"), cluster_workers.with_secret, pool=pool, ship_secrets=False, workers=1, retries=0
    )
    assert places.placed.wait(WAIT)
    sit_elsewhere(places.post)  # as the first, so that it is given an item
    replaced = eventually(lambda: places.taken == 1)  # by a seat of this process, which has the key
    stats, results = running.result(WAIT)

    assert replaced
    assert (stats.success_count, stats.failed, stats.interrupted, stats.stopped_by) == (6, 0, 0, None)
    assert {result.attempts for result in results.values()} == {1}
    (said,) = [record for record in caplog.records if "gets no items" in record.getMessage()]
    assert said.levelno == logging.WARNING
    assert "the credential my-key-7 was not found on" in said.getMessage()
    assert "export MY_KEY_7 there" in said.getMessage()


def test_if_no_worker_has_the_key_the_run_stops_and_says_both_ways_out(seating: Use, nobody_else_comes: None) -> None:
    seating()

    stats, _ = run(["a"], cluster_workers.with_secret, pool=CredentialCoordinator([KEY]), ship_secrets=False)

    assert (stats.cause, stats.interrupted, stats.unfinished) == (Cause.FAULT, 0, 1)
    assert "a worker that could not begin: the credential my-key-7" in str(stats.stopped_by)
    assert "export MY_KEY_7 there" in str(stats.stopped_by)
    assert "ship_secrets=True" in str(stats.stopped_by)


def test_a_worker_that_has_some_of_the_keys_stops_the_run_too_if_it_is_the_only_one(
    seating: Use, nobody_else_comes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seating()
    monkeypatch.setenv("MY_KEY_7", SECRETS[0])
    pool = CredentialCoordinator([KEY, Credential(SECRETS[1], "my-key-8")])

    stats, _ = run(list("abcd"), cluster_workers.with_secret, pool=pool, ship_secrets=False, workers=1)

    assert stats.cause is Cause.FAULT
    assert "the credential my-key-8 was not found" in str(stats.stopped_by)


def test_a_worker_without_the_folder_of_commands_stops_the_run_if_it_is_the_only_one(
    seating: Use, nobody_else_comes: None, tmp_path: Path
) -> None:
    seating()
    folder = tmp_path / "folder"
    folder.mkdir()
    command = Command(["true"], cwd=str(folder))
    folder.rmdir()

    stats, _ = run(["x"], command)

    assert "there is no folder" in str(stats.stopped_by)


# -- the hub --------------------------------------------------------------------------------------------------------


def test_one_that_was_set_aside_gets_nothing_whatever_connection_it_asks_on() -> None:
    opened = Open(ttl=TTL)
    first = opened.ask_of(opened.seat(), 4)

    news = [opened.hub.exclude_worker(first.worker, "no key") for _ in range(2)]
    opened.hub.return_request(first)
    for link, number in (("link", 5), ("a later link of the same process", 1)):
        seat = opened.seat(link)
        seat.send(FrameKind.ASK, number)
        seat.send(FrameKind.BEAT)
        seat.until(FrameKind.BEAT_ACK)  # by now it has asked

    assert news == [True, False]
    assert opened.hub.try_take_request() is None
    opened.end()


@pytest.mark.parametrize(("width", "seats"), [(1, 4), (2, 2), (3, 2)])
def test_each_seat_of_one_that_was_set_aside_is_replaced_once(width: int, seats: int) -> None:
    replaced: list[None] = []
    opened = Open(ttl=TTL, width=width, on_excluded_slot=lambda: replaced.append(None))
    first = opened.ask_of(opened.seat(), 4)
    opened.hub.exclude_worker(first.worker, "no key")
    seat = opened.seat(asks=(4, 5, 6, 7))  # the first of them once more, on a new connection
    seat.send(FrameKind.BEAT)
    seat.until(FrameKind.BEAT_ACK)

    assert len(replaced) == seats
    opened.end()


def test_one_that_was_lost_and_could_work_is_waited_for_though_the_others_cannot(nobody_else_comes: None) -> None:
    told = {has_worked: told_after_loss_of(has_worked=has_worked) for has_worked in (True, False)}

    assert told == {True: [], False: [["no key"]]}


def told_after_loss_of(*, has_worked: bool) -> list[list[str]]:
    told: list[list[str]] = []
    hub = DriverServer(IDENTITY, b"", ttl=5.0, on_late=print, on_no_usable_worker=told.append)
    fit, unfit = WorkerProcess("1", "node-1:7"), WorkerProcess("2", "node-2:7")
    hub._workers = {link.id: link for link in (fit, unfit)}
    fit.has_worked = has_worked
    hub._requests.exclude(unfit)
    hub._exclude_worker(unfit, "no key")
    hub._check_usable_workers(now=10.0)
    assert told == []
    hub._mark_lost(fit)
    hub._check_usable_workers(now=20.0)
    hub._loop.close()
    return told
