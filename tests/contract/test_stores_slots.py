"""Pools that share credentials and state different numbers of slots: none starves, none holds more than its number."""

from __future__ import annotations

from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, Lease, NoCredentialAvailable
from agentos.pool.core.slot_sharing import AUTO, count_usable_slots, find_width
from agentos.pool.store_protocol import name_request, read_stated_slots
from agentos.providers import Event, Signal

from .store_contract import Place, ended

KEY = "sk-shared-slots-0123456789"


def opened(place: Place, slots: Any, **options: Any) -> CredentialCoordinator:
    return place.open(Credential(KEY, name="key", slots=slots), **options)


def take_all(pool: CredentialCoordinator) -> list[Lease]:
    """As many leases as the pool gives at once."""
    found: list[Lease] = []
    while True:
        try:
            found.append(pool.acquire_nowait())
        except NoCredentialAvailable:
            return found


@pytest.fixture(params=[4, "auto"])
def generous(shared: Place, request: pytest.FixtureRequest) -> CredentialCoordinator:
    """A pool with four slots, stated or inferred."""
    pool = opened(shared, request.param)
    pool.acquire_nowait().release()
    return pool


def test_one_with_one_slot_waits_its_turn_beside_one_that_has_all_slots(shared: Place) -> None:
    generous, strict = opened(shared, 4), opened(shared, 1)
    leases = take_all(generous)
    first = shared.waiting(strict, "strict")
    shared.pass_time(1.0)
    second = shared.waiting(generous, "generous")

    leases.pop().release()

    shared.soon(ended(first))
    assert first.result().held
    assert second.running
    first.result().release()
    shared.soon(ended(second))
    assert second.result().held


def test_one_with_one_slot_gets_the_next_that_is_free_of_an_inferred_number(shared: Place) -> None:
    generous, strict = opened(shared, "auto"), opened(shared, 1)
    generous.acquire_nowait().release()
    leases = take_all(generous)
    assert len(leases) == 4
    waiter = shared.waiting(strict, "strict")

    leases.pop().release()

    shared.soon(ended(waiter))
    assert waiter.result().held


def test_one_with_one_slot_starts_at_once_where_another_leaves_slots_free(
    shared: Place, generous: CredentialCoordinator
) -> None:
    strict = opened(shared, 1)
    held = [generous.acquire_nowait() for _ in range(3)]

    mine = strict.acquire_nowait()

    assert len(held) == 3
    assert take_all(generous) == []  # the fourth is used
    assert mine.held


def test_none_holds_more_than_its_own_number_though_the_key_bears_more(
    shared: Place, generous: CredentialCoordinator
) -> None:
    strict = opened(shared, 1)
    held = generous.acquire_nowait()

    assert len(take_all(strict)) == 1

    assert held.held


def test_one_that_holds_its_number_and_wants_more_does_not_delay_the_others(
    shared: Place, generous: CredentialCoordinator
) -> None:
    strict = opened(shared, 1)
    leases = [generous.acquire_nowait() for _ in range(3)]
    mine = strict.acquire_nowait()
    waiter = shared.waiting(strict, "strict")

    for _ in range(5):  # it waits for its own lease alone: no time passes here
        leases.pop().release()
        leases.append(generous.acquire_nowait())

    assert mine.release()
    shared.soon(ended(waiter))
    assert waiter.result().held


def test_pools_with_one_slot_keep_to_one_while_nobody_who_states_more_uses_the_key(
    shared: Place, generous: CredentialCoordinator
) -> None:
    one, two = opened(shared, 1), opened(shared, 1)

    leases = [*take_all(one), *take_all(two)]

    assert len(leases) == 1
    assert [row.slots for row in (*one.snapshot(), *two.snapshot())] == [1, 1]


def test_two_with_one_slot_each_keep_their_leases_when_the_generous_one_has_gone(
    shared: Place, generous: CredentialCoordinator
) -> None:
    one, two = opened(shared, 1), opened(shared, 1)
    held = generous.acquire_nowait()
    leases = [*take_all(one), *take_all(two)]
    assert len(leases) == 2

    held.release()

    assert take_all(one) == take_all(two) == []  # the key has one slot now, and two leases
    assert all(lease.release() for lease in leases)
    assert len([*take_all(one), *take_all(two)]) == 1


def test_an_inferred_number_that_shrinks_counts_for_those_who_state_one(shared: Place) -> None:
    generous, strict = opened(shared, "auto"), opened(shared, 1)
    generous.acquire_nowait().release()
    leases = take_all(generous)
    assert len(leases) == 4
    for lease in leases[:3]:
        lease.report(Signal(Event.OK))
    refused = leases.pop()
    refused.report(Signal(Event.LIMITED, 1.0, evidence=("429",), status=429))  # four at once are too many
    refused.release()
    shared.clock.advance(2.0)

    assert [row.slots for row in generous.snapshot()] == [3]
    with pytest.raises(NoCredentialAvailable):
        strict.acquire_nowait()

    leases.pop().release()
    assert strict.acquire_nowait().held


@pytest.mark.parametrize(
    ("mine", "stated", "elsewhere", "usable"),
    [
        (1, 1, (), 1),
        (1, 1, (1,), 1),  # the one slot is taken
        (1, 1, (4, 4), 3),  # one of its own beside the two
        (1, 1, (4, 4, 4, 4), 4),  # all are taken
        (1, 1, (AUTO, AUTO), 3),
        (4, 4, (1,), 4),
        (8, AUTO, (1,), 8),
        (8, AUTO, (12,) * 3, 11),
    ],
)
def test_usable_slots(mine: int, stated: int, elsewhere: tuple[int, ...], usable: int) -> None:
    assert count_usable_slots(mine, stated, elsewhere, learned=8) == usable


def test_the_width_of_a_key_is_the_largest_number_stated() -> None:
    assert find_width(1, (), 8) == 1
    assert find_width(1, (2, 5), 8) == 5
    assert find_width(AUTO, (2,), 8) == 8


def test_a_request_tells_the_slots_of_its_process() -> None:
    assert read_stated_slots(name_request("a1b2", 7, 4)) == 4
    assert read_stated_slots(name_request("a1b2", 7, AUTO)) == AUTO
    assert read_stated_slots("a1b2.7") == 1  # of a version that did not write them
