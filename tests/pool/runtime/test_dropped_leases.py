"""A lease that is dropped without being released frees its slot when it is collected."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, Lease, ParallelCoordinator

PATIENCE = 30.0
KEY = "a-secret-key-1"
NAME = "key-of-these-tests"  # pools that other tests left behind may log while one of these runs


@pytest.fixture(params=["memory", "sqlite"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CredentialCoordinator]:
    store = "memory" if request.param == "memory" else tmp_path / "pool.sqlite"
    with CredentialCoordinator([Credential(KEY, name=NAME)], store=store) as pool:
        yield pool


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and f"on {NAME} held" in record.getMessage()
    ]


def by_acquire(pool: CredentialCoordinator) -> Lease:
    return pool.acquire("worker-7")


def by_acquire_async(pool: CredentialCoordinator) -> Lease:
    return asyncio.run(pool.acquire_async("worker-7"))


def by_entering(pool: CredentialCoordinator) -> Lease:
    return pool.lease("worker-7").__enter__()


@pytest.mark.parametrize("take", [by_acquire, by_acquire_async, by_entering])
def test_a_dropped_lease_gives_its_slot_back_and_says_whose_it_was(
    pool: CredentialCoordinator, take: Callable[[CredentialCoordinator], Lease], caplog: pytest.LogCaptureFixture
) -> None:
    leases = [take(pool)]

    with pytest.warns(ResourceWarning, match="'worker-7' was dropped without being released"):
        leases.clear()
    pool.acquire(timeout=PATIENCE).release()
    while not told(caplog):  # in a shared pool its own thread says so, after it was given back
        threading.Event().wait(0.001)

    (said,) = told(caplog)
    assert "held by worker-7" in said
    assert "keep the lease for as long as its secret is in use" in said
    assert KEY not in said


def test_a_dropped_lease_goes_to_the_next_waiter(pool: CredentialCoordinator) -> None:
    lease: Lease | None = pool.acquire("forgetful")
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(pool.acquire("next").name), daemon=True)
    thread.start()
    while not pool._runtime.core.waiting:
        threading.Event().wait(0.001)

    assert lease is not None
    lease = None
    gc.collect()
    thread.join(PATIENCE)

    assert got == [NAME]


def test_a_lease_that_has_ended_is_dropped_in_silence(
    pool: CredentialCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what other tests have dropped
    caplog.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.acquire().release()
        with pool.lease():
            pass
        with pool.acquire():
            pass
        pool.lease("never begun")
        gc.collect()

    assert told(caplog) == []


def test_a_key_reserved_by_its_requester_stays_reserved(pool: CredentialCoordinator) -> None:
    pool.reserve_credential("worker-7")
    gc.collect()

    assert pool.get_stats()["reserved"] == 1


def test_the_lease_of_an_item_is_given_back_by_its_run_and_not_by_the_collector(
    pool: CredentialCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    def work(_item: Any, _key: str, context: Any) -> bool:
        held = context.lease.held
        del context
        gc.collect()
        return held and pool.get_stats()["reserved"] == 1

    results = list(ParallelCoordinator(1, pool).stream(["a", "b"], work, str))

    assert [each.value for each in results] == [True, True]
    assert told(caplog) == []


def test_a_finalizer_that_runs_while_another_thread_has_the_pool_does_not_wait_for_it(
    pool: CredentialCoordinator,
) -> None:
    lease: Lease | None = pool.acquire("forgetful")
    has_it, done = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._runtime.scheduler.locked():
            has_it.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert has_it.wait(PATIENCE)
    assert lease is not None
    lease = None
    gc.collect()  # comes back, though the pool is locked
    still_held = len(pool._runtime.core.leases)
    done.set()
    thread.join(PATIENCE)

    assert still_held == 1
    assert pool.acquire(timeout=PATIENCE).release()


def test_a_lease_that_is_dropped_in_the_middle_of_a_step_is_given_back_after_it(pool: CredentialCoordinator) -> None:
    leases = [pool.acquire("forgetful")]

    with pool._runtime.scheduler.locked():
        leases.clear()
        gc.collect()
        in_the_middle = len(pool._runtime.core.leases)

    assert in_the_middle == 1
    assert pool.acquire(timeout=PATIENCE).release()


AT_EXIT = """
import logging, pathlib, sys
from agentos import CredentialCoordinator
logging.basicConfig()
store = "memory" if sys.argv[1] == "memory" else pathlib.Path(sys.argv[1])
pool = CredentialCoordinator(["a-secret-key-1"], store=store)
lease = pool.acquire("at the end")
in_a_cycle = [lease]
in_a_cycle.append(in_a_cycle)
"""


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_at_interpreter_exit_nothing_is_logged_and_nothing_hangs(tmp_path: Path, store: str) -> None:
    where = "memory" if store == "memory" else str(tmp_path / "pool.sqlite")

    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", AT_EXIT, where], capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
