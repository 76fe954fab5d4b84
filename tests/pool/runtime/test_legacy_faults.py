"""The faults of the original pools, one test each, named for what must happen instead. None may return."""

from __future__ import annotations

import gc
import io
import logging
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from agentos import NoCredentialAvailable
from agentos.testing import FakeClock
from agentos.util.clock import Sleeper
from agentos.workflows.parallel import CredentialCoordinator

from .legacy_helpers import ALPHA, BRAVO, CHARLIE, PATIENCE, Person, company, pieces

Invite = Callable[[str], Person]
HOUR = 3600.0
FEW, MANY = 20, 20_000


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


def pool_of(clock: FakeClock, *credentials: str) -> CredentialCoordinator:
    return CredentialCoordinator(list(credentials), clock=clock, debug=True)


# -- a waiter that is never woken ---------------------------------------------------------------------------------


def test_a_waiter_starts_when_a_backoff_ends_though_nobody_gives_anything_back(
    clock: FakeClock, invite: Invite
) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)
    began = clock.now()
    waiting = invite("bob").starts(lambda: (pool.reserve(), clock.now() - began))
    clock.wait_for_sleepers(1)

    clock.advance(60.0)

    assert waiting.result(PATIENCE) == (ALPHA, 60.0)


def test_a_waiter_starts_when_the_backoff_ends_and_not_when_its_timeout_does(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)
    began = clock.now()
    waiting = invite("bob").starts(lambda: (pool.reserve(timeout=90.0), clock.now() - began))
    clock.wait_for_sleepers(1)

    clock.advance(60.0)

    assert waiting.result(PATIENCE) == (ALPHA, 60.0)


def test_every_waiter_starts_when_the_backoffs_of_several_keys_end_at_once(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA, BRAVO, CHARLIE)
    for key in (ALPHA, BRAVO, CHARLIE):
        pool.mark_rate_limited(key, 60)
    waiting = []
    for place in (1, 2, 3):
        waiting.append(invite(f"person {place}").starts(pool.reserve))
        clock.wait_for_sleepers(place)

    clock.advance(60.0)

    assert {future.result(PATIENCE) for future in waiting} == {ALPHA, BRAVO, CHARLIE}


class JumpingClock(FakeClock):
    """Time does something just before the n-th reading from now on, or at the latest before anybody falls asleep."""

    def __init__(self) -> None:
        super().__init__()
        self._readings = 0
        self._jump: Callable[[], None] | None = None

    def expect(self, reading: int, jump: Callable[[], None]) -> None:
        self._readings, self._jump = reading, jump

    def now(self) -> float:
        self._readings -= 1
        self._jump_if(self._readings <= 0)
        return super().now()

    def wall(self) -> float:
        self._readings -= 1
        self._jump_if(self._readings <= 0)
        return super().wall()

    def wait(self, sleeper: Sleeper, until: float) -> None:
        self._jump_if(True)
        super().wait(sleeper, until)

    def _jump_if(self, due: bool) -> None:
        if due and self._jump is not None:
            jump, self._jump = self._jump, None
            jump()

    def set_wall(self, change: float) -> None:
        self.wall_offset += change


@pytest.mark.parametrize("reading", range(1, 9))
def test_a_backoff_that_ends_between_looking_and_falling_asleep_is_noticed(invite: Invite, reading: int) -> None:
    clock = JumpingClock()
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)

    clock.expect(reading, lambda: clock.advance(HOUR))
    waiting = invite("bob").starts(pool.reserve)

    assert waiting.result(PATIENCE) == ALPHA


def test_a_waiter_that_gave_up_leaves_the_end_of_the_backoff_to_the_next(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)
    impatient = invite("alice").starts(pool.reserve, timeout=59.0)
    clock.wait_for_sleepers(1)
    patient = invite("bob").starts(pool.reserve)
    clock.wait_for_sleepers(2)

    clock.advance(59.0)
    assert impatient.result(PATIENCE) is None
    clock.advance(1.0)

    assert patient.result(PATIENCE) == ALPHA


