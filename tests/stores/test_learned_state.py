"""Learned limits in a file survive a restart, and reach other processes at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos import Credential, CredentialCoordinator, CredentialState, Lease, NoCredentialAvailable
from agentos.providers import Event, Reading, Signal

from ..contract.store_contract import SHARED, Place

SECRET = "sk-learned-state-0123456789abcdef"
ROOMY: dict[str, Any] = {"name": "a", "slots": 20}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(SHARED[0], tmp_path)
    yield place
    place.close()


def opened(place: Place, **facts: Any) -> CredentialCoordinator:
    return place.open(Credential(SECRET, **(ROOMY | facts)))


def restarted(place: Place, pool: CredentialCoordinator, **facts: Any) -> CredentialCoordinator:
    return place.restart(pool, Credential(SECRET, **(ROOMY | facts)))


def limited(delay: float | None = None, *readings: Reading, why: str = "429") -> Signal:
    return Signal(Event.LIMITED, delay, readings=readings, evidence=(why,), status=429)


def left(remaining: float, limit: float = 60.0) -> Reading:
    return Reading("requests", limit, remaining, window=60.0, source="x-requests")


def state(pool: CredentialCoordinator) -> CredentialState:
    (row,) = pool.snapshot()
    return row


def lessons(pool: CredentialCoordinator) -> list[str]:
    return [lesson.what for lesson in state(pool).history]


def starts(pool: CredentialCoordinator, most: int = 30) -> list[Lease]:
    """As many leases as the pool gives at once."""
    found: list[Lease] = []
    while len(found) < most:
        try:
            found.append(pool.acquire_nowait())
        except NoCredentialAvailable:
            break
    return found


def next_lease(place: Place, pool: CredentialCoordinator) -> Lease:
    """The next one, however long that takes."""
    while True:
        try:
            return pool.acquire_nowait()
        except NoCredentialAvailable as error:
            place.clock.advance((error.next_free_in or 0.0) + 1e-9)


def give_back(leases: list[Lease]) -> None:
    for lease in leases:
        lease.release()


# -- a restart ----------------------------------------------------------------------------------------------------


def test_a_reported_limit_survives_a_restart_with_its_remainder(place: Place) -> None:
    pool = opened(place)
    with pool.acquire() as lease:
        lease.report(Signal(Event.OK, readings=(left(5.0),)))
    before = state(pool)

    again = restarted(place, pool)

    assert state(again).limits == before.limits
    assert state(again).history == before.history
    assert len(starts(again)) == 4


def test_a_pace_survives_a_restart_and_goes_on_as_if_there_had_been_none(place: Place, tmp_path: Path) -> None:
    def story(place: Place, *, restart: bool) -> list[float]:
        pool = opened(place)
        began = place.clock.now()
        found = []
        for number in range(30):
            lease = next_lease(place, pool)
            found.append(place.clock.now() - began)
            if number % 6 == 0:
                lease.report(limited())
            lease.release()
            if restart and number % 5 == 0:
                pool = restarted(place, pool)
        return found

    other = place.elsewhere(tmp_path / "other")
    try:
        assert story(place, restart=True) == pytest.approx(story(other, restart=False), rel=1e-6)
    finally:
        other.close()


def test_a_cooling_and_why_survive_a_restart(place: Place) -> None:
    pool = opened(place)
    with pool.acquire() as lease:
        lease.report(limited(30.0, why="retry-after: 30"))
    before = state(pool)

    place.clock.advance(10.0)
    again = restarted(place, pool)

    assert (state(again).state, state(again).why) == (before.state, before.why)
    assert (before.state, before.why) == ("cooling", "the provider answered 429: retry-after: 30")
    assert state(again).rate_limited_until == pytest.approx(before.rate_limited_until)


def test_the_slots_that_were_found_survive_a_restart(place: Place) -> None:
    pool = opened(place, slots="auto")
    for _ in range(4):
        give_back(starts(pool))
    slots = state(pool).slots
    assert slots > 4

    again = restarted(place, pool, slots="auto")
    assert state(again).slots == 1  # until a call of this process has gone well
    again.acquire_nowait().release()

    assert state(again).slots >= slots


def test_what_was_learned_is_forgotten_by_a_clear_for_good(place: Place) -> None:
    pool = opened(place)
    with pool.acquire() as lease:
        lease.report(limited(700.0, left(0.0)))
    pool.clear("a")

    again = restarted(place, pool)

    assert (state(again).state, state(again).limits, state(again).history) == ("available", (), ())


def test_a_pool_whose_credentials_share_a_quota_opens_again(place: Place) -> None:
    credentials = [Credential(f"{SECRET}-{name}", name=name, quota="q") for name in "ab"]
    pool = place.open(*credentials)
    with pool.acquire() as lease:
        lease.report(Signal(Event.OK, readings=(left(5.0),)))

    again = place.restart(pool, *credentials)

    assert len(starts(again)) == 2


def test_after_a_restart_a_long_cooldown_ends_with_one_probe(place: Place) -> None:
    pool = opened(place)
    with pool.acquire() as lease:
        lease.report(Signal(Event.PARKED, 7200.0, evidence=("day",)))
    again = restarted(place, pool)
    place.clock.advance(7200.0)

    assert len(starts(again)) == 1


def test_after_a_restart_the_others_follow_the_probe(place: Place) -> None:
    pool = opened(place, rpm=6000)
    with pool.acquire() as lease:
        lease.report(Signal(Event.PARKED, 7200.0, evidence=("day",)))
    again = restarted(place, pool, rpm=6000)
    place.clock.advance(7200.0)
    give_back(starts(again))

    assert len(starts(again)) == 20


# -- two at once --------------------------------------------------------------------------------------------------


def test_a_limit_reported_to_one_process_is_kept_by_the_other(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire() as lease:
        lease.report(Signal(Event.OK, readings=(left(5.0),)))

    assert len(starts(other)) == 4
    assert starts(one) == []
    assert state(other).limits == state(one).limits


def test_a_cooldown_reported_to_one_process_is_kept_by_the_other(place: Place) -> None:
    one, other = opened(place), opened(place)
    lease = other.acquire()
    with one.acquire() as refused:
        refused.report(limited(30.0))

    lease.report(Signal(Event.OK))
    lease.release()

    assert starts(other) == []
    place.clock.advance(30.1)
    assert starts(other)


def test_each_adds_its_lessons_to_those_of_the_other(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire() as lease:
        lease.report(Signal(Event.OK, readings=(left(50.0),)))
    with other.acquire() as lease:
        lease.report(Signal(Event.OK, readings=(left(500.0, limit=600.0),)))

    expected = [
        "limit of 60 requests, told by x-requests",
        "limit of 600 requests, told by x-requests",
    ]
    assert lessons(one) == lessons(other) == expected


def test_refusals_of_one_burst_in_two_processes_are_one_lesson(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire() as lease:
        lease.report(limited())
    for pool in (one, other) * 4:
        next_lease(place, pool).release()
    leases = [next_lease(place, one), next_lease(place, other)]
    before = len(lessons(one))

    for lease in leases:
        lease.report(limited())

    assert len(lessons(one)) == len(lessons(other)) == before + 1


def test_slots_that_one_found_are_had_by_the_other(place: Place) -> None:
    one, other = opened(place, slots="auto"), opened(place, slots="auto")
    other.acquire_nowait().release()
    for _ in range(4):
        give_back(starts(one))

    assert state(other).slots == state(one).slots > 4


def test_a_credential_that_is_not_proven_yet_has_a_slot_for_every_process(place: Place) -> None:
    pools = [opened(place, slots="auto") for _ in range(3)]

    leases = [pool.acquire_nowait() for pool in pools]

    assert [len(starts(pool)) for pool in pools] == [0, 0, 0]  # and one only
    give_back(leases)


def test_a_probe_that_got_no_answer_lets_the_next_one_of_any_process_go_first(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire() as lease:
        lease.report(Signal(Event.PARKED, 7200.0, evidence=("day",)))
    place.clock.advance(7200.0)

    with one.acquire_nowait() as probe:
        probe.report(Signal(Event.NETWORK, evidence=("no answer",)))

    begun = [starts(pool) for pool in (other, one)]
    assert [len(leases) for leases in begun] == [1, 0]


def test_a_process_that_states_its_slots_leaves_those_that_others_found(place: Place) -> None:
    one = opened(place, slots="auto")
    for _ in range(4):
        give_back(starts(one))
    slots = state(one).slots
    other = opened(place, slots=3)
    with other.acquire() as lease:
        lease.report(limited(0.0))

    assert state(other).slots == 3
    assert state(one).slots == slots


def test_a_key_that_is_dead_for_one_is_dead_for_the_other(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire() as lease:
        lease.report(Signal(Event.KEY_DEAD, evidence=("401",), status=401))

    assert state(other).state == "dead"


def test_money_that_is_gone_for_one_is_gone_for_the_other(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire() as lease:
        lease.report(Signal(Event.MONEY_GONE, evidence=("402",)))

    assert state(other).state == "spent"
    other.revive("a")
    assert state(one).state == "available"


def test_a_clear_by_one_is_one_for_the_other(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire() as lease:
        lease.report(limited(700.0, left(0.0)))
    assert state(other).limits

    other.clear("a")

    assert (state(one).limits, state(one).history) == ((), ())
    assert len(starts(one)) == 20


def test_after_a_long_cooldown_one_call_of_all_processes_goes_first(place: Place) -> None:
    one, other = opened(place, rpm=6000), opened(place, rpm=6000)
    with one.acquire() as lease:
        lease.report(Signal(Event.PARKED, 7200.0, evidence=("day",)))
    place.clock.advance(7200.0)
    begun = [starts(pool) for pool in (one, other)]

    assert [len(leases) for leases in begun] == [1, 0]


def test_after_a_long_cooldown_without_limits_one_call_goes_first(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire() as lease:
        lease.report(Signal(Event.PARKED, 7200.0, evidence=("day",)))
    place.clock.advance(7200.0)
    begun = [starts(pool) for pool in (one, other)]

    assert [len(leases) for leases in begun] == [1, 0]


def test_after_a_long_cooldown_others_follow_the_probe_of_another_process(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire() as lease:
        lease.report(Signal(Event.PARKED, 7200.0, evidence=("day",)))
    place.clock.advance(7200.0)
    give_back(starts(one))

    assert len(starts(other)) == 20


def test_after_a_long_cooldown_of_a_model_one_call_of_it_goes_first(place: Place) -> None:
    one, other = opened(place), opened(place)
    with one.acquire(model="large") as lease:
        lease.report(Signal(Event.PARKED, 7200.0, evidence=("day",), scoped=True))
    place.clock.advance(7200.0)

    assert len(starts(other, 3)) == 3
    _held = one.acquire_nowait(model="large")
    for pool in (one, other):
        with pytest.raises(NoCredentialAvailable):
            pool.acquire_nowait(model="large")


def test_a_model_that_a_credential_may_not_use_is_found_out_by_each_process(place: Place) -> None:
    """Not kept: to ask once more costs one call, and a person may have changed it meanwhile."""
    one, other = opened(place), opened(place)
    with one.acquire(model="large") as lease:
        lease.report(Signal(Event.NOT_ENTITLED, evidence=("404",)))

    assert "not for large" in (state(one).why or "")
    assert "not for large" not in (state(other).why or "")
    other.acquire_nowait(model="large").release()
    again = restarted(place, one)
    again.acquire_nowait(model="large").release()


# -- a file that others have locked -------------------------------------------------------------------------------


def locked(place: Place) -> sqlite3.Connection:
    connection = sqlite3.connect(place.folder / "pool.db", isolation_level=None)
    connection.execute("begin immediate")
    return connection


def report_while_locked(place: Place, pool: CredentialCoordinator, signal: Signal) -> None:
    lease = pool.acquire()
    busy = locked(place)
    try:
        lease.report(signal)
    finally:
        busy.close()
    place.clock.advance(1.0)
    lease.release()


def test_what_was_reported_while_the_file_was_locked_is_kept_afterwards(place: Place) -> None:
    pool = opened(place)

    report_while_locked(place, pool, limited(700.0))

    assert state(restarted(place, pool)).state == "parked"


def test_a_lesson_that_was_put_off_is_learned_once(place: Place) -> None:
    pool = opened(place)
    with pool.acquire() as lease:
        lease.report(limited(0.0))
    with pool._runtime.scheduler.locked():
        quota = pool._runtime.core.keys["a"].quota
        pace: Any = quota.learned["pace"]
        pace.rate, pace.searching_since, pace.level = 64.0, None, 20.0

    report_while_locked(place, pool, Signal(Event.RAMP, 0.0, evidence=("slow_down",)))

    assert sum("traffic grew too fast" in what for what in lessons(pool)) == 1
    assert pace.rate == pytest.approx(32.0, rel=0.02)  # twice would be 16


# -- secrets ------------------------------------------------------------------------------------------------------


def test_no_secret_gets_into_the_file(place: Place) -> None:
    pool = opened(place)
    for event in (Event.LIMITED, Event.RAMP, Event.PARKED, Event.MONEY_GONE, Event.KEY_DEAD):
        with pool.acquire() as lease:
            lease.report(Signal(event, 5.0, evidence=(f"Incorrect API key {SECRET}",)))
        assert SECRET not in repr(pool.snapshot())
        pool.clear("a")
    with pool.acquire() as lease:
        lease.report(limited(None, why=f"Incorrect API key {SECRET}"))
    pool.close()

    for file in place.folder.iterdir():
        assert SECRET.encode() not in file.read_bytes()
        assert SECRET[3:20].encode() not in file.read_bytes()
