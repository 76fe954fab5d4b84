"""A run on a real Dask cluster whose scheduler and worker have no agentos."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos import Cause, ParallelCoordinator
from agentos.runs.cluster.driver.driver_server import DriverServer
from agentos.runs.cluster.worker.client import DriverEndpoint
from agentos.runs.engines.dask import DaskPlacement

from . import cluster_workers
from .dask_processes import Processes
from .secret_search import found

pytestmark = pytest.mark.timeout(300)  # starting a cluster takes what a slow machine takes

MISSING = "raise ModuleNotFoundError(\"No module named 'agentos'\", name='agentos')\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "agentos.py").write_text(MISSING)  # found before the real one: they start in this folder
    processes = Processes(tmp_path)
    try:
        processes.add_workers(1, threads=1)
        yield processes
    finally:
        processes.close()


def test_it_is_told_what_to_install_and_nothing_of_the_cluster_ends_or_shows_how_to_join_the_run(
    cluster: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    posts: list[DriverEndpoint] = []
    place = DaskPlacement.place

    def noted(self: DaskPlacement, post: DriverEndpoint, hub: DriverServer) -> None:
        posts.append(post)
        place(self, post, hub)

    monkeypatch.setattr(DaskPlacement, "place", noted)

    stats, _ = ParallelCoordinator(1, engine=cluster.tcp_address).execute_parallel([1, 2], cluster_workers.doubled, str)

    assert stats.cause is Cause.FAULT
    assert "No module named 'agentos'; install agentos" in str(stats.stopped_by)
    assert cluster.workers[0].poll() is None
    logged = cluster.logged()
    assert "Compute Failed" in logged, "the worker's log was not found"
    password = posts[0].password
    assert found([password.hex(), repr(password)[2:-1]], {"the logs": logged}) == []
