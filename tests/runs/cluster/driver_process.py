"""A driver in a process of its own, which tests may end in any way: ``python -m ... STORE LEASE_TTL SECRET``.

It prints where it waits for workers; whoever reads that sits down there.
"""

from __future__ import annotations

import pickle
import signal
import sys
from typing import Any

from agentos import CredentialCoordinator, ParallelCoordinator
from agentos.runs.cluster.driver.driver_server import DriverServer
from agentos.runs.cluster.driver.engine import ClusterEngine
from agentos.runs.cluster.worker.client import DriverEndpoint
from agentos.workflows.parallel import coordinator

from . import cluster_workers


class Announced:
    """Seats for whoever comes."""

    def open(self, _workers: int) -> tuple[str, int, int]:
        return "127.0.0.1", 0, 1

    def place(self, post: DriverEndpoint, _hub: DriverServer) -> None:
        sys.stdout.write(f"{pickle.dumps(post).hex()}\n")
        sys.stdout.flush()

    def add_slot(self) -> None: ...

    def request_slots(self) -> None: ...

    def close(self) -> None: ...


def main(store: str, lease_ttl: str, secret: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may have ignored it

    def engine_for(run: Any) -> ClusterEngine:
        return ClusterEngine(run, Announced(), ttl=None)

    coordinator.build_engine = engine_for  # type: ignore[attr-defined]
    pool = CredentialCoordinator([secret], store=store, lease_ttl=float(lease_ttl))
    run = ParallelCoordinator(1, pool, ship_secrets=True)
    run.execute_parallel(["a"], cluster_workers.stays_with_its_key, str)


if __name__ == "__main__":
    main(*sys.argv[1:])
