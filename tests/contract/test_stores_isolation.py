"""Pools of one location do not overtake, block, or keep stale state from each other."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, Lease, Limit, NoCredentialAvailable
from agentos.pool.store_protocol import Step
from agentos.stores.sqlite import store as sqlite_store

from ..redis_server import PATIENCE
from .engine_contract import eventually
from .store_contract import Place, ended

KEY = "reviewed-secret-one"
MOMENT = 0.05
SLOTS = 99  # where they are not the matter


def try_lease(pool: CredentialCoordinator, **cost: float) -> Lease | None:
    try:
        return pool.acquire_nowait(cost=cost)
    except NoCredentialAvailable:
        return None


# -- a refill that somebody waits for -------------------------------------------------------------------------------


@pytest.mark.parametrize("debug", [False, True], ids=["unchecked", "with its promises checked"])
def test_a_large_request_that_waits_for_a_refill_is_not_starved_by_small_ones_of_another_pool(
    shared: Place, debug: bool
) -> None:
    credential = Credential(KEY, slots=SLOTS, limits=[Limit("tokens", 1000, per=1)])
    one, two = (shared.open(credential, debug=debug) for _ in range(2))
    two.acquire_nowait(cost={"tokens": 1000}).release()
    large = shared.waiting(one, "large", cost={"tokens": 800})
    began = shared.clock.now()
    small = 0

    while large.running and shared.clock.now() < began + 2:
        lease = try_lease(two, tokens=50)
        if lease is not None:
            small += 1
            lease.release()
        shared.clock.advance(MOMENT)
        shared.rest()

    assert large.result().requester == "large"
    assert small <= 2000 / 50  # no more than was refilled
    large.result().release()
    shared.clock.advance(1)
    assert try_lease(two, tokens=50) is not None


def test_small_requests_of_another_pool_that_do_not_put_off_a_large_one_start_at_once(shared: Place) -> None:
    limits = [Limit("input_tokens", 1000, per=1), Limit("output_tokens", 1000, per=1)]
    one, two = (shared.open(Credential(KEY, slots=SLOTS, limits=limits)) for _ in range(2))
    two.acquire_nowait(cost={"input_tokens": 0, "output_tokens": 1000}).release()
    large = shared.waiting(one, "large", cost={"input_tokens": 0, "output_tokens": 800})

    small = [try_lease(two, input_tokens=50, output_tokens=0) for _ in range(5)]

    assert all(small)
    assert try_lease(two, input_tokens=0, output_tokens=1) is None
    assert large.running
    shared.soon(ended(large), within=1.0)
    assert large.result().held


def test_what_is_settled_for_less_wakes_a_thread_that_waits_in_the_other_without_time_passing(shared: Place) -> None:
    one, two = (shared.open(Credential(KEY, slots=SLOTS, limits=[Limit("tokens", 100, per=3600)])) for _ in range(2))
    lease = one.acquire_nowait(cost={"tokens": 100})
    waiter = shared.waiting(two, "w", cost={"tokens": 50})
    before = shared.clock.now()

    assert lease.settle(tokens=10)

    eventually(ended(waiter))
    assert waiter.result().requester == "w"
    assert shared.clock.now() == before
    assert lease.held


# -- leases that nobody gives back ----------------------------------------------------------------------------------


def test_a_lease_that_its_holder_forgot_ends_after_max_lease_for_who_waits_in_the_other(shared: Place) -> None:
    one, two = shared.open(KEY, max_lease=10), shared.open(KEY)
    lease = one.acquire("forgetful")
    waiter = shared.waiting(two, "w")
    shared.pass_time(9.5)
    assert (waiter.running, lease.held) == (True, True)

    shared.pass_time(0.6)

    shared.soon(ended(waiter))
    assert waiter.result().requester == "w"
    assert (lease.held, lease.release()) == (False, False)


def test_a_pool_that_is_forgotten_in_the_middle_of_anothers_step_does_not_hold_it_up_and_its_key_is_free_soon(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "LEAVE_RETRY_SECONDS", PATIENCE)  # the step takes as long as a collection does
    forgotten = [shared.open(KEY)]
    shared.pools.clear()
    ref = weakref.ref(forgotten[0])
    forgotten[0].reserve_credential("held")
    left_by = _who_leaves(forgotten[0], monkeypatch)
    other = shared.open(KEY)
    waiter = shared.waiting(other, "w")
    eventually(lambda: shared.clock.sleepers >= 3)  # so that no thread has it in its hands
    gc.collect()

    def in_the_middle(_step: Step) -> None:
        forgotten.clear()
        gc.collect()

    assert other._runtime.store is not None
    with other._runtime.scheduler.locked():
        other._runtime.store.submit(in_the_middle)

    assert ref() is None
    assert threading.get_ident() not in left_by  # here it would insist, in the way of this very step
    shared.soon(ended(waiter))
    assert waiter.result().requester == "w"
    assert left_by


def test_a_store_is_closed_though_another_thread_leaves_it_in_that_moment(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = shared.open(KEY)
    store: Any = pool._runtime.store
    store._abandoned.add(1_000_000_000)  # something that is still to be written
    step = store._plain_step

    def after_another_has_left() -> None:
        store._leave()
        step()

    monkeypatch.setattr(store, "_plain_step", after_another_has_left)

    store.close()

    assert store._left


def _who_leaves(pool: CredentialCoordinator, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads on which its session is ended."""
    threads: list[int] = []
    store = pool._runtime.store
    assert store is not None
    leave = store._leave  # type: ignore[attr-defined]  # of every store with sessions

    def noted() -> None:
        threads.append(threading.get_ident())
        leave()

    monkeypatch.setattr(store, "_leave", noted)
    return threads


# -- promises that are checked --------------------------------------------------------------------------------------


def test_a_key_that_cools_here_and_is_cleared_elsewhere_breaks_no_promise_when_it_is_leased_again(
    shared: Place,
) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    with one.lease() as lease:
        lease.rate_limited(3600)

    two.clear("key-1")

    assert (_held := one.acquire_nowait()).held


@pytest.mark.parametrize("verb", ["revive", "clear"])
def test_a_key_that_is_spent_here_and_in_use_again_elsewhere_breaks_no_promise_when_it_is_leased_again(
    shared: Place, verb: str
) -> None:
    one, two = shared.open(KEY), shared.open(KEY)
    with one.lease() as lease:
        lease.spent("insufficient_quota")

    getattr(two, verb)("key-1")

    assert (_held := one.acquire_nowait()).held