def test_a_waiter_that_gave_up_leaves_a_released_key_to_the_next(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    impatient = invite("alice").starts(pool.reserve, timeout=10.0)
    clock.wait_for_sleepers(1)
    patient = invite("bob").starts(pool.reserve)
    clock.wait_for_sleepers(2)
    clock.advance(10.0)
    assert impatient.result(PATIENCE) is None

    pool.release(ALPHA)

    assert patient.result(PATIENCE) == ALPHA


class MeanwhileClock(FakeClock):
    """Who wakes because its time is up is held up by something that happens before it can look around."""

    meanwhile: Callable[[], None] | None = None

    def wait(self, sleeper: Sleeper, until: float) -> None:
        super().wait(sleeper, until)
        if self.meanwhile is not None and self.now() >= until:
            act, self.meanwhile = self.meanwhile, None
            act()


def test_a_key_released_in_the_moment_a_waiter_gives_up_is_not_lost_to_the_next(invite: Invite) -> None:
    clock = MeanwhileClock()
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    alice = invite("alice")
    impatient = alice.starts(pool.reserve, timeout=10.0)
    clock.wait_for_sleepers(1)
    patient = invite("bob").starts(pool.reserve)
    clock.wait_for_sleepers(2)

    clock.meanwhile = lambda: pool.release(ALPHA)
    clock.advance(10.0)
    if impatient.result(PATIENCE) is not None:
        alice.does(pool.release, ALPHA)

    assert patient.result(PATIENCE) == ALPHA


# -- waiting is not failing ---------------------------------------------------------------------------------------


def test_waiters_stay_while_all_keys_cool_down_for_any_time(clock: FakeClock, invite: Invite) -> None:
    """The originals' patience was 2.5 s, or 30 s, against a back-off of 60 s."""
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 24 * HOUR)

    def use() -> str | None:
        key = pool.reserve()
        assert key is not None
        pool.release(key)
        return key

    waiting = []
    for place in range(1, 6):
        waiting.append(invite(f"person {place}").starts(use))
        clock.wait_for_sleepers(place)
    for seconds in (2.5, 27.5, 30.0, 23 * HOUR, HOUR - 60.0):
        assert not any(future.done() for future in waiting)
        clock.advance(seconds)

    assert [future.result(PATIENCE) for future in waiting] == [ALPHA] * 5


def test_a_lease_waits_through_a_backoff_unless_told_otherwise(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA)
    waiting = invite("bob").starts(lambda: pool.acquire().name)
    clock.wait_for_sleepers(1)

    clock.advance(30.0)
    assert not waiting.done()
    clock.advance(30.0)

    assert waiting.result(PATIENCE) == "key-1"


def test_a_timeout_error_says_how_long_the_wait_would_have_been(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)
    waiting = invite("bob").starts(lambda: pool.acquire(timeout=45.0))
    clock.wait_for_sleepers(1)

    clock.advance(45.0)

    with pytest.raises(NoCredentialAvailable, match=r"due in 15\.0s") as told:
        waiting.result(PATIENCE)
    assert (told.value.waited, told.value.next_free_in) == (45.0, 15.0)


def test_the_pool_has_the_verb_that_the_original_coordinator_calls(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)

    assert [pool.acquire_credential(), pool.acquire_credential()] == [ALPHA, None]


# -- whose key it is ----------------------------------------------------------------------------------------------


