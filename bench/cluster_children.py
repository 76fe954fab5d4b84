"""What the children of ``bench/cluster.py`` do: count, lease, wait for a lease, listen, and drive a batch through Dask.

The tasks come from ``bench/stores.py`` and are used as they are there; what is to be done again and again, and the
tasks that only a cluster has, are here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter
from typing import Any

import stores
from cluster_servers import KEYS, LEASE_TTL
from stores import LONGEST_ACQUIRE, Act, Say

from agentos import Credential, CredentialCoordinator, ParallelCoordinator
from agentos.pool.secret_sources import derive_name

WARM_UP = 4 * len(KEYS)  # items


def child(request: str) -> None:
    stores.CASES.update({case.__name__: case for case in (incr, pair, settled, pyrate, semaphore)})
    stores.TASKS.update({task.__name__: task for task in (stand_in_line, publish, listen, drive)})
    stores.child(request)


# -- how many: each is a context that makes ready, and hands out the one thing to do again and again ------------------


def pool_of(url: str, keys: int, rpm: float | None = None, tpm: float | None = None) -> CredentialCoordinator:
    credentials = [Credential(f"bench-secret-{number:05}", rpm=rpm, tpm=tpm) for number in range(keys)]
    return CredentialCoordinator(credentials, store=url, lease_ttl=LEASE_TTL)


@contextmanager
def pair(url: str, keys: int) -> Iterator[Act]:
    with pool_of(url, keys) as pool:
        yield lambda: pool.acquire(timeout=LONGEST_ACQUIRE).release()


@contextmanager
def settled(url: str, keys: int) -> Iterator[Act]:
    with pool_of(url, keys, rpm=1e9, tpm=1e12) as pool:

        def reserve_and_settle() -> None:
            with pool.lease(timeout=LONGEST_ACQUIRE, cost={"tokens": 1000}) as lease:
                lease.settle(tokens=900)

        yield reserve_and_settle


@contextmanager
def incr(url: str) -> Iterator[Act]:
    """The least that anything in Redis costs: there and back."""
    from redis import Redis

    with closing(Redis.from_url(url)) as client:
        yield lambda: client.incr("bench")


@contextmanager
def pyrate(url: str) -> Iterator[Act]:
    """One acquire; there is nothing to give back. Its window is the shortest that has a name there."""
    from pyrate_limiter import Duration, Limiter, Rate, RedisBucket
    from redis import Redis

    with closing(Redis.from_url(url)) as client:
        bucket = RedisBucket.init([Rate(10**9, Duration.SECOND)], client, "bench-pyrate")
        with Limiter(bucket) as limiter:

            def acquire() -> None:
                if limiter.try_acquire("bench") is not True:
                    raise RuntimeError("it would have waited")

            yield acquire


@contextmanager
def semaphore(address: str, name: str, leases: int) -> Iterator[Act]:
    from distributed import Client, Semaphore

    with Client(address, set_as_default=True):
        shared = Semaphore(leases, name)

        def acquire_and_release() -> None:
            shared.acquire()
            shared.release()

        yield acquire_and_release


# -- waking up ---------------------------------------------------------------------------------------------------------


def stand_in_line(say: Say, orders: Iterator[str], kind: str, **options: Any) -> None:
    """One of those who wait for the only lease."""
    with LINES[kind](**options) as take:
        say({"ready": True})
        obey(take, say, orders)


def obey(take: Callable[[], Act], say: Say, orders: Iterable[str]) -> None:
    """Take the lease or give it back, as ordered, and say when another could have it and when we had it."""
    give: Act | None = None
    for order in orders:
        if order == "take":
            give = take()
            say({"got_at": monotonic()})
        elif give is not None:
            due_at = monotonic()
            give()
            give = None
            say({"due_at": due_at})
    if give is not None:
        give()


@contextmanager
def pool_line(url: str) -> Iterator[Callable[[], Act]]:
    with pool_of(url, keys=1) as pool:
        pool.snapshot()
        yield lambda: pool.acquire(timeout=LONGEST_ACQUIRE).release


@contextmanager
def semaphore_line(address: str, name: str) -> Iterator[Callable[[], Act]]:
    from distributed import Client, Semaphore

    with Client(address, set_as_default=True):
        shared = Semaphore(1, name)

        def take() -> Act:
            shared.acquire()
            return shared.release

        shared.register()
        yield take


LINES: dict[str, Callable[..., AbstractContextManager[Callable[[], Act]]]] = {
    line.__name__: line for line in (pool_line, semaphore_line)
}


def publish(say: Say, orders: Iterator[str], url: str, channel: str) -> None:
    """A message for each order: say when it went out."""
    from redis import Redis

    with closing(Redis.from_url(url)) as client:
        client.ping()
        say({"ready": True})
        for order in orders:
            due_at = monotonic()
            client.publish(channel, order)
            say({"due_at": due_at})


def listen(say: Say, orders: Iterator[str], url: str, channel: str) -> None:
    """Say when each message came, up to the one that is the end."""
    from redis import Redis

    with closing(Redis.from_url(url)) as client, client.pubsub() as subscription:
        subscription.subscribe(channel)
        for message in subscription.listen():
            now = monotonic()
            if message["data"] == b"end":
                return
            say({"got_at": now} if message["type"] == "message" else {"ready": True})


# -- items through Dask ------------------------------------------------------------------------------------------------
#
# Each is a context that makes ready and hands out the function to time, which does so many items and returns how many
# were done.

Round = Callable[[int], int]


def no_op(item: int) -> int:
    return item


def worker(item: int, credential: str) -> int:
    return item


@contextmanager
def mapped(address: str) -> Iterator[Round]:
    from distributed import Client

    with Client(address) as client:
        yield lambda items: len(client.gather(client.map(no_op, range(items), pure=False)))


@contextmanager
def submitted(address: str) -> Iterator[Round]:
    from distributed import Client

    with Client(address) as client:
        yield lambda items: len(client.gather([client.submit(no_op, item, pure=False) for item in range(items)]))


@contextmanager
def ours(address: str, journal: bool, ship_secrets: bool) -> Iterator[Round]:
    with TemporaryDirectory(prefix="agentos-bench-") as folder:
        numbers = itertools.count()

        def run(items: int) -> int:
            coordinator = ParallelCoordinator(
                len(KEYS),
                CredentialCoordinator(
                    Credential(secret, name=derive_name(variable)) for variable, secret in KEYS.items()
                ),
                max_parallelism=len(KEYS),
                journal=Path(folder, f"{next(numbers)}.journal") if journal else None,
                worker_version="bench",
                engine=address.replace("tcp://", "dask://"),
                ship_secrets=ship_secrets,
            )
            stats, results = coordinator.execute_parallel(range(items), worker, str)
            if stats.success_count != items:
                wrong = next((result.error for result in results if result.error), stats.stopped_by)
                raise RuntimeError(f"{stats.success_count} of {items} items were done: {wrong}")
            return len(results)

        yield run


ROUNDS: dict[str, Callable[..., AbstractContextManager[Round]]] = {
    case.__name__: case for case in (mapped, submitted, ours)
}


def drive(say: Say, orders: Iterator[str], case: str, address: str, options: dict[str, Any]) -> None:
    """Do as many items as ordered, again and again, and say how many seconds they took."""
    with ROUNDS[case](address, **options) as run:
        run(WARM_UP)
        say({"ready": True})
        for order in orders:
            items = int(order)
            began = perf_counter()
            done = run(items)
            seconds = perf_counter() - began
            if done != items:
                raise RuntimeError(f"{done} of {items} items were done")
            say({"seconds": seconds})
