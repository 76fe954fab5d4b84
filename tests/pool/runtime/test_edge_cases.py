"""Rare moments: loops that close, finalizers inside a step, timers that are no longer needed."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import gc
import threading
from collections.abc import Iterator

import pytest

from agentos import Credential, CredentialCoordinator, CredentialState, Lease, NoCredentialAvailable
from agentos.pool.redaction import Masker
from agentos.testing import FakeClock

from ...background_threads import PATIENCE, Background


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_settle_that_brings_the_next_start_forward_wakes_the_waiter_in_time(clock: FakeClock) -> None:
    pool = CredentialCoordinator(
        [Credential("secret-one", slots=2, tpm=60)], clock=clock, debug=True
    )  # one token a second
    lease = pool.acquire(cost={"tokens": 60})
    waiter = Background(lambda: pool.acquire(cost={"tokens": 30}))
    clock.wait_for_sleepers(1)  # due in 30 s

    lease.settle(tokens=50)  # due in 20 s
    clock.wait_for_sleepers(1)
    clock.advance(20)

    assert waiter.result().held


def test_a_finalizer_that_gives_a_lease_back_inside_the_pool_does_no_harm() -> None:
    """An abandoned generator in a reference cycle: the collector may close it while the pool allocates."""
    pool = CredentialCoordinator([f"secret-{i:06}" for i in range(400)])

    def worker() -> Iterator[None]:
        with pool.lease():
            yield

    def abandon() -> None:
        cycle: list[object] = []
        generator = worker()
        next(generator)
        cycle.append((generator, cycle))

    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(300):
            abandon()
            with pool.lease(timeout=0):
                pass
    finally:
        gc.set_threshold(*threshold)
    gc.collect()

    assert pool.get_available_count() == 400


def test_a_lease_given_back_while_the_pool_is_looked_at_waits_until_it_was_seen(
    clock: FakeClock,
) -> None:
    """A finalizer in the middle of a snapshot must not change what is being gone through."""
    pool = CredentialCoordinator(["secret-one", "secret-two"], clock=clock, debug=True)
    leases = [pool.acquire(), pool.acquire()]
    finalizers = [leases[0].release]

    class Requester:
        def __str__(self) -> str:
            while finalizers:
                finalizers.pop()()
            return "somebody"

    for grant in pool._runtime.core.leases.values():
        grant.requester = Requester()  # type: ignore[assignment]

    assert [row.state for row in pool.snapshot()] == ["leased", "leased"]
    assert not leases[0].held
    assert leases[1].held


def test_a_lease_given_back_from_within_a_step_is_given_back_after_it(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock, debug=True)
    lease = pool.acquire()

    def in_the_middle(now: float) -> tuple[()]:
        assert lease.release()
        assert pool._runtime.core.leases  # not yet
        return ()

    pool._runtime.scheduler.run_step(in_the_middle)

    assert not pool._runtime.core.leases
    with pytest.raises(RuntimeError, match="requested inside the pool"):
        pool._runtime.scheduler.run_step(lambda now: pool.acquire() and ())  # type: ignore[arg-type, return-value]
    assert (_held := pool.acquire()).held


def test_a_loop_that_moves_to_another_thread_is_still_woken(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock, debug=True)
    held = pool.acquire()
    loop = asyncio.new_event_loop()
    task = loop.create_task(pool.acquire_async("task"))
    while not pool._runtime.core.waiting:
        loop.run_until_complete(asyncio.sleep(0))
    got = threading.Event()
    task.add_done_callback(lambda _: got.set())
    runner = Background(loop.run_forever)

    held.release()

    assert got.wait(PATIENCE)
    loop.call_soon_threadsafe(loop.stop)
    runner.result()
    assert task.result().release()
    loop.close()


@pytest.mark.parametrize("already_waiting", [True, False])
def test_a_loop_that_closes_before_its_task_has_picked_the_lease_up_loses_nothing(
    clock: FakeClock, already_waiting: bool
) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock, debug=True)
    held = pool.acquire()
    loop = asyncio.new_event_loop()
    orphan = loop.create_task(pool.acquire_async("orphan"))
    while not pool._runtime.core.waiting:
        loop.run_until_complete(asyncio.sleep(0))
    waiter = Background(lambda: pool.acquire("thread")) if already_waiting else None
    if waiter is not None:
        clock.wait_for_sleepers(1)
    held.release()  # the grant is made and its call accepted ...
    loop.close()  # ... and never runs

    if waiter is None:
        waiter = Background(lambda: pool.acquire("thread"))
    else:
        clock.advance(1.0)  # it looks again within a second, if it has not already

    assert waiter.result().requester == "thread"
    orphan._log_destroy_pending = False  # type: ignore[attr-defined]  # it never ran again, on purpose


def test_waits_that_end_leave_no_timers_behind(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock, debug=True)
    with pool.lease() as lease:
        lease.rate_limited(3600)

    async def story() -> None:
        for _ in range(50):
            task = asyncio.create_task(pool.acquire_async(timeout=1))
            while not pool._runtime.core.waiting:
                await asyncio.sleep(0)
            clock.advance(1)
            with pytest.raises(NoCredentialAvailable):
                await task

    asyncio.run(story())
    assert clock.sleepers == 0


def test_reservations_given_back_elsewhere_are_not_kept(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock)
    for _ in range(100):
        secret = pool.reserve(timeout=0)
        assert secret is not None
        Background(lambda secret=secret: pool.release(secret)).result()  # type: ignore[misc]

    assert len(pool._runtime.verbs._own()["key-1"]) <= 1
    assert not pool._runtime.verbs._reserved["key-1"]


def test_a_lease_cannot_be_entered_within_itself(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock)
    with pool.lease() as lease:
        with pytest.raises(RuntimeError, match="one use"), lease:
            pass
        assert lease.held


def test_an_expired_lease_is_seen_as_ended_on_the_next_check(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one"], max_lease=10, clock=clock, debug=True)
    forgotten = pool.acquire()
    clock.advance(10)

    assert not forgotten.held
    assert pool.snapshot()[0].state == "available"
    assert pool.get_available_count() == 1


def test_anything_with_a_name_may_be_a_requester_and_any_text_a_model(clock: FakeClock) -> None:
    class Model(enum.StrEnum):
        SMALL = "small"

    pool = CredentialCoordinator(["secret-one", "secret-two"], clock=clock)
    leases: list[Lease] = [pool.acquire(7), pool.acquire(model=Model.SMALL)]  # type: ignore[arg-type]

    assert pool.snapshot()[0].reserved_by == "7"
    with pytest.raises(ValueError, match="model"):
        leases[0].rate_limited(3, model=5)  # type: ignore[arg-type]


def test_a_state_understands_both_originals_by_position() -> None:
    assert not CredentialState("k", "bob").is_available
    assert CredentialState("k", "bob").reserved_by == "bob"
    assert CredentialState("k", None, 0.0).is_available
    assert not CredentialState("k", False, 9e12).is_available
    assert not CredentialState("k", True, None).is_available
    assert dataclasses.replace(CredentialState("k"), why="for a test").why == "for a test"


def test_a_closed_pool_refuses_requests(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock)
    pool.close()

    with pytest.raises(Exception, match="closed"):
        pool.add("secret-two")
    assert pool.get_stats()["total"] == 1


class PickedUp:
    """A task that was granted a lease, and picks it up the moment another thread looks at it: it needs no lock."""

    def __init__(self, pool: CredentialCoordinator) -> None:
        self._pool = pool

    @property
    def loop(self) -> object:
        self._pool._runtime.scheduler.waiters.handed.clear()
        return self


def test_a_task_that_picks_up_its_lease_does_not_disturb_a_release(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock)
    lease = pool.acquire()
    first = Background(pool.acquire)
    clock.wait_for_sleepers(1)
    second = Background(pool.acquire)
    clock.wait_for_sleepers(2)
    for _ in range(2):
        pool._runtime.scheduler.waiters.handed[PickedUp(pool)] = None  # type: ignore[index]

    lease.release()

    first.result().release()
    second.result().release()


def test_a_secret_is_known_to_be_hidden_before_anybody_can_use_it(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock)
    _held = pool.acquire()
    shown: list[str] = []

    def use() -> None:
        secret = pool.acquire().reveal()
        shown.append(pool._runtime.masked(f"the provider does not know {secret}"))

    user = Background(use)
    clock.wait_for_sleepers(1)

    def add_late(masker: Masker, secret: str) -> bool:
        user.join(0.05)  # unless it has to wait until the secret is known
        return add(masker, secret)

    add = Masker.add
    monkeypatch.setattr(Masker, "add", add_late)
    pool.add("secret-two")

    user.result()
    assert "secret-two" not in shown[0]