def test_a_second_release_does_not_free_the_key_under_its_next_user(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    alice, bob, carol = invite("alice"), invite("bob"), invite("carol")
    alice.does(pool.reserve, timeout=0)
    alice.does(pool.release, ALPHA)
    assert bob.does(pool.reserve, timeout=0) == ALPHA

    alice.does(pool.release, ALPHA)

    assert carol.does(pool.reserve, timeout=0) is None


def test_a_second_release_credential_does_not_free_the_key_under_its_next_user(
    clock: FakeClock, invite: Invite
) -> None:
    pool = pool_of(clock, ALPHA)
    alice, bob, carol = invite("alice"), invite("bob"), invite("carol")
    alice.does(pool.reserve_credential, "alice")
    alice.does(pool.release_credential, ALPHA)
    assert bob.does(pool.reserve_credential, "bob") == ALPHA

    alice.does(pool.release_credential, ALPHA)

    assert carol.does(pool.reserve_credential, "carol") is None


def test_a_release_after_a_rate_limit_does_not_free_the_key_under_its_next_user(
    clock: FakeClock, invite: Invite
) -> None:
    """Marking the key had ended the reservation already; the release is the worker's ``finally``."""
    pool = pool_of(clock, ALPHA)
    alice, bob, carol = invite("alice"), invite("bob"), invite("carol")
    alice.does(pool.reserve, timeout=0)
    alice.does(pool.mark_rate_limited, ALPHA, 10)
    clock.advance(10.0)
    assert bob.does(pool.reserve, timeout=0) == ALPHA

    alice.does(pool.release, ALPHA)

    assert carol.does(pool.reserve, timeout=0) is None


def test_a_late_report_of_a_rate_limit_does_not_end_the_next_users_reservation(
    clock: FakeClock, invite: Invite
) -> None:
    pool = pool_of(clock, ALPHA)
    alice, bob, carol = invite("alice"), invite("bob"), invite("carol")
    alice.does(pool.reserve, timeout=0)
    alice.does(pool.release, ALPHA)
    assert bob.does(pool.reserve, timeout=0) == ALPHA

    alice.does(pool.mark_rate_limited, ALPHA, 10)
    clock.advance(10.0)

    assert carol.does(pool.reserve, timeout=0) is None


def test_a_shorter_backoff_does_not_cut_a_longer_one(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)
    pool.mark_rate_limited(ALPHA, 5)

    clock.advance(5.0)

    assert pool.get_available_count() == 0


# -- the wall clock -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [-HOUR, HOUR])
def test_setting_the_wall_clock_does_not_change_a_backoff(clock: FakeClock, change: float) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)

    clock.wall_offset += change

    clock.advance(59.0)
    assert pool.get_available_count() == 0
    clock.advance(1.0)
    assert pool.get_available_count() == 1


@pytest.mark.parametrize("change", [-HOUR, HOUR])
def test_setting_the_wall_clock_does_not_change_how_long_a_waiter_waits_for_a_backoff(
    clock: FakeClock, invite: Invite, change: float
) -> None:
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)
    began = clock.now()
    waiting = invite("bob").starts(lambda: (pool.reserve(timeout=60.0), clock.now() - began))
    clock.wait_for_sleepers(1)

    clock.wall_offset += change
    clock.advance(60.0)

    assert waiting.result(PATIENCE) == (ALPHA, 60.0)


@pytest.mark.parametrize("change", [-HOUR, HOUR])
def test_setting_the_wall_clock_does_not_change_a_timeout(clock: FakeClock, invite: Invite, change: float) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    began = clock.now()
    waiting = invite("bob").starts(lambda: (pool.reserve(timeout=30.0), clock.now() - began))
    clock.wait_for_sleepers(1)

    clock.wall_offset += change
    clock.advance(30.0)

    assert waiting.result(PATIENCE) == (None, 30.0)


@pytest.mark.parametrize("reading", range(1, 9))
@pytest.mark.parametrize("change", [-HOUR, HOUR])
def test_setting_the_wall_clock_between_two_looks_at_it_does_not_change_a_timeout(
    invite: Invite, change: float, reading: int
) -> None:
    clock = JumpingClock()
    pool = pool_of(clock, ALPHA)
    pool.reserve()

    clock.expect(reading, lambda: clock.set_wall(change))
    waiting = invite("bob").starts(pool.reserve, timeout=30.0)
    clock.wait_for_sleepers(1)
    clock.advance(30.0)

    assert waiting.result(PATIENCE) is None


# -- going through the whole pool ---------------------------------------------------------------------------------


def steps_of(act: Callable[[], object]) -> int:
    """How many lines of Python *act* runs through: a measure of work that no machine makes faster or slower."""
    steps = 0

    def count(_frame: FrameType, event: str, _arg: Any) -> Callable[..., Any]:
        nonlocal steps
        steps += event == "line"
        return count

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # what the collector calls would be counted too
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
        gc.enable()
    return steps


