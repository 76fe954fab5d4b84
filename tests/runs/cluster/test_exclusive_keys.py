"""A key has one user, even if its driver is killed, forced to stop or cut off from its store.

Its workers are threads of this process, so that at the moment at which the next one gets the key, those before it can
be asked whether they still have it.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentos import CredentialCoordinator, Dask, LeaseLost, ParallelCoordinator
from agentos.runs.cluster.driver.engine import compute_ttl
from agentos.runs.cluster.wire.messages import Frame, FrameKind, beat_ack_body
from agentos.runs.cluster.worker.client import DriverEndpoint, DriverUnreachable, WorkerClient
from agentos.runs.cluster.worker.slot import run_worker_slot

from ...redis_server import shared_server
from ...tcp_proxy import TcpProxy
from . import cluster_workers
from .background_call import Aside
from .dask_processes import ROOT
from .driver.test_cluster_engine import SECRETS, run
from .local_slots import WAIT, ThreadSeating

Use = Callable[..., ThreadSeating]
LEASE_TTL = 2.0


def _sit(post: DriverEndpoint) -> None:
    """And again, if a slow machine has lost touch with the driver meanwhile; until there is none."""
    with contextlib.suppress(DriverUnreachable):
        while True:
            run_worker_slot(post)


@pytest.fixture
def driver(tmp_path: Path, gates: cluster_workers.Gates) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts one whose single item runs here, and has begun."""
    started: list[subprocess.Popen[str]] = []

    def start(store: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.runs.cluster.driver_process", store, str(LEASE_TTL), SECRETS[0]]
        with open(tmp_path / "driver.log", "w") as log:
            child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        started.append(child)
        assert child.stdout is not None
        post = pickle.loads(bytes.fromhex(child.stdout.readline()))
        threading.Thread(target=_sit, args=(post,), name="seat", daemon=True).start()
        assert gates.arrived.acquire(timeout=WAIT)
        return child

    yield start
    gates.go_on.set()
    for child in started:
        child.kill()
        child.communicate()


def others_hold_it_in_the_next_run(store: str) -> bool:
    """Give the same command again, and see who else has the key when it has got it."""
    pool = CredentialCoordinator(SECRETS[:1], store=store, lease_ttl=LEASE_TTL)
    _, results = run(["b"], cluster_workers.others_hold_a_key, workers=1, pool=pool, retries=9)
    pool.close()
    return any(results["b"].value)


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'pool.db'}" if request.param == "sqlite" else shared_server().url(tmp_path.name)


def test_after_a_driver_was_killed_the_next_waits_until_its_worker_has_let_go(
    seating: Use, driver: Callable[[str], subprocess.Popen[str]], store: str
) -> None:
    seating(ttl=None, replace=True)
    child = driver(store)
    child.kill()
    child.wait(WAIT)

    assert not others_hold_it_in_the_next_run(store)


def test_after_a_forced_stop_the_next_run_waits_until_the_worker_has_let_go(
    seating: Use, driver: Callable[[str], subprocess.Popen[str]], store: str
) -> None:
    seating(ttl=None, replace=True)
    child = driver(store)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)  # of another kind, for two of the same may count as one
    child.wait(WAIT)

    assert not others_hold_it_in_the_next_run(store)


def test_a_worker_whose_driver_is_cut_off_from_the_store_has_lost_its_key_when_another_driver_gets_it(
    seating: Use, gates: cluster_workers.Gates, aside: Aside, tmp_path: Path
) -> None:
    server = shared_server()
    seating(ttl=None, replace=True)
    with TcpProxy(server.port) as proxy:
        stores = server.url(tmp_path.name, port=proxy.port), server.url(tmp_path.name)
        cut_off, other = (CredentialCoordinator(SECRETS[:1], store=each, lease_ttl=LEASE_TTL) for each in stores)
        running = aside.submit(run, ["a"], cluster_workers.stays_with_its_key, workers=1, pool=cut_off, retries=0)
        assert gates.arrived.acquire(timeout=WAIT)

        proxy.silence()
        with other.lease(timeout=WAIT):
            held = [context.lease.held for context in gates.seen]
            with pytest.raises(LeaseLost):
                gates.seen[0].lease.reveal()
        gates.go_on.set()
        running.result(WAIT)
        other.close()
        cut_off.close()

    assert not any(held)


# -- how long is how long -------------------------------------------------------------------------------------------


def linked(ttl: float) -> tuple[WorkerClient, Any]:
    """A link that is not started, and its connection."""
    link = WorkerClient(DriverEndpoint("run", "nowhere", 1, b"", b"", ttl))
    link._loop.close()
    connection: Any = SimpleNamespace(beaten={})
    link._connection = connection
    return link, connection


def test_a_slow_answer_counts_from_when_it_was_asked_for() -> None:
    """What the driver knew then may not be so any more when the answer comes, however late that is."""
    link, connection = linked(ttl=100.0)
    asked_at = link._deadline + 50.0
    link._beats = {7: asked_at}

    link.on_frame(connection, Frame(FrameKind.BEAT_ACK, 7, beat_ack_body(30.0, ())))

    assert link._deadline == asked_at + 100.0 - link._margin
    assert link._lease_ends_at() == asked_at + 30.0


def test_leases_end_with_the_link_if_their_store_would_let_them_live_longer() -> None:
    link, connection = linked(ttl=100.0)
    link._beats = {7: link._deadline + 50.0}

    link.on_frame(connection, Frame(FrameKind.BEAT_ACK, 7, beat_ack_body(3_000.0, ())))

    assert link._lease_ends_at() == link._deadline


def test_a_worker_stops_before_the_leases_of_its_driver_can_be_over() -> None:
    assert compute_ttl(None, None) == compute_ttl(None, 30.0) == 10.0
    assert compute_ttl(None, 8.0) == compute_ttl(4.0, 8.0) == 4.0
    assert compute_ttl(60.0, None) == 60.0


def test_a_time_to_live_that_does_not_fit_the_leases_is_refused_with_both_figures(tmp_path: Path) -> None:
    pool = CredentialCoordinator(SECRETS, store=f"sqlite:///{tmp_path / 'pool.db'}", lease_ttl=30.0)
    coordinator = ParallelCoordinator(1, pool, engine=Dask("dask://127.0.0.1:9", ttl=20.0))

    with pytest.raises(ValueError, match=r"ttl of the engine \(20 s\) must be at most half .* lease_ttl \(30 s\)"):
        coordinator.execute_parallel(["a"], cluster_workers.doubled, str)
    pool.close()
