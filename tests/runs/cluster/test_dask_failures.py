"""A run survives the death of a worker and then of the scheduler."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client

from agentos import Cause, CredentialCoordinator, Dask, ParallelCoordinator, ProgressStats
from agentos.simulator import Latency, Simulator, equal_keys

from . import cluster_workers
from .background_call import Aside
from .dask_processes import Processes
from .driver.test_cluster_engine import eventually

ITEMS, KEYS, TTL = 500, 6, 2.0
WAIT, TO_START = 60.0, 120.0

pytestmark = pytest.mark.timeout(300)  # two clusters are started, and each takes what a slow machine takes for it


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Callable[[], Processes]]:
    """A new scheduler with three workers of two threads each, whenever asked for."""
    with contextlib.ExitStack() as stack:

        def start() -> Processes:
            processes = Processes(tmp_path / f"dask-{len(list(tmp_path.glob('dask-*')))}")
            stack.callback(processes.close)
            processes.add_workers(3, threads=2)
            with Client(processes.tcp_address, timeout=TO_START, set_as_default=False) as client:
                client.wait_for_workers(3, timeout=TO_START)
            return processes

        yield start


def done_in(journal: Path) -> Counter[str]:
    with contextlib.closing(sqlite3.connect(journal / "journal.sqlite")) as connection:
        return Counter(item for (item,) in connection.execute("select item from entries where kind = 'done'"))


def errors_in(journal: Path, kind: str) -> list[str]:
    with contextlib.closing(sqlite3.connect(journal / "journal.sqlite")) as connection:
        return [error for (error,) in connection.execute("select error from entries where kind = ?", (kind,))]


def test_a_worker_and_then_the_scheduler_are_killed_and_every_item_is_done_once(
    clusters: Callable[[], Processes], tmp_path: Path, aside: Aside
) -> None:
    journal = tmp_path / "run"
    with Simulator(equal_keys(KEYS, latency=Latency(0.03, sigma=0.0))) as provider:
        items = [[provider.url.removeprefix("http://"), number] for number in range(ITEMS)]

        def execute(cluster: Processes) -> tuple[ParallelCoordinator, Callable[[], ProgressStats]]:
            pool = CredentialCoordinator(list(provider.keys))
            engine = Dask(cluster.address, ttl=TTL)
            coordinator = ParallelCoordinator(KEYS, pool, engine=engine, ship_secrets=True, journal=journal)
            running = aside.submit(
                coordinator.execute_parallel, items, cluster_workers.call_of_provider, lambda item: f"item-{item[1]}"
            )
            return coordinator, lambda: running.result(WAIT)[0]

        first = clusters()
        coordinator, ended = execute(first)
        assert eventually(lambda: coordinator.stats and coordinator.stats.success_count >= 100)
        first.kill_worker(first.workers[0].pid)
        assert eventually(lambda: errors_in(journal, "retry"))
        assert eventually(lambda: coordinator.stats and coordinator.stats.success_count >= 250)
        first.kill_scheduler()
        stats = ended()
        done_at_first = done_in(journal)
        first.close()
        provider.wait_idle()

        second = clusters()
        last = execute(second)[1]()

    seen = provider.statistics()
    assert stats.cause is Cause.FAULT
    assert "the loss of the Dask scheduler" in str(stats.stopped_by)
    assert "it continues where it stopped" in str(stats.stopped_by)
    assert all("was lost" in error for error in errors_in(journal, "retry"))
    assert 250 <= len(done_at_first) < ITEMS
    assert (last.success_count, last.failed, last.cached) == (ITEMS, 0, len(done_at_first))
    assert done_in(journal) == Counter({f"item-{number}": 1 for number in range(ITEMS)})
    assert {name: key.most_in_flight for name, key in seen.keys.items()} == {f"key-{n}": 1 for n in range(1, KEYS + 1)}
    assert seen.violations == ()
