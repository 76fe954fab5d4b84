"""Real threads, real loops, one pool, all at once, with the invariants on: nothing lost, nothing double-booked."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import pytest

from agentos import Credential, CredentialCoordinator, Lease, NoCredentialAvailable

from ...background_threads import Background

THREADS = 16
TASKS = 1000
KEYS = 3


class Ledger:
    """Who holds which key, kept apart from the pool, to catch it out."""

    def __init__(self, slots: int = 1) -> None:
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        self._slots = slots
        self.leases = 0

    def began(self, lease: Lease) -> None:
        with self._lock:
            self._held[lease.name] += 1
            self.leases += 1
            assert self._held[lease.name] <= self._slots, f"{lease.name} has {self._held[lease.name]} holders"

    def ended(self, lease: Lease) -> None:
        with self._lock:
            self._held[lease.name] -= 1


def thread_work(pool: CredentialCoordinator, ledger: Ledger, seed: int, rounds: int) -> int:
    """Lease, sometimes report a limit, sometimes give up at once; returns how many leases it had."""
    r = random.Random(seed)
    had = 0
    for _ in range(rounds):
        try:
            with pool.lease(f"thread-{seed}", timeout=r.choice([None, None, 0, 0.0005])) as lease:
                ledger.began(lease)
                had += 1
                if r.random() < 0.02:
                    lease.rate_limited(0.001)
                ledger.ended(lease)
        except NoCredentialAvailable:
            pass
    return had


async def task_work(pool: CredentialCoordinator, ledger: Ledger, seed: int) -> int:
    r = random.Random(seed)
    had = 0
    for _ in range(3):
        async with pool.lease(f"task-{seed}") as lease:
            ledger.began(lease)
            had += 1
            try:
                if r.random() < 0.5:
                    await asyncio.sleep(0)
            finally:
                ledger.ended(lease)
    return had


async def many_tasks(pool: CredentialCoordinator, ledger: Ledger, count: int) -> tuple[int, int]:
    """Run many tasks and cancel a third of them, many in the very moment their grant comes."""
    r = random.Random(count)
    tasks = [asyncio.create_task(task_work(pool, ledger, seed)) for seed in range(count)]
    cancelled = 0
    for task in r.sample(tasks, count // 3):
        await asyncio.sleep(0)
        cancelled += task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, (int, asyncio.CancelledError)) for outcome in outcomes), outcomes
    return sum(isinstance(outcome, int) for outcome in outcomes), cancelled


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("checked", [True, False], ids=["invariants on", "at full speed"])
def test_threads_and_tasks_on_one_pool_lose_nothing(slots: int, checked: bool) -> None:
    pool = CredentialCoordinator([Credential(f"secret-number-{i}", slots=slots) for i in range(KEYS)], debug=checked)
    ledger = Ledger(slots)
    rounds, tasks = (40, TASKS // 3) if checked else (1000, TASKS)  # each check looks at everybody who waits
    threads = [Background(lambda seed=seed: thread_work(pool, ledger, seed, rounds)) for seed in range(THREADS)]  # type: ignore[misc]
    finished, cancelled = asyncio.run(many_tasks(pool, ledger, tasks))
    had = sum(thread.result() for thread in threads)

    assert finished >= tasks - cancelled
    assert cancelled > 0
    assert had > 0
    assert pool._runtime.core.waiting == 0
    assert pool._runtime.core.leases == {}
    assert not pool._runtime.scheduler.waiters.threads
    assert not pool._runtime.scheduler.waiters.alarms
    with pool.lease(timeout=10):
        pass
    assert pool.get_stats()["total"] == KEYS


def test_the_same_with_quotas_and_limits() -> None:
    pool = CredentialCoordinator(
        [Credential(f"secret-number-{i}", rpm=60_000, tpm=6_000_000, quota="shared") for i in range(2)]
        + [Credential("secret-of-its-own", slots=2)],
        debug=True,
    )
    ledger = Ledger(2)

    async def story() -> None:
        await many_tasks(pool, ledger, 120)

    threads = [Background(lambda seed=seed: thread_work(pool, ledger, seed, 15)) for seed in range(THREADS)]  # type: ignore[misc]
    asyncio.run(story())
    for thread in threads:
        thread.result()

    assert pool._runtime.core.leases == {}
    assert pool._runtime.core.waiting == 0


def test_cancellation_at_the_moment_of_hand_over_from_a_thread() -> None:
    """A thread gives the key to a task while the loop's own thread cancels that task: over and over."""
    pool = CredentialCoordinator(["secret-one"], debug=True)
    rounds = 300
    go, gone = threading.Semaphore(0), threading.Semaphore(0)
    leases: list[Lease] = []

    def releaser() -> None:
        for _ in range(rounds):
            go.acquire()
            leases.pop().release()
            gone.release()

    async def story() -> Counter[str]:
        outcomes: Counter[str] = Counter()
        for _ in range(rounds):
            leases.append(await pool.acquire_async())
            task = asyncio.create_task(pool.acquire_async())
            while pool._runtime.core.waiting < 1:
                await asyncio.sleep(0)
            go.release()
            await asyncio.sleep(0)
            task.cancel()
            try:
                (await task).release()
                outcomes["granted"] += 1
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1
            gone.acquire()
            assert pool._runtime.core.leases == {}, "a grant was lost"
        return outcomes

    thread = Background(releaser)
    outcomes = asyncio.run(story())
    thread.result()

    assert outcomes.total() == rounds
    assert outcomes["cancelled"] > 0


def test_timeouts_at_the_moment_of_hand_over_between_threads() -> None:
    """A waiter gives up just as the key is given to it: it has the key, or the pool has."""
    pool = CredentialCoordinator(["secret-one"], debug=True)
    outcomes: Counter[str] = Counter()

    def impatient(patience: float) -> None:
        try:
            with pool.lease(timeout=patience):
                outcomes["granted"] += 1
        except NoCredentialAvailable:
            outcomes["gave up"] += 1

    for number in range(200):
        held = pool.acquire()
        waiter = Background(lambda number=number: impatient(0.0001 * (number % 5)))  # type: ignore[misc]
        held.release()
        waiter.result()
        assert pool._runtime.core.leases == {}

    assert outcomes.total() == 200
