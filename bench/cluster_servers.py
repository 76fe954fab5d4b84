"""What the contenders of ``bench/cluster.py`` share: a real Redis, and a real Dask cluster. Both are on loopback."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any

from run import Failed

if TYPE_CHECKING:
    from tests.redis_server import RedisServer

LEASE_TTL = 5.0  # of the pools; as long as they grant nothing on a new server
WORKERS, THREADS = 3, 4  # of the cluster, and of each of its workers
KEYS = {f"BENCH_API_KEY_{number}": f"bench-secret-{number:05}" for number in range(WORKERS * THREADS)}
LONGEST_TO_END = 60.0


class Cluster:
    """Dask's scheduler in this process, which does nothing else, and its workers in processes of their own."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._scheduler = client.cluster.scheduler
        self.address: str = self._scheduler.address

    def waiting(self, semaphore: str) -> int:
        """How many are in line for a semaphore."""
        return int(self._scheduler.extensions["semaphores"].metrics["pending"][semaphore])

    def wait_idle(self) -> float:
        """Wait until nothing is left of what was done, or whoever comes next pays for it. Returns how long that took.

        The scheduler forgets a task that is cancelled at once, but its thread may go on for a while. Raises Failed.
        """
        began = monotonic()
        while self._scheduler.tasks or any(self._client.run(_running).values()):
            if monotonic() > began + LONGEST_TO_END:
                raise Failed(f"Dask's workers were not idle {LONGEST_TO_END:.0f} s after it")
            time.sleep(0.002)
        return monotonic() - began


def _running(dask_worker: Any) -> int:
    return int(dask_worker.state.executing_count)


class Servers(ExitStack):
    """Each is started when it is first wanted, and stays to the end. What cannot be started raises Failed."""

    @cached_property
    def redis(self) -> RedisServer:
        return self.enter_context(redis_server())

    @cached_property
    def scheduler(self) -> Cluster:
        return self.enter_context(dask_cluster(workers=0))

    @cached_property
    def cluster(self) -> Cluster:
        return self.enter_context(dask_cluster(WORKERS))


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A server on which pools grant at once, as they do when it is older than their time-to-live."""
    with ExitStack() as stack:
        try:
            from tests.redis_server import RedisServer

            folder = stack.enter_context(TemporaryDirectory(prefix="agentos-bench-"))
            server = stack.enter_context(RedisServer(Path(folder)))
        except (ImportError, AssertionError) as error:
            raise Failed(f"no Redis: {error}") from None
        with closing(server.client()) as client:
            while client.info("server")["uptime_in_seconds"] <= LEASE_TTL:
                time.sleep(0.1)
        yield server


@contextmanager
def dask_cluster(workers: int) -> Iterator[Cluster]:
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise Failed(f"{error}; `make bench` installs it") from None
    os.environ.update(KEYS)  # which the workers inherit, and find by name
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=THREADS,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield Cluster(client)