def worn_pool(clock: FakeClock, size: int) -> tuple[CredentialCoordinator, list[str]]:
    """A pool whose keys are all reserved. Not in debug mode, where every step looks at the whole pool on purpose."""
    keys = [f"k{i:07}" for i in range(size)]
    pool = CredentialCoordinator(keys, clock=clock, debug=False)
    assert [pool.reserve_credential("somebody") for _ in keys] == keys
    pool.release_credential(keys[0])
    assert pool.reserve_credential("somebody") == keys[0]
    assert pool.reserve_credential("somebody") is None
    return pool, keys


def test_reserving_the_one_free_key_takes_as_many_steps_in_a_large_pool_as_in_a_small_one(clock: FakeClock) -> None:
    def steps(size: int) -> list[int]:
        pool, keys = worn_pool(clock, size)
        found = []
        for key in (keys[0], keys[size // 2], keys[-1]):
            found.append(steps_of(lambda key=key: pool.release_credential(key)))  # type: ignore[misc]
            found.append(steps_of(lambda: pool.reserve_credential("somebody")))
        return found

    assert steps(MANY) == steps(FEW)


def test_finding_no_free_key_takes_as_many_steps_in_a_large_pool_as_in_a_small_one(clock: FakeClock) -> None:
    def steps(size: int) -> int:
        pool, _ = worn_pool(clock, size)
        return steps_of(lambda: pool.reserve_credential("somebody"))

    assert steps(MANY) == steps(FEW)


# -- counting and simulating --------------------------------------------------------------------------------------


def test_the_429_simulation_is_harmless_on_an_empty_pool(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_SIMULATE_429", "true")

    assert pool_of(clock).reserve_credential("somebody") is None


def test_a_key_in_use_that_is_limited_too_is_counted_once(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(clock, ALPHA, BRAVO)
    pool.reserve_credential("somebody")
    monkeypatch.setenv("AGENTOS_SIMULATE_429", "true")
    pool.reserve_credential("somebody else")

    stats = pool.get_stats()

    assert stats["total"] == 2
    assert sum(stats.values()) - stats["total"] == 2


@pytest.mark.parametrize("reading", range(1, 6))
def test_a_key_whose_backoff_ends_while_it_is_counted_is_counted_once(reading: int) -> None:
    clock = JumpingClock()
    pool = pool_of(clock, ALPHA)
    pool.mark_rate_limited(ALPHA, 60)

    clock.expect(reading, lambda: clock.advance(HOUR))
    stats = pool.get_stats()

    assert sum(stats.values()) - stats["total"] == stats["total"] == 1


def test_giving_a_key_back_never_sets_off_the_429_simulation(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    monkeypatch.setenv("AGENTOS_SIMULATE_429", "true")

    pool.release(ALPHA)

    assert pool.get_available_count() == 1


# -- who is next --------------------------------------------------------------------------------------------------


def test_the_longest_unused_key_is_reserved_first(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO, CHARLIE)

    used = []
    for _ in range(6):
        used.append(pool.reserve(timeout=0))
        pool.release(used[-1] or "")

    assert used == [ALPHA, BRAVO, CHARLIE] * 2


def test_the_longest_unused_key_is_the_one_given_back_first(clock: FakeClock) -> None:
    pool = pool_of(clock, ALPHA, BRAVO, CHARLIE)
    for _ in range(3):
        pool.reserve_credential("somebody")
    for key in (CHARLIE, ALPHA, BRAVO):
        pool.release_credential(key)

    assert [pool.reserve_credential("somebody") for _ in range(3)] == [CHARLIE, ALPHA, BRAVO]


def test_waiters_are_served_in_the_order_they_came(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    served: list[str] = []

    def use(who: str) -> None:
        key = pool.reserve()
        served.append(who)
        pool.release(key or "")

    names = [f"person {place}" for place in range(1, 9)]
    waiting = []
    for place, name in enumerate(names, start=1):
        waiting.append(invite(name).starts(use, name))
        clock.wait_for_sleepers(place)

    pool.release(ALPHA)

    for future in waiting:
        future.result(PATIENCE)
    assert served == names


def test_a_newcomer_does_not_pass_those_who_wait(clock: FakeClock, invite: Invite) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    waiting = invite("bob").starts(pool.reserve)
    clock.wait_for_sleepers(1)

    pool.release(ALPHA)
    greedy = pool.reserve(timeout=0)

    assert greedy is None
    assert waiting.result(PATIENCE) == ALPHA


# -- what a credential may be -------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_an_empty_credential_is_refused(clock: FakeClock, empty: str) -> None:
    with pytest.raises(ValueError, match=r"credentials\[1\].*empty"):
        pool_of(clock, ALPHA, empty)


def test_a_duplicate_credential_is_refused_without_showing_it(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match=r"credentials\[2\].*already in the pool") as told:
        pool_of(clock, ALPHA, BRAVO, ALPHA)

    assert [piece for piece in pieces(ALPHA, 4) if piece in str(told.value)] == []


# -- what is shown ------------------------------------------------------------------------------------------------

SECRET, OTHER = "zQ7xWv9JfLm2TgR8", "Hb4nYc6Kp0DsUe1A"  # no piece of them is in any ordinary text


def test_nothing_is_printed(clock: FakeClock, invite: Invite, capfd: pytest.CaptureFixture[str]) -> None:
    pool = pool_of(clock, ALPHA)
    pool.reserve()
    waiting = invite("bob").starts(pool.reserve, timeout=1.0)
    clock.wait_for_sleepers(1)
    clock.advance(1.0)
    waiting.result(PATIENCE)
    pool.mark_rate_limited(ALPHA)
    pool.reserve(timeout=0)
    pool.release(ALPHA)
    pool.release("not in the pool")

    assert capfd.readouterr() == ("", "")


def test_nothing_is_logged_under_the_pools_lock(
    clock: FakeClock, invite: Invite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listens may be slow, or may ask the pool something: neither may stop the others."""

    class CuriousHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append((record.getMessage(), carol.does(pool.get_available_count)))

    class CuriousScreen(io.StringIO):
        def write(self, said: str) -> int:
            heard.append((said, carol.does(pool.get_available_count)))
            return len(said)

    def story() -> None:
        pool.reserve()
        pool.reserve(timeout=0)
        pool.mark_rate_limited(ALPHA)
        pool.reserve(timeout=0)
        pool.release(ALPHA)
        pool.release("not in the pool")

    heard: list[tuple[str, int]] = []
    pool = pool_of(clock, ALPHA)
    alice, carol = invite("alice"), invite("carol")
    logger, handler = logging.getLogger("agentos"), CuriousHandler()
    logger.addHandler(handler)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", CuriousScreen())
            alice.starts(story).result(4 * PATIENCE)
    finally:
        logger.removeHandler(handler)

    assert len(heard) >= 4


def test_no_piece_of_a_key_is_logged_or_shown(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, invite: Invite
) -> None:
    caplog.set_level(logging.DEBUG, logger="agentos")
    pool = pool_of(clock, SECRET, OTHER)
    shown: list[object] = [pool]
    pool.reserve_credential("item-1")
    pool.mark_rate_limited(SECRET)
    pool.release(SECRET)
    lease = pool.acquire("item-2")
    lease.rate_limited(5)
    shown += [lease, lease.secret, pool.snapshot(), pool.get_stats(), pool.explain("item-2")]
    assert pool.reserve(timeout=0) is None
    with pytest.raises(NoCredentialAvailable) as told:
        pool.acquire_nowait()
    shown.append(told.value)
    lease.rejected(f"401 Unauthorized: key {OTHER} is not valid")
    lease.release()
    lease.release()
    invite("bob").does(pool.release, SECRET)
    shown += pool.snapshot()

    text = caplog.text + "".join(f"{thing!r}{thing!s}" for thing in shown)

    assert "key-1" in text
    assert [piece for piece in pieces(SECRET, 4) | pieces(OTHER, 4) if piece in text] == []
