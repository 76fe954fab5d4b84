"""A suspended process checks its lease in the store before it goes on."""

from __future__ import annotations

from agentos import CredentialCoordinator, Lease
from agentos.pool.core.records import Grant

from .store_contract import Place
from .test_stores_shared import KEY, refused

TTL = 60.0


def grant_of(lease: Lease) -> Grant:
    assert lease._grant is not None
    return lease._grant


def two_pools(shared: Place) -> tuple[CredentialCoordinator, CredentialCoordinator]:
    return shared.open(KEY, lease_ttl=TTL), shared.open(KEY, lease_ttl=TTL)


def test_a_lease_that_is_still_in_force_is_held_on_to(shared: Place) -> None:
    one, two = two_pools(shared)
    lease = one.acquire("item-1")
    grant = grant_of(lease)

    assert one._runtime.reacquire(grant) is grant
    refused(two)


def test_a_lost_lease_is_taken_again_on_the_same_key_if_that_is_free(shared: Place) -> None:
    one, two = two_pools(shared)
    lease = one.acquire("item-1")
    grant = grant_of(lease)
    shared.clock.advance(2 * TTL)  # nobody could renew anything meanwhile

    again = one._runtime.reacquire(grant)

    assert again is not None
    assert again is not grant
    assert (again.key, again.requester) == (grant.key, "item-1")
    assert one._runtime.find_loss_reason(grant) is not None
    assert one._runtime.find_loss_reason(again) is None
    refused(two)
    assert one._runtime.give_back(again)
    assert two.acquire_nowait().release()


def test_a_lost_lease_whose_key_another_process_has_stays_lost(shared: Place) -> None:
    one, two = two_pools(shared)
    lease = one.acquire("item-1")
    grant = grant_of(lease)
    shared.clock.advance(2 * TTL)
    theirs = two.acquire_nowait("item-2")

    assert one._runtime.reacquire(grant) is None
    assert theirs.held
    assert theirs.release()


def test_a_lease_that_was_given_back_is_not_taken_again(shared: Place) -> None:
    one, two = two_pools(shared)
    lease = one.acquire("item-1")
    grant = grant_of(lease)
    lease.release()

    assert one._runtime.reacquire(grant) is None
    assert two.acquire_nowait().release()
