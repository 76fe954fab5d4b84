"""A store can be read and reset without secrets, and without blocking the processes that use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentos import CredentialCoordinator, CredentialState
from agentos.providers import Event, Reading, Signal
from agentos.stores.admin import read_store, reset_credentials

from ..contract.store_contract import SHARED, Place, Store, ended
from .admin_helpers import KEYS, at, credential, limited, on, opened, refuse, seen, spec, state

pytestmark = pytest.mark.usefixtures("unhurried")


@pytest.fixture(params=SHARED, ids=lambda store: store.name)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    store: Store = request.param
    place = Place(store, tmp_path)
    yield place
    place.close()


def test_reading_an_unused_store_returns_none_and_does_not_create_it(place: Place) -> None:
    assert read_store(at(place), [], place.clock) is None
    assert place.kept() == {}


def test_looking_changes_nothing(place: Place) -> None:
    refuse(opened(place, "alice"))
    before = place.kept()

    assert state(place, "alice").state == "dead"

    after = place.kept()
    assert {name: after.get(name) for name in before} == before


def test_with_what_is_stated_it_looks_as_it_does_from_inside(place: Place) -> None:
    pool = opened(place)
    held = [pool.acquire_nowait(f"item-{number}") for number in range(5)]
    place.clock.advance(1.0)
    for lease in held:
        lease.settle(input_tokens=30, output_tokens=20)
    held[0].report(limited(20.0, Reading("requests", 500, 20, window=60.0, source="x-remaining")))
    held[1].rate_limited(7_200, model="m-large")
    held[2].rejected("401 invalid_api_key")
    held[3].release()
    place.clock.advance(0.5)

    outside = [each.state for each in seen(place, *map(spec, KEYS)).values()]

    def comparable(row: CredentialState) -> dict[str, Any]:
        facts = asdict(row)
        facts["limits"] = sorted(str(limit) for limit in row.limits)
        return {name: fact for name, fact in facts.items() if name != "reserved_by"}

    assert [comparable(row) for row in outside] == [comparable(row) for row in pool.snapshot()]


def test_nothing_stated_still_shows_states_and_what_was_learned(place: Place) -> None:
    pool = opened(place, "alice", "bob")
    on(pool, "alice").report(limited(20.0, Reading("requests", 500, 20, window=60.0, source="x-remaining")))
    on(pool, "bob").rejected("401")

    rows = {name: each.state for name, each in seen(place).items()}

    assert (rows["bob"].state, rows["bob"].why) == ("dead", "401")
    assert [(limit.dimension, limit.amount, limit.learned) for limit in rows["alice"].limits] == [
        ("requests", 500.0, True)
    ]


def test_holders_are_named_with_their_process(place: Place) -> None:
    pool = opened(place, "alice")
    lease = pool.acquire_nowait("item-7")

    assert seen(place, spec("alice"))["alice"].holders == (f"item-7 (process {os.getpid()})",)
    lease.release()
    assert seen(place, spec("alice"))["alice"].holders == ()


def test_more_leases_than_are_stated_here_are_as_many_slots(place: Place) -> None:
    pool = opened(place, "bob")
    held = [pool.acquire_nowait() for _ in range(2)]

    row = state(place, "bob")

    assert all(lease.held for lease in held)
    assert (row.state, row.leases, row.slots) == ("leased", 2, 2)


def test_of_several_secrets_of_one_name_the_newest_is_shown_and_said_so(place: Place) -> None:
    refuse(place.open(credential("alice", "the-first-secret")))
    place.open(credential("alice", "the-second-secret"))

    found = seen(place)["alice"]

    assert (found.state.state, found.secrets) == ("available", 2)


def test_of_several_secrets_of_one_name_the_one_that_is_given_is_shown(place: Place) -> None:
    refuse(place.open(credential("alice", "the-first-secret")))
    place.open(credential("alice", "the-second-secret"))

    shown = [
        read_store(at(place), [spec("alice")], place.clock, {"alice": f"the-{which}-secret"})
        for which in ("first", "second", "third")
    ]

    assert [[each.state.state for each in rows or ()] for rows in shown] == [["dead"], ["available"], []]


def test_of_several_secrets_of_one_name_one_in_use_is_shown(place: Place) -> None:
    first = place.open(credential("alice", "the-first-secret"))
    place.open(credential("alice", "the-second-secret"))

    lease = first.acquire_nowait("item-7")

    assert lease.held
    assert seen(place)["alice"].holders == (f"item-7 (process {os.getpid()})",)


def test_the_quota_of_a_credential_is_known_by_its_lease_or_by_what_is_stated(place: Place) -> None:
    pool = place.open(credential("bob"), credential("carol"), credential("zoe", quota="other"))
    lease = on(pool, "carol")
    lease.rate_limited(600)  # the lease goes on

    assert state(place, "carol").state == "leased"
    assert state(place, "carol").quota == "acme"
    assert state(place, "bob").state == "available"  # nobody says whose quota it shares
    assert state(place, "bob", spec("bob")).state == "cooling"


def test_the_only_named_quota_is_that_of_a_credential_without_its_own(place: Place) -> None:
    pool = opened(place, "alice", "bob")
    lease = on(pool, "bob")
    lease.rate_limited(600)
    lease.release()

    assert (state(place, "bob").quota, state(place, "bob").state) == ("acme", "cooling")


def test_a_store_nobody_uses_can_be_looked_at(place: Place) -> None:
    refuse(opened(place, "alice"))

    assert state(place, "alice").state == "dead"
    assert opened(place, "alice").snapshot()[0].state == "dead"


def test_what_is_cleared_is_as_if_it_had_never_been_used(place: Place) -> None:
    pool = opened(place, "alice", "dave")
    for name in ("alice", "dave"):
        lease = on(pool, name)
        lease.report(limited(600.0, Reading("requests", 500, 0, window=60.0, source="x-remaining")))
        lease.rejected("401")
        lease.release()
    before = {row.name: row.state for row in pool.snapshot()}

    done = reset_credentials(at(place), ["alice", "dave"], [spec("alice"), spec("dave")], place.clock)

    assert before == {"alice": "dead", "dave": "dead"}
    assert [(each.name, each.secrets) for each in done] == [("alice", 1), ("dave", 1)]
    fresh = CredentialCoordinator([credential("alice"), credential("dave")], clock=place.clock)
    assert [(row.state, row.slots, row.limits) for row in pool.snapshot()] == [
        (row.state, row.slots, row.limits) for row in fresh.snapshot()
    ]


@pytest.mark.parametrize("name", ["bob", "carol"])
def test_a_waiter_for_a_reset_credential_starts_soon(place: Place, name: str) -> None:
    pool = opened(place, "bob", "carol")
    lease = pool.acquire_nowait()
    lease.rate_limited(3_600)
    lease.release()
    waiter = place.waiting(pool, "item-8")

    reset_credentials(at(place), [name], [spec("bob"), spec("carol")], place.clock)

    place.soon(ended(waiter))
    assert waiter.result().held


def test_slots_that_were_found_out_are_forgotten_by_those_at_work_too(place: Place) -> None:
    pool = place.open(credential("dave"))
    for _ in range(12):
        leases = [pool.acquire_nowait() for _ in range(pool.snapshot()[0].slots)]
        for lease in leases:
            lease.report(Signal(Event.OK))
            lease.release()
    grown = pool.snapshot()[0].slots

    reset_credentials(at(place), ["dave"], [], place.clock)

    assert grown > 1
    assert pool.snapshot()[0].slots == 1


def test_leases_in_force_stay_when_their_credential_is_cleared(place: Place) -> None:
    pool = opened(place, "alice")
    lease = pool.acquire_nowait("item-7")

    reset_credentials(at(place), ["alice"], [spec("alice")], place.clock)

    assert lease.held
    assert seen(place, spec("alice"))["alice"].state.leases == 1
    assert lease.release()


def test_every_secret_of_a_name_is_cleared(place: Place) -> None:
    for secret in ("the-first-secret", "the-second-secret"):
        refuse(place.open(credential("alice", secret)))

    (done,) = reset_credentials(at(place), ["alice", "alice", "nobody"], [], place.clock)

    assert (done.name, done.secrets) == ("alice", 2)
    for secret in ("the-first-secret", "the-second-secret"):
        assert place.open(credential("alice", secret)).snapshot()[0].state == "available"


def test_what_belongs_to_a_quota_nobody_knows_stays(place: Place) -> None:
    pool = place.open(credential("bob"), credential("zoe", quota="other"))
    lease = on(pool, "bob")
    lease.rate_limited(600)
    lease.release()

    (done,) = reset_credentials(at(place), ["bob"], [], place.clock)

    assert done.quota is None
    assert {row.name: row.state for row in pool.snapshot()}["bob"] == "cooling"
