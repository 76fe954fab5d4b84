"""Abandoned leases, whose run was stopped without waiting, expire; all other leases go on."""

from __future__ import annotations

import pytest

from agentos import Credential, CredentialCoordinator, Lease
from agentos.errors import LeaseLost

from .store_contract import Place, ended
from .test_stores_shared import KEY, refused

TTL = 60.0
OTHER = "sk-the-other-key-of-this-pool"


def abandon(pool: CredentialCoordinator, lease: Lease) -> float | None:
    return pool._runtime.abandon([lease._grant or lease._held()])


def end_process(pool: CredentialCoordinator) -> None:
    assert pool._runtime.store is not None
    pool._runtime.store.leave()


def outlast_a_lease(place: Place) -> None:
    """Let more than a time to live go by, in steps short enough for everybody to renew."""
    for _ in range(3):
        place.pass_time(TTL / 2)


def test_an_abandoned_lease_is_free_for_others_after_its_time_to_live(shared: Place) -> None:
    one, two = shared.open(KEY, lease_ttl=TTL), shared.open(KEY, lease_ttl=TTL)
    lease = one.acquire("item-1")

    within = abandon(one, lease)

    assert within == TTL
    refused(two)  # the holder still runs, and the others wait for as long as its time to live says
    outlast_a_lease(shared)
    assert two.acquire_nowait().held


def test_an_abandoned_lease_is_free_for_its_own_process_after_its_time_to_live(shared: Place) -> None:
    pool = shared.open(KEY, lease_ttl=TTL)
    abandon(pool, pool.acquire("item-1"))

    refused(pool)
    outlast_a_lease(shared)

    assert pool.acquire_nowait("item-2").held


def test_the_other_leases_of_a_process_are_renewed_after_one_was_abandoned(shared: Place) -> None:
    one, two = shared.open(KEY, OTHER, lease_ttl=TTL), shared.open(KEY, OTHER, lease_ttl=TTL)
    first, second = one.acquire("item-1"), one.acquire("item-2")

    abandon(one, first)
    outlast_a_lease(shared)

    assert second.held
    assert second.reveal()
    taken = two.acquire_nowait("item-3")
    assert taken.name == first.name
    refused(two)
    assert second.release()
    assert two.acquire_nowait("item-4").name == second.name


def test_two_leases_abandoned_one_after_the_other_both_end(shared: Place) -> None:
    one, two = shared.open(KEY, OTHER, lease_ttl=TTL), shared.open(KEY, OTHER, lease_ttl=TTL)
    for item in ("item-1", "item-2"):
        abandon(one, one.acquire(item))

    refused(two)
    outlast_a_lease(shared)

    assert {two.acquire_nowait().name, two.acquire_nowait().name} == {"key-1", "key-2"}


def test_an_abandoned_lease_is_free_at_once_when_its_holder_gives_it_back(shared: Place) -> None:
    one, two = shared.open(KEY, lease_ttl=TTL), shared.open(KEY, lease_ttl=TTL)
    lease = one.acquire("item-1")
    abandon(one, lease)

    lease.release()

    assert two.acquire_nowait().release()
    assert one.acquire_nowait().held


def test_one_that_waits_gets_an_abandoned_lease_when_its_holder_gives_it_back(shared: Place) -> None:
    pool = shared.open(KEY, lease_ttl=TTL)
    lease = pool.acquire("item-1")
    abandon(pool, lease)
    waiting = shared.waiting(pool, "item-2")

    lease.release()

    assert waiting.result().held


def test_a_lease_that_was_given_back_late_and_is_somebody_elses_by_now_stays_theirs(shared: Place) -> None:
    one, two = shared.open(KEY, lease_ttl=TTL), shared.open(KEY, lease_ttl=TTL)
    lease = one.acquire("item-1")
    abandon(one, lease)
    outlast_a_lease(shared)
    theirs = two.acquire_nowait("item-2")

    lease.release()

    assert theirs.held
    refused(one)


def test_the_holder_of_an_abandoned_lease_gets_no_secret_any_more(shared: Place) -> None:
    pool = shared.open(KEY, lease_ttl=TTL)
    lease = pool.acquire("item-1")

    abandon(pool, lease)

    assert not lease.held
    with pytest.raises(LeaseLost, match="stopped without waiting"):
        lease.reveal()


def test_abandoned_leases_end_at_once_with_the_process(shared: Place) -> None:
    one, two = shared.open(KEY, lease_ttl=TTL), shared.open(KEY, lease_ttl=TTL)
    abandon(one, one.acquire("item-1"))

    end_process(one)

    assert two.acquire_nowait().held


def test_abandoned_leases_do_not_end_when_the_pool_is_closed(shared: Place) -> None:
    one = shared.open(KEY, lease_ttl=TTL)
    abandon(one, one.acquire("item-1"))

    one.close()

    two = shared.open(KEY, lease_ttl=TTL)  # and nobody else has the store open
    refused(two)
    outlast_a_lease(shared)
    assert two.acquire_nowait().held


def test_closing_a_pool_whose_leases_are_all_abandoned_ends_its_session(shared: Place) -> None:
    one, two = shared.open(KEY, OTHER, lease_ttl=TTL), shared.open(KEY, OTHER, lease_ttl=TTL)
    abandon(one, one.acquire("item-1"))

    one.close()

    assert one._runtime.is_finished()
    assert two.acquire_nowait().held


def test_a_process_that_waits_keeps_its_place_when_it_abandons_a_lease(shared: Place) -> None:
    one, two = shared.open(KEY, OTHER, lease_ttl=TTL), shared.open(KEY, OTHER, lease_ttl=TTL)
    mine, theirs = one.acquire("item-1"), two.acquire("item-2")
    first = shared.waiting(one, "first")
    shared.pass_time(1.0)  # of two that began to wait in the same moment, either may be the first
    second = shared.waiting(two, "second")

    abandon(one, mine)
    theirs.release()

    shared.soon(ended(first))
    assert second.running
    outlast_a_lease(shared)
    assert second.result().held


def test_the_reserved_cost_of_an_abandoned_lease_counts_until_it_ends(shared: Place) -> None:
    keys = (Credential("sk-a-key-with-a-token-limit", tpm=1_000),)
    one, two = shared.open(*keys, lease_ttl=TTL), shared.open(*keys, lease_ttl=TTL)
    abandon(one, one.acquire("item-1"))  # of unknown cost: one such request at a time

    refused(two)
    outlast_a_lease(shared)

    assert two.acquire_nowait().held


def test_a_lease_in_memory_lasts_until_its_holder_gives_it_back() -> None:
    pool = CredentialCoordinator([KEY], debug=True)
    lease = pool.acquire("item-1")

    assert abandon(pool, lease) is None

    assert lease.held
    refused(pool)
    assert lease.release()
    assert pool.acquire_nowait().held
