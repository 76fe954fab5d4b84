"""Leases used on other machines do not end with their process, but expire."""

from __future__ import annotations

from agentos import CredentialCoordinator

from .store_contract import Place
from .test_stores_shared import KEY, refused

TTL, OUT_FOR = 60.0, 10.0


class Lender:
    """Somebody whose workers are elsewhere."""

    def __init__(self, pool: CredentialCoordinator) -> None:
        self.is_cut_off = False
        pool._runtime.delegate(self, OUT_FOR)

    def disconnect_workers(self) -> None:
        self.is_cut_off = True


def leave(pool: CredentialCoordinator) -> None:
    """Its process ends, as it does with its last word."""
    assert pool._runtime.store is not None
    pool._runtime.store.leave()


def test_what_is_out_when_its_process_ends_is_free_when_nobody_can_be_using_it_any_more(shared: Place) -> None:
    one, two = shared.open(KEY, lease_ttl=TTL), shared.open(KEY, lease_ttl=TTL)
    shared.pass_time(TTL / 2)  # by now both are known to each other
    lender = Lender(one)
    _held = one.acquire("item-1")

    leave(one)

    assert lender.is_cut_off
    refused(two)
    shared.clock.advance(OUT_FOR - 0.5)
    refused(two)
    shared.clock.advance(1.0)
    assert (_held_2 := two.acquire_nowait()).held


def test_what_has_come_back_when_its_process_ends_is_free_at_once(shared: Place) -> None:
    one, two = shared.open(KEY, lease_ttl=TTL), shared.open(KEY, lease_ttl=TTL)
    Lender(one)
    one.acquire("item-1").release()

    leave(one)

    assert (_held := two.acquire_nowait()).held


def test_leases_that_never_left_their_process_end_with_it(shared: Place) -> None:
    one, two = shared.open(KEY, lease_ttl=TTL), shared.open(KEY, lease_ttl=TTL)
    _held = one.acquire("item-1")

    leave(one)

    assert (_held_2 := two.acquire_nowait()).held


def test_leases_are_good_for_as_long_as_their_store_says(shared: Place) -> None:
    pool = shared.open(KEY, lease_ttl=TTL)
    _held = pool.acquire("item-1")

    before = pool._runtime.valid_for()
    leave(pool)  # so that nothing is renewed
    shared.clock.advance(5.0)

    assert TTL / 2 < before < TTL
    assert before - pool._runtime.valid_for() == 5.0


def test_leases_in_memory_are_good_for_ever() -> None:
    pool = CredentialCoordinator([KEY])

    assert pool.lease_ttl is None
    assert pool._runtime.valid_for() == float("inf")
