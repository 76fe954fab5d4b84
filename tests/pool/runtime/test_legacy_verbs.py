"""The verbs of the originals: strings in and out, on the same pool that grants leases."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import os
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator

import pytest

from agentos import Credential, Lease, NoCredentialAvailable, PoolClosed, WouldBlockLoop
from agentos.testing import FakeClock
from agentos.workflows.parallel import CredentialCoordinator, CredentialState

from .legacy_helpers import ALPHA, BRAVO, CHARLIE, PATIENCE, Person, company, pieces

Invite = Callable[[str], Person]
DAY = 86_400.0
STRANGER = "zQ7xWv9JfLm2TgR8"  # in no pool, and no piece of it in any ordinary text


@pytest.fixture(autouse=True)
def no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AGENTOS_SIMULATE_429", "AGENTOS_CREDENTIAL_LIMIT", "AGENTOS_DEBUG"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def invite() -> Iterator[Invite]:
    with company() as invite:
        yield invite


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="agentos")
    return caplog


def pool_of(clock: FakeClock, *credentials: str | Credential, max_lease: float | None = None) -> CredentialCoordinator:
    return CredentialCoordinator(credentials, clock=clock, debug=True, max_lease=max_lease)


def holders(pool: CredentialCoordinator) -> dict[str, str | None]:
    return {row.name: row.reserved_by for row in pool.snapshot()}


def reserve(pool: CredentialCoordinator) -> str | None:
    return pool.reserve(timeout=0)


def reserve_credential(pool: CredentialCoordinator) -> str | None:
    return pool.reserve_credential(requester_id="somebody")


def acquire_credential(pool: CredentialCoordinator) -> str | None:
    return pool.acquire_credential()


def release(pool: CredentialCoordinator, key: str) -> None:
    pool.release(credential=key)


def release_credential(pool: CredentialCoordinator, key: str) -> None:
    pool.release_credential(credential_key=key)


def mark_credential(pool: CredentialCoordinator, key: str) -> None:
    pool.mark_rate_limited(credential=key)


def mark_credential_key(pool: CredentialCoordinator, key: str) -> None:
    pool.mark_rate_limited(credential_key=key)


every_way_to_reserve = pytest.mark.parametrize("take", [reserve, reserve_credential, acquire_credential])
every_way_to_release = pytest.mark.parametrize("give_back", [release, release_credential])
every_way_to_mark = pytest.mark.parametrize("mark", [mark_credential, mark_credential_key])


# -- reserving ----------------------------------------------------------------------------------------------------


@every_way_to_reserve
def test_a_reservation_is_the_secret_as_plain_text(
    clock: FakeClock, take: Callable[[CredentialCoordinator], str | None]
) -> None:
    pool = pool_of(clock, ALPHA)

    key = take(pool)

    assert key == ALPHA
    assert type(key) is str


@every_way_to_reserve
def test_a_key_has_one_user_at_a_time(clock: FakeClock, take: Callable[[CredentialCoordinator], str | None]) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)

    assert [take(pool), take(pool), take(pool)] == [ALPHA, BRAVO, None]


@every_way_to_reserve
def test_what_is_asked_for_at_once_is_never_waited_for(
    clock: FakeClock, take: Callable[[CredentialCoordinator], str | None]
) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 1.0)

    assert take(pool) is None
    assert clock.sleepers == 0


@every_way_to_reserve
def test_an_empty_pool_reserves_nothing(clock: FakeClock, take: Callable[[CredentialCoordinator], str | None]) -> None:
    assert take(pool_of(clock)) is None


def test_a_key_bears_as_many_reservations_as_it_has_slots(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(ALPHA, slots=3))

    assert [pool.acquire_credential() for _ in range(4)] == [ALPHA, ALPHA, ALPHA, None]


def test_reserve_waits_without_end_for_a_key_to_be_given_back(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    waiting = invite("bob").starts(pool.reserve)
    clock.wait_for_sleepers(1)

    clock.advance(365 * DAY)
    pool.release(ALPHA)

    assert waiting.result(PATIENCE) == ALPHA


def test_reserve_returns_none_when_its_timeout_is_over_and_not_before(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    began = clock.now()
    waiting = invite("bob").starts(lambda: (pool.reserve(timeout=30.0), clock.now() - began))
    clock.wait_for_sleepers(1)

    clock.advance(29.0)
    clock.wait_for_sleepers(1)
    assert not waiting.done()
    clock.advance(1.0)

    assert waiting.result(PATIENCE) == (None, 30.0)


def test_a_requester_that_gave_up_gets_nothing_later(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    waiting = invite("bob").starts(pool.reserve, timeout=30.0)
    clock.wait_for_sleepers(1)
    clock.advance(30.0)
    assert waiting.result(PATIENCE) is None

    pool.release(ALPHA)

    assert pool.get_available_count() == 1


def test_a_key_given_back_within_the_timeout_is_reserved(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    waiting = invite("bob").starts(pool.reserve, 30.0)
    clock.wait_for_sleepers(1)

    clock.advance(29.0)
    pool.release(ALPHA)

    assert waiting.result(PATIENCE) == ALPHA
    assert holders(pool) == {"key-1": "bob"}


def test_reserve_does_not_wait_where_no_key_can_ever_serve(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    pool.retire("key-1")
    with pool.lease() as lease:
        lease.rejected("401")

    assert pool.reserve() is None


def test_a_waiter_is_told_none_when_the_last_key_dies(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    lease = pool.acquire()
    waiting = invite("bob").starts(pool.reserve)
    clock.wait_for_sleepers(1)

    lease.rejected("401")

    assert waiting.result(PATIENCE) is None


def test_closing_the_pool_ends_a_wait_with_a_named_error(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    waiting = invite("bob").starts(pool.reserve)
    clock.wait_for_sleepers(1)

    pool.close()

    with pytest.raises(PoolClosed):
        waiting.result(PATIENCE)


def test_a_reservation_outlives_close_and_can_be_given_back(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()

    pool.close()
    pool.release(ALPHA)

    assert holders(pool) == {"key-1": None}


def test_the_requester_is_who_holds_it(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA, BRAVO, CHARLIE)

    pool.reserve_credential(requester_id="item-17")
    invite("bob").does(pool.reserve)
    invite("carol").does(pool.acquire_credential)

    assert holders(pool) == {"key-1": "item-17", "key-2": "bob", "key-3": "carol"}


def test_reserve_refuses_to_stop_a_running_loop(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)

    async def scene() -> list[str | None]:
        taken = [pool.reserve(), pool.acquire_credential()]  # neither has to wait
        with pytest.raises(WouldBlockLoop):
            pool.reserve()
        return taken

    assert asyncio.run(scene()) == [ALPHA, None]
    pool.release(ALPHA)
    assert pool.get_available_count() == 1


@pytest.mark.parametrize("timeout", ["5", math.nan])
def test_a_timeout_that_is_no_number_of_seconds_is_refused_and_costs_no_key(
    clock: FakeClock, invite: Invite, timeout: float
) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    bob = invite("bob").starts(pool.reserve, timeout)

    try:
        with pytest.raises((TypeError, ValueError)):
            bob.result(0.5)
        pool.release(ALPHA)
        assert pool.get_available_count() == 1
    finally:
        pool.close()


# -- giving back --------------------------------------------------------------------------------------------------


@every_way_to_reserve
@every_way_to_release
def test_a_key_that_is_given_back_can_be_reserved_again(
    clock: FakeClock,
    take: Callable[[CredentialCoordinator], str | None],
    give_back: Callable[[CredentialCoordinator, str], None],
) -> None:
    pool = pool_of(clock, ALPHA)
    assert take(pool) == ALPHA

    give_back(pool, ALPHA)

    assert take(pool) == ALPHA


def test_release_ends_the_threads_own_reservation_though_another_is_older(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, Credential(ALPHA, slots=2))
    alice, bob = invite("alice"), invite("bob")
    alice.does(pool.reserve)
    bob.does(pool.reserve)

    bob.does(pool.release, ALPHA)

    assert holders(pool) == {"key-1": "alice"}


def test_release_by_a_thread_that_never_had_one_ends_the_oldest(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, Credential(ALPHA, slots=2))
    invite("alice").does(pool.reserve)
    invite("bob").does(pool.reserve)

    invite("carol").does(pool.release, ALPHA)

    assert holders(pool) == {"key-1": "bob"}


def test_having_had_another_key_is_not_having_had_this_one(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    invite("alice").does(pool.reserve)
    bob = invite("bob")
    bob.does(pool.reserve)

    bob.does(pool.release, ALPHA)

    assert holders(pool) == {"key-1": None, "key-2": "bob"}


@every_way_to_release
def test_release_after_the_threads_own_has_ended_changes_nothing_and_logs(
    clock: FakeClock,
    invite: Invite,
    said: pytest.LogCaptureFixture,
    give_back: Callable[[CredentialCoordinator, str], None],
) -> None:
    pool = pool_of(clock, ALPHA)
    alice, bob = invite("alice"), invite("bob")
    alice.does(pool.reserve)
    alice.does(pool.release, ALPHA)
    bob.does(pool.reserve)
    said.clear()

    alice.does(give_back, pool, ALPHA)

    assert holders(pool) == {"key-1": "bob"}
    assert len(said.messages) == 1
    assert "key-1" in said.text
    assert "nothing changed" in said.text


def test_a_thread_ends_each_of_its_reservations_once(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, Credential(ALPHA, slots=3))
    alice = invite("alice")
    alice.does(pool.reserve)
    invite("bob").does(pool.reserve)
    alice.does(pool.reserve)

    for _ in range(3):
        alice.does(pool.release, ALPHA)

    assert holders(pool) == {"key-1": "bob"}


def test_a_reservation_that_another_thread_ended_is_not_ended_again(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    alice = invite("alice")
    alice.does(pool.reserve)
    invite("bob").does(pool.release, ALPHA)
    invite("carol").does(pool.reserve)

    alice.does(pool.release, ALPHA)

    assert holders(pool) == {"key-1": "carol"}


def test_a_new_reservation_is_ended_though_an_earlier_one_was_ended_by_another(
    clock: FakeClock, invite: Invite
) -> None:
    pool = pool_of(clock, ALPHA)
    alice = invite("alice")
    alice.does(pool.reserve)
    invite("bob").does(pool.release, ALPHA)
    alice.does(pool.reserve)

    alice.does(pool.release, ALPHA)

    assert holders(pool) == {"key-1": None}


def test_of_two_reservations_the_one_that_is_left_is_ended(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, Credential(ALPHA, slots=2))
    alice = invite("alice")
    alice.does(pool.reserve)
    alice.does(pool.reserve)
    invite("bob").does(pool.release, ALPHA)

    alice.does(pool.release, ALPHA)

    assert holders(pool) == {"key-1": None}


def test_release_after_max_lease_ended_the_reservation_leaves_the_next_user_alone(
    clock: FakeClock, invite: Invite
) -> None:
    pool = pool_of(clock, ALPHA, max_lease=10.0)
    alice, bob = invite("alice"), invite("bob")
    alice.does(pool.reserve)
    clock.advance(10.0)
    assert bob.does(pool.reserve) == ALPHA

    alice.does(pool.release, ALPHA)

    assert holders(pool) == {"key-1": "bob"}


def test_release_of_a_waiters_key_wakes_the_waiter(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    pool.reserve()
    pool.reserve()
    waiting = invite("bob").starts(pool.reserve)
    clock.wait_for_sleepers(1)

    pool.release(BRAVO)

    assert waiting.result(PATIENCE) == BRAVO


@pytest.mark.parametrize("give_back", [release, release_credential, mark_credential, mark_credential_key])
@pytest.mark.parametrize("key", [STRANGER, "", "key-1", ALPHA[:-1], ALPHA.upper()])
def test_an_unknown_key_changes_nothing(
    clock: FakeClock, give_back: Callable[[CredentialCoordinator, str], None], key: str
) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    pool.reserve()
    before = pool.snapshot()

    give_back(pool, key)

    assert pool.snapshot() == before


@pytest.mark.parametrize("give_back", [release, release_credential, mark_credential, mark_credential_key])
def test_the_log_tells_of_an_unknown_key_and_never_shows_it(
    clock: FakeClock, said: pytest.LogCaptureFixture, give_back: Callable[[CredentialCoordinator, str], None]
) -> None:
    pool = pool_of(clock, ALPHA)

    give_back(pool, STRANGER)

    assert len(said.messages) == 1
    assert [piece for piece in pieces(STRANGER, 4) if piece in said.text] == []


# -- rate limits --------------------------------------------------------------------------------------------------


@every_way_to_mark
def test_a_key_is_left_alone_for_sixty_seconds_unless_told(
    clock: FakeClock, mark: Callable[[CredentialCoordinator, str], None]
) -> None:
    pool = pool_of(clock, ALPHA)

    mark(pool, ALPHA)

    assert CredentialCoordinator.RATE_LIMIT_BACKOFF_SECONDS == 60
    clock.advance(59.0)
    assert pool.acquire_credential() is None
    clock.advance(1.0)
    assert pool.acquire_credential() == ALPHA


def test_a_subclass_can_have_another_default_backoff(clock: FakeClock) -> None:
    class Patient(CredentialCoordinator):
        RATE_LIMIT_BACKOFF_SECONDS = 5

    pool = Patient([ALPHA], clock=clock, debug=True)

    pool.mark_rate_limited(ALPHA)

    clock.advance(4.0)
    assert pool.acquire_credential() is None
    clock.advance(1.0)
    assert pool.acquire_credential() == ALPHA


def test_a_backoff_of_ones_own_counts_from_now(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)

    pool.mark_rate_limited(ALPHA, 2.5)
    pool.mark_rate_limited(credential_key=BRAVO, backoff_seconds=7)

    assert [row.rate_limited_until - clock.wall() for row in pool.snapshot()] == [2.5, 7.0]


def test_a_backoff_of_zero_leaves_the_key_available(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)

    pool.mark_rate_limited(ALPHA, 0)

    assert pool.get_available_count() == 1


@pytest.mark.parametrize("nonsense", [-1.0, math.nan, math.inf, 1e12])
def test_a_nonsensical_backoff_never_limits_a_key_for_ever(clock: FakeClock, nonsense: float) -> None:
    pool = pool_of(clock, ALPHA)

    pool.mark_rate_limited(ALPHA, nonsense)

    clock.advance(35 * DAY)
    assert pool.acquire_credential() == ALPHA


def test_a_shorter_backoff_does_not_cut_a_longer_one(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)

    pool.mark_rate_limited(ALPHA, 5)

    clock.advance(59.0)
    assert pool.acquire_credential() is None


def test_marking_a_key_ends_the_threads_own_reservation(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, Credential(ALPHA, slots=2))
    alice, bob = invite("alice"), invite("bob")
    alice.does(pool.reserve)
    bob.does(pool.reserve)

    bob.does(pool.mark_rate_limited, ALPHA)

    assert holders(pool) == {"key-1": "alice"}


def test_marking_by_a_thread_that_never_had_the_key_ends_the_oldest_reservation(
    clock: FakeClock, invite: Invite
) -> None:
    pool = pool_of(clock, Credential(ALPHA, slots=2))
    invite("alice").does(pool.reserve)
    invite("bob").does(pool.reserve)

    invite("carol").does(pool.mark_rate_limited, ALPHA)

    assert holders(pool) == {"key-1": "bob"}


def test_release_after_marking_changes_nothing(clock: FakeClock, invite: Invite) -> None:
    """As in ``try: ... mark_rate_limited(key) ... finally: release(key)``."""
    pool = pool_of(clock, ALPHA)
    alice, bob = invite("alice"), invite("bob")
    alice.does(pool.reserve)
    alice.does(pool.mark_rate_limited, ALPHA, 10)
    clock.advance(10.0)
    bob.does(pool.reserve)

    alice.does(pool.release, ALPHA)

    assert holders(pool) == {"key-1": "bob"}


def test_a_marked_key_is_not_handed_to_a_waiter_before_it_has_cooled(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    alice, bob = invite("alice"), invite("bob")
    alice.does(pool.reserve)
    began = clock.now()
    waiting = bob.starts(lambda: (pool.reserve(), clock.now() - began))
    clock.wait_for_sleepers(1)

    alice.does(pool.mark_rate_limited, ALPHA, 60)

    assert pool.get_stats()["rate_limited"] == 1
    clock.advance(60.0)
    assert waiting.result(PATIENCE) == (ALPHA, 60.0)


def test_marking_never_ends_a_lease(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)
    lease = pool.acquire()

    pool.mark_rate_limited(ALPHA, 60)

    assert lease.held
    assert lease.release()
    assert pool.acquire_credential() is None
    clock.advance(60.0)
    assert pool.acquire_credential() == ALPHA


def test_marking_ends_a_reservation_and_leaves_an_older_lease_on_the_same_key(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(ALPHA, slots=2))
    lease = pool.acquire("lease user")
    pool.reserve_credential("string user")

    pool.mark_rate_limited(ALPHA)
    pool.mark_rate_limited(ALPHA)

    assert lease.held
    assert holders(pool) == {"key-1": "lease user"}


def test_marking_a_key_cools_every_key_of_its_quota_and_ends_no_reservation_of_the_others(clock: FakeClock) -> None:
    pool = pool_of(
        clock, Credential(ALPHA, quota="acme"), Credential(BRAVO, quota="acme"), Credential(CHARLIE, slots=2)
    )
    for who in ("one", "two", "three"):
        pool.reserve_credential(who)

    pool.mark_rate_limited(ALPHA, 30)
    pool.release(BRAVO)

    assert [row.state for row in pool.snapshot()] == ["cooling", "cooling", "available"]
    assert holders(pool) == {"key-1": None, "key-2": None, "key-3": "three"}


# -- counting -----------------------------------------------------------------------------------------------------

WORDS = ["total", "available", "reserved", "rate_limited", "parked", "dead"]


def adds_up(pool: CredentialCoordinator) -> bool:
    stats = pool.get_stats()
    return sum(stats[word] for word in WORDS[1:]) == stats["total"]


def test_the_stats_of_an_empty_pool_are_all_zero(clock: FakeClock) -> None:
    pool = pool_of(clock)

    assert pool.get_stats() == dict.fromkeys(WORDS, 0)
    assert pool.get_available_count() == 0


def test_each_credential_is_counted_once_under_what_it_is(clock: FakeClock) -> None:
    pool = pool_of(clock, *(f"sk-number-{i:06}" for i in range(7)))
    doomed = pool.acquire()
    assert doomed.rejected("401")
    doomed.release()
    pool.mark_rate_limited("sk-number-000001", 60)
    pool.mark_rate_limited("sk-number-000002", DAY)
    _held = pool.acquire()
    pool.reserve()

    assert pool.get_stats() == {
        "total": 7,
        "available": 2,
        "reserved": 2,
        "rate_limited": 1,
        "parked": 1,
        "dead": 1,
    }


def test_a_key_that_is_held_and_cooling_is_counted_once(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    lease = pool.acquire()

    lease.rate_limited(60)

    assert pool.get_stats() == {**dict.fromkeys(WORDS, 0), "total": 2, "available": 1, "reserved": 1}
    lease.release()
    assert pool.get_stats() == {**dict.fromkeys(WORDS, 0), "total": 2, "available": 1, "rate_limited": 1}


def test_a_key_whose_limit_is_used_up_counts_as_rate_limited(clock: FakeClock) -> None:
    pool = pool_of(clock, Credential(ALPHA, rpm=1))
    pool.reserve()
    pool.release(ALPHA)

    assert pool.get_stats() == {**dict.fromkeys(WORDS, 0), "total": 1, "rate_limited": 1}
    clock.advance(60.0)
    assert pool.get_available_count() == 1


def test_a_retired_key_counts_only_while_somebody_holds_it(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    pool.reserve()

    pool.retire("key-1")
    pool.retire("key-2")

    assert pool.get_stats() == {**dict.fromkeys(WORDS, 0), "total": 1, "reserved": 1}
    pool.release(ALPHA)
    assert pool.get_stats() == dict.fromkeys(WORDS, 0)


def test_the_counts_add_up_at_every_step(clock: FakeClock) -> None:
    pool = pool_of(
        clock, Credential(ALPHA, quota="acme"), Credential(BRAVO, quota="acme"), Credential(CHARLIE, slots=2)
    )
    lease: list[Lease] = []
    steps: list[Callable[[], object]] = [
        pool.acquire_credential,
        lambda: lease.append(pool.acquire()),
        lambda: pool.mark_rate_limited(ALPHA, 60),
        lambda: lease[0].rate_limited(DAY),
        lambda: pool.retire("key-3"),
        lambda: pool.release(CHARLIE),
        lambda: clock.advance(61),
        lambda: lease[0].spent("no money"),
        lambda: lease[0].release(),
        lambda: pool.revive("key-3"),
        lambda: lease[0].rejected("too late"),
        lambda: pool.revive("key-1"),
        lambda: clock.advance(2 * DAY),
    ]

    for step in steps:
        step()
        assert adds_up(pool)

    assert pool.get_stats() == {**dict.fromkeys(WORDS, 0), "total": 3, "available": 3}


def test_as_many_can_be_reserved_as_are_available(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO, CHARLIE, Credential("sk-delta-000004", rpm=1))
    pool.mark_rate_limited(BRAVO)
    available = pool.get_available_count()

    reserved = [pool.acquire_credential() for _ in range(5)]

    assert available == 3
    assert reserved == [ALPHA, CHARLIE, "sk-delta-000004", None, None]
    assert pool.get_available_count() == 0


@pytest.mark.parametrize("kept_for", ["others", "the first settle"])
def test_nothing_is_called_available_that_could_not_be_reserved(clock: FakeClock, kept_for: str) -> None:
    if kept_for == "others":
        pool = CredentialCoordinator([ALPHA, BRAVO], keep_free=1, clock=clock, debug=True)
    else:
        pool = pool_of(clock, Credential(ALPHA, slots=2, tpm=1000))
    pool.reserve(timeout=0)

    assert (pool.get_available_count() > 0) == (pool.acquire_credential() is not None)


# -- the environment ----------------------------------------------------------------------------------------------


def test_the_429_simulation_limits_the_first_key_once_and_is_removed(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTOS_SIMULATE_429", "true")
    pool = pool_of(clock, ALPHA, BRAVO)

    assert pool.reserve_credential("first") == BRAVO
    assert "AGENTOS_SIMULATE_429" not in os.environ
    assert pool.get_stats()["rate_limited"] == 1
    clock.advance(59.0)
    assert pool.reserve_credential("second") is None
    clock.advance(1.0)
    assert pool.reserve_credential("third") == ALPHA


@every_way_to_reserve
def test_the_429_simulation_can_be_switched_on_while_the_pool_is_in_use(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, take: Callable[[CredentialCoordinator], str | None]
) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    monkeypatch.setenv("AGENTOS_SIMULATE_429", "true")

    assert take(pool) == BRAVO
    assert "AGENTOS_SIMULATE_429" not in os.environ


def test_the_429_simulation_ends_nobodys_reservation(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    pool.reserve_credential("first")
    monkeypatch.setenv("AGENTOS_SIMULATE_429", "true")

    pool.reserve_credential("second")

    assert holders(pool) == {"key-1": "first", "key-2": "second"}
    pool.release(ALPHA)
    assert pool.acquire_credential() is None


@every_way_to_reserve
def test_the_429_simulation_is_harmless_on_an_empty_pool(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, take: Callable[[CredentialCoordinator], str | None]
) -> None:
    monkeypatch.setenv("AGENTOS_SIMULATE_429", "true")

    assert take(pool_of(clock)) is None


@pytest.mark.parametrize("value", ["", "false", "1", "no"])
def test_any_other_value_simulates_nothing(clock: FakeClock, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AGENTOS_SIMULATE_429", value)
    pool = pool_of(clock, ALPHA)

    assert pool.acquire_credential() == ALPHA
    assert os.environ["AGENTOS_SIMULATE_429"] == value


def test_two_threads_that_see_the_429_simulation_at_once_both_go_on(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Contended(UserDict[str, str]):
        """Whoever removes something finds that another thread has just done so, as os.environ would say."""

        def __delitem__(self, key: str) -> None:
            super().__delitem__(key)
            raise KeyError(key)

    pool = pool_of(clock, ALPHA, BRAVO)
    monkeypatch.setattr(os, "environ", Contended(AGENTOS_SIMULATE_429="true"))

    assert pool.acquire_credential() in (ALPHA, BRAVO)


@pytest.mark.parametrize(("limit", "used"), [("1", 1), ("2", 2), (" 2 ", 2), ("3", 3), ("10", 3)])
def test_the_credential_limit_uses_the_first_ones(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, limit: str, used: int
) -> None:
    monkeypatch.setenv("AGENTOS_CREDENTIAL_LIMIT", limit)

    pool = pool_of(clock, ALPHA, BRAVO, CHARLIE)

    assert [pool.acquire_credential() for _ in range(used)] == [ALPHA, BRAVO, CHARLIE][:used]
    assert pool.acquire_credential() is None
    assert pool.get_stats()["total"] == used


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "two", "1e3", "²"])
def test_a_credential_limit_that_is_no_whole_number_of_at_least_one_is_refused_by_its_name(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setenv("AGENTOS_CREDENTIAL_LIMIT", limit)

    with pytest.raises(ValueError, match="AGENTOS_CREDENTIAL_LIMIT"):
        pool_of(clock, ALPHA, BRAVO)


# -- CredentialState ----------------------------------------------------------------------------------------------


def test_a_credential_state_of_a_key_alone_is_available() -> None:
    state = CredentialState("key-1")

    assert (state.name, state.key, state.key_id) == ("key-1", "key-1", "key-1")
    assert state.is_available
    assert not state.in_use
    assert state.reserved_by is None
    assert state.rate_limited_until == 0.0


def test_the_key_may_be_named_as_either_original_did() -> None:
    assert CredentialState(key="key-1") == CredentialState(key_id="key-1") == CredentialState("key-1")


def test_a_credential_state_needs_a_key() -> None:
    with pytest.raises(TypeError):
        CredentialState()


def test_a_reserved_credential_state_is_not_available() -> None:
    assert not CredentialState("key-1", reserved_by="x").is_available
    assert not CredentialState("key-1", in_use=True).is_available


def test_a_credential_state_is_available_when_its_rate_limit_is_over() -> None:
    assert not CredentialState("key-1", rate_limited_until=time.time() + 3600).is_available
    assert CredentialState("key-1", rate_limited_until=time.time() - 3600).is_available
    assert CredentialState("key-1", rate_limited_until=None).is_available


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(CredentialState)])
def test_a_credential_state_is_frozen(field: str) -> None:
    state = CredentialState("key-1")

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(state, field, True)


def test_the_rows_of_a_snapshot_say_what_each_credential_is(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO, Credential(CHARLIE, name="spare"))
    pool.reserve_credential("item-17")
    pool.mark_rate_limited(BRAVO, 90)

    held, cooling, free = pool.snapshot()

    assert (held.key, held.in_use, held.reserved_by, held.is_available) == ("key-1", True, "item-17", False)
    assert held.rate_limited_until == 0.0
    assert (cooling.key, cooling.in_use, cooling.reserved_by, cooling.is_available) == ("key-2", False, None, False)
    assert cooling.rate_limited_until == clock.wall() + 90
    assert "mark_rate_limited" in cooling.why
    assert (free.key, free.in_use, free.reserved_by, free.is_available) == ("spare", False, None, True)
    assert free.rate_limited_until == 0.0


def test_a_row_stays_as_it_was_when_the_pool_moves_on(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)
    (row,) = pool.snapshot()

    pool.reserve()

    assert row.is_available
    assert not pool.snapshot()[0].is_available


def test_a_row_tells_the_end_of_a_rate_limit_by_the_wall_clock_of_the_moment(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)

    clock.wall_offset += 3600

    assert pool.snapshot()[0].rate_limited_until == clock.wall() + 60


def test_no_row_holds_a_piece_of_a_secret(clock: FakeClock) -> None:
    pool = pool_of(clock, STRANGER, Credential(STRANGER[::-1], name="backwards", rpm=5))
    pool.reserve_credential("item-17")
    pool.mark_rate_limited(STRANGER[::-1])
    with pytest.raises(NoCredentialAvailable):
        pool.acquire_nowait()

    shown = repr([(row, dataclasses.astuple(row)) for row in pool.snapshot()]) + repr(pool) + str(pool.get_stats())

    assert [piece for piece in pieces(STRANGER, 4) | pieces(STRANGER[::-1], 4) if piece in shown] == []


# -- leases and strings on one pool -------------------------------------------------------------------------------


def test_lease_users_and_string_users_share_the_keys(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)

    with pool.lease("lease user") as lease:
        assert lease.reveal() == ALPHA
        assert pool.reserve() == BRAVO
        assert pool.acquire_credential() is None
        with pytest.raises(NoCredentialAvailable):
            pool.acquire_nowait()

    assert pool.acquire_credential() == ALPHA


@pytest.mark.parametrize("give_back", [release, release_credential, mark_credential, mark_credential_key])
def test_a_string_user_never_ends_a_lease(
    clock: FakeClock, invite: Invite, give_back: Callable[[CredentialCoordinator, str], None]
) -> None:
    pool = pool_of(clock, ALPHA)
    lease = pool.acquire()

    give_back(pool, ALPHA)
    invite("bob").does(give_back, pool, ALPHA)

    assert lease.held
    assert pool.acquire_credential() is None


def test_a_lease_that_has_ended_does_not_end_the_reservation_after_it(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)
    lease = pool.acquire()
    lease.release()
    pool.reserve_credential("string user")

    assert not lease.release()
    assert not lease.rate_limited(60)

    assert holders(pool) == {"key-1": "string user"}
    pool.release(ALPHA)
    assert pool.get_available_count() == 1


def test_release_takes_a_lease_too(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)
    lease = pool.acquire()

    pool.release(lease)

    assert not lease.held
    assert pool.get_available_count() == 1


def test_lease_users_and_string_users_wait_in_one_queue(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    turns: list[str] = []

    def by_string(who: str) -> None:
        key = pool.reserve()
        turns.append(who)
        assert key is not None
        pool.release(key)

    def by_lease(who: str) -> None:
        with pool.lease(who):
            turns.append(who)

    async def by_task(who: str) -> None:
        async with pool.lease(who, timeout=3600.0):
            turns.append(who)

    waiting = []
    line: list[Callable[[str], None]] = [by_string, by_lease, lambda who: asyncio.run(by_task(who)), by_string]
    for place, way in enumerate(line, start=1):
        waiting.append(invite(f"person {place}").starts(way, f"person {place}"))
        clock.wait_for_sleepers(place)

    pool.release(ALPHA)

    for future in waiting:
        future.result(PATIENCE)
    assert turns == ["person 1", "person 2", "person 3", "person 4"]


def test_what_a_lease_reports_holds_for_string_users(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    with pool.lease() as lease:
        lease.rate_limited(60)
    with pool.lease() as lease:
        lease.rejected("401")

    assert pool.reserve(timeout=0) is None
    clock.advance(60.0)
    assert [pool.acquire_credential(), pool.acquire_credential()] == [ALPHA, None]


def test_what_a_string_user_marks_holds_for_lease_users(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)

    with pytest.raises(NoCredentialAvailable) as told:
        pool.acquire_nowait()

    assert told.value.next_free_in == 60.0


def test_threads_of_both_kinds_never_use_a_key_at_the_same_time(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA, BRAVO, CHARLIE)
    using: set[str] = set()
    guard = threading.Lock()
    clashes: list[str] = []

    def use(key: str) -> None:
        with guard:
            clashes.extend([key] if key in using else [])
            using.add(key)
        with guard:
            using.remove(key)

    def with_strings() -> None:
        for _ in range(60):
            key = pool.reserve()
            assert key is not None
            use(key)
            pool.release(key)
            pool.release(key)  # once too often, which must harm nobody

    def with_leases() -> None:
        for _ in range(60):
            with pool.lease() as lease:
                use(lease.reveal())

    done = [invite(f"person {i}").starts(with_leases if i % 2 else with_strings) for i in range(8)]
    for future in done:
        future.result(30.0)

    assert clashes == []
    assert pool.get_stats() == {**dict.fromkeys(WORDS, 0), "total": 3, "available": 3}


# -- what is said -------------------------------------------------------------------------------------------------


def test_an_exhausted_pool_is_spoken_of_once_in_each_shortage(clock: FakeClock, said: pytest.LogCaptureFixture) -> None:
    pool = pool_of(clock, ALPHA)
    for _ in range(2):
        pool.reserve()
        for _ in range(3):
            assert pool.acquire_credential() is None
        pool.release(ALPHA)

    assert [text for text in said.messages if text.startswith("[COORDINATOR] Credential pool exhausted")] == (
        ["[COORDINATOR] Credential pool exhausted"] * 2
    )


def test_a_cooling_pool_is_logged_differently_from_one_in_use(clock: FakeClock, said: pytest.LogCaptureFixture) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)

    for _ in range(3):
        assert pool.acquire_credential() is None

    assert sum("no key is available until" in text for text in said.messages) == 1
    assert "exhausted" not in said.text


def test_a_release_that_changes_nothing_does_not_begin_a_new_shortage(
    clock: FakeClock, said: pytest.LogCaptureFixture
) -> None:
    pool = pool_of(clock, ALPHA)
    stale = pool.acquire()
    stale.release()
    pool.reserve()
    pool.acquire_credential()

    stale.release()
    pool.acquire_credential()

    assert sum("Credential pool exhausted" in text for text in said.messages) == 1
