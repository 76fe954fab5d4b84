"""Buckets, sliding windows and days: when a request fits, and what is left."""

from __future__ import annotations

import datetime
import itertools
import random
from zoneinfo import ZoneInfo

import pytest

from agentos import Limit
from agentos.pool.core.invariants import r2_starts_keep_to_the_limit
from agentos.pool.core.limits.base import FOREVER, LimitState
from agentos.pool.core.limits.bucket import Bucket
from agentos.pool.core.limits.calendar import CalendarWindow, WallTime, next_reset
from agentos.pool.core.limits.create import build_limit_state
from agentos.pool.core.limits.sliding import SlidingWindow

UTC = datetime.UTC


def test_a_bucket_starts_full_and_refills_continuously() -> None:
    bucket = Bucket(Limit("tokens", 600, per=60))

    assert bucket.reserve(600, 100.0) is not None
    assert bucket.reserve(1, 100.0) is None
    assert bucket.ready_at(100, 100.0) == 110.0
    assert bucket.left(105.0) == 50.0
    assert bucket.reserve(100, 110.0) is not None


def test_a_burst_is_what_may_start_at_once() -> None:
    bucket = Bucket(Limit("requests", 60, per=60, burst=2))

    assert bucket.reserve(1, 0.0) is not None
    assert bucket.reserve(1, 0.0) is not None
    assert bucket.reserve(1, 0.0) is None
    assert bucket.ready_at(1, 0.0) == 1.0


def test_a_full_bucket_gives_all_it_holds_at_any_instant() -> None:
    """Instants are floats: (now - fill time) + fill time may come out a hair after now."""
    r = random.Random(7)
    for _ in range(2000):
        limit = Limit("tokens", r.uniform(1, 1e6), per=r.uniform(0.1, 1e4))
        bucket = Bucket(limit)
        now = r.uniform(0, 1e7)
        assert bucket.ready_at(limit.amount, now) == now
        assert bucket.reserve(limit.amount, now) is not None


def test_the_instant_a_bucket_names_is_one_at_which_it_keeps_its_word() -> None:
    r = random.Random(8)
    for _ in range(2000):
        limit = Limit("tokens", r.uniform(1, 1e6), per=r.uniform(0.1, 1e4))
        bucket = Bucket(limit)
        now = r.uniform(0, 1e7)
        for _ in range(5):
            need = r.uniform(0, limit.amount)
            now = bucket.ready_at(need, now)
            assert bucket.reserve(need, now) is not None


def test_what_was_reserved_too_much_comes_back() -> None:
    bucket = Bucket(Limit("tokens", 1000, per=60))
    stamp = bucket.reserve(600, 0.0)
    assert stamp is not None

    bucket.correct(stamp, -500, 0.0)

    assert bucket.left(0.0) == pytest.approx(900)


def test_what_ran_over_does_not_come_back() -> None:
    """Reserved, refilled to the brim, reserved again: the first reservation has nothing to give back any more."""
    bucket = Bucket(Limit("tokens", 100, per=100))
    first = bucket.reserve(100, 0.0)
    assert first is not None
    assert bucket.reserve(100, 100.0) is not None

    bucket.correct(first, -100, 100.5)

    assert bucket.left(100.5) == pytest.approx(0.5)


def test_two_reservations_do_not_give_back_the_same_room_twice() -> None:
    bucket = Bucket(Limit("tokens", 100, per=100))
    first, second = bucket.reserve(50, 0.0), bucket.reserve(50, 0.0)
    assert first is not None
    assert second is not None
    assert bucket.reserve(20, 40.0) is not None  # at that instant it was 60 below full

    bucket.correct(first, -50, 40.0)
    bucket.correct(second, -50, 40.0)

    assert bucket.left(40.0) == pytest.approx(80)


def test_what_was_used_beyond_the_reservation_is_owed() -> None:
    bucket = Bucket(Limit("tokens", 60, per=60))
    stamp = bucket.reserve(10, 0.0)
    assert stamp is not None

    bucket.correct(stamp, 80, 0.0)

    assert bucket.left(0.0) == pytest.approx(-30)
    assert bucket.ready_at(1, 0.0) == pytest.approx(31.0)


def test_undoing_leaves_every_kind_as_it_was() -> None:
    for limit in (
        Limit("tokens", 100),
        Limit("tokens", 100, window="sliding"),
        Limit("tokens", 100, per="day"),
    ):
        state = build_limit_state(limit, WallTime())
        assert state.reserve(30, 1000.1) is not None
        before = state.left(1003.3)
        stamp = state.reserve(50, 1003.3)
        assert stamp is not None

        state.undo(stamp, 50)

        assert state.left(1003.3) == before


def test_undoing_takes_out_ones_own_start_and_not_an_equal_one() -> None:
    window = SlidingWindow(Limit("tokens", 200, per=60, window="sliding"))
    first = window.reserve(50, 0.0)
    second = window.reserve(50, 0.0)
    assert first is not None
    assert second is not None

    window.undo(second, 50)
    window.correct(first, -40, 1.0)

    assert window.left(1.0) == 190
    assert window.left(61.0) == 200


def test_a_request_bucket_gives_nothing_back_that_others_may_have_had() -> None:
    bucket = Bucket(Limit("requests", 10, per=100))
    stamp = bucket.reserve(10, 0.0)
    assert stamp is not None
    assert bucket.reserve(10, 100.0) is not None

    bucket.correct(stamp, -10, 100.0)

    assert bucket.left(100.0) == 0


def test_a_long_drain_keeps_what_it_remembers_bounded() -> None:
    bucket = Bucket(Limit("tokens", 100_000, per=60))
    for _ in range(10_000):
        assert bucket.reserve(1, 0.0) is not None

    assert len(bucket._fullest) <= 32


def test_a_sliding_window_never_holds_more_than_its_amount() -> None:
    window = SlidingWindow(Limit("requests", 3, per=10, window="sliding"))
    for at in (0.0, 4.0, 8.0):
        assert window.reserve(1, at) is not None

    assert window.reserve(1, 9.9) is None
    # A little later than after the window: the call that left it may have reached the provider late.
    assert window.reserve(1, 10.0) is None
    assert window.ready_at(1, 9.9) == pytest.approx(10.01)
    assert window.ready_at(2, 9.9) == pytest.approx(14.01)
    assert window.reserve(1, 10.01) is not None


def test_the_time_that_a_start_counts_longer_is_short_beside_the_window() -> None:
    window = SlidingWindow(Limit("requests", 1, per=0.5, window="sliding"))
    assert window.reserve(1, 0.0) is not None

    assert window.ready_at(1, 0.1) == pytest.approx(0.505)


def test_a_sliding_window_that_was_full_at_the_provider_waits_for_its_oldest_start() -> None:
    """At the edge: one refill, and each start counts a little longer; the amount stays."""
    window = SlidingWindow(Limit("requests", 100, per=10, window="sliding"))
    stamps = [window.take(1, at / 10) for at in range(100)]

    window.refuse(stamps[-1], 1, 9.95)

    assert window.ready_at(1, 9.95) == pytest.approx(10.015)
    assert window.left(10.015) == 2  # the refused one took nothing, and the oldest has left
    assert window.allowance.value == 100


def test_a_sliding_window_that_is_refused_early_allows_what_was_admitted() -> None:
    """Others use the rest; one call finds out soon if the limit refills continuously instead."""
    window = SlidingWindow(Limit("requests", 10, per=10, window="sliding"))
    stamps = [window.take(1, 0.0) for _ in range(7)]

    window.refuse(stamps[-1], 1, 0.1)

    assert window.allowance.value == 6
    probe_at = window.ready_at(1, 0.1)
    assert probe_at == pytest.approx(3.1)  # three refills
    probe = window.reserve(1, probe_at)
    assert probe is not None
    assert window.ready_at(1, probe_at) > 10  # one call only
    window.admit(probe)
    assert window.ready_at(1, probe_at) == probe_at  # it refills: the amount holds


def test_a_sliding_window_whose_probe_is_refused_is_a_window() -> None:
    window = SlidingWindow(Limit("requests", 10, per=10, window="sliding"))
    stamps = [window.take(1, 0.0) for _ in range(7)]
    window.refuse(stamps[-1], 1, 0.1)
    probe = window.reserve(1, 3.1)
    assert probe is not None

    window.refuse(probe, 1, 3.2)

    assert window.is_window
    assert window.ready_at(1, 3.2) == pytest.approx(10.01)
    assert window.left(10.02) == 6


def refused_again_and_again(window: SlidingWindow, admits: int, until: float) -> int:
    """Use the window at a provider that admits less and counts refused calls, and return how many it refuses."""
    counted: list[float] = []
    refused, now = 0, 0.0
    while (now := window.ready_at(1, now)) < until:
        stamp = window.take(1, now)
        counted = [at for at in counted if at > now - window.per]
        if len(counted) >= admits:
            refused += 1
            window.refuse(stamp, 1, now)
        else:
            window.admit(stamp)
        counted.append(now)
        now += 0.01
    return refused


def test_refused_calls_count_once_they_were_seen_to() -> None:
    window = SlidingWindow(Limit("requests", 10, per=10, window="sliding"))

    assert refused_again_and_again(window, 8, 100.0) <= 6
    assert window.counts_refused


def test_a_call_that_is_admitted_though_refused_ones_would_fill_the_window_says_that_they_do_not_count() -> None:
    window = SlidingWindow(Limit("requests", 3, per=10, window="sliding"))
    stamps = [window.take(1, 0.0), window.take(1, 5.0), window.take(1, 6.0)]
    window.refuse(stamps[-1], 1, 6.0)

    window.admit(window.take(1, 10.1))
    window.refuse(window.take(1, 11.0), 1, 11.0)
    window.refuse(window.take(1, 12.0), 1, 12.0)

    assert not window.counts_refused


def test_what_is_known_of_refused_calls_outlives_the_process() -> None:
    window = SlidingWindow(Limit("requests", 10, per=10, window="sliding"))
    refused_again_and_again(window, 8, 11.0)
    assert window.refused

    other = SlidingWindow(window.limit)
    other.unpack(window.pack())

    assert (other.counts_refused, other.refused) == (window.counts_refused, window.refused)


def test_after_a_refusal_one_call_goes_first_and_then_twice_as_many_each_time() -> None:
    window = SlidingWindow(Limit("requests", 100, per=10, window="sliding"))
    stamps = [window.take(1, 0.0) for _ in range(60)]
    window.refuse(stamps[-1], 1, 0.1, lag=0.1)

    now = 10.05
    starts: list[float] = []
    while len(starts) < 16:
        now = window.ready_at(1, now)
        window.take(1, now)
        starts.append(now - 10.05)

    assert [sum(at < limit for at in starts) for limit in (0.1, 0.2, 0.4, 0.5)] == [1, 2, 6, 9]


def test_once_a_call_was_refused_those_of_a_window_start_one_by_one() -> None:
    """But all of them together take a quarter of the window at most."""
    window = SlidingWindow(Limit("requests", 10, per=10, window="sliding"))
    window.refuse([window.take(1, 0.0) for _ in range(10)][-1], 1, 0.1, lag=0.1)

    starts = [window.ready_at(1, 30.0)]
    for _ in range(5):
        window.take(1, starts[-1])
        starts.append(window.ready_at(1, starts[-1]))

    assert [later - at for at, later in itertools.pairwise(starts)][1:] == pytest.approx([0.12] * 4)


def test_a_window_that_loses_calls_until_the_probe_makes_none() -> None:
    window = SlidingWindow(Limit("requests", 10, per=10, window="sliding"))
    window.take(1, 0.0)
    stamps = [window.take(1, 8.0) for _ in range(6)]

    window.refuse(stamps[-1], 1, 8.1)

    assert window.probe_at == FOREVER  # at 11.1 it would be admitted in any case


def test_only_a_refusal_at_the_edge_makes_starts_count_longer() -> None:
    window = SlidingWindow(Limit("requests", 10, per=10, window="sliding"))
    stamps = [window.take(1, 0.0) for _ in range(7)]
    before = window.guard

    window.refuse(stamps[-1], 1, 0.1)

    assert window.guard == before


def test_starts_of_a_long_window_count_a_little_longer_since_others_wait_for_the_same_instant() -> None:
    window = SlidingWindow(Limit("requests", 1, per=86_400, window="sliding"))
    window.take(1, 0.0)

    assert window.ready_at(1, 1.0) == pytest.approx(86_400 + 8.64)


def test_a_probe_that_another_limit_held_back_is_made_by_the_next_call() -> None:
    """Else a call that starts when the window is new anyway would be taken for the probe, and prove nothing."""
    window = SlidingWindow(Limit("requests", 10, per=10, window="sliding"))
    stamps = [window.take(1, 0.0) for _ in range(7)]
    window.refuse(stamps[-1], 1, 0.1)
    probe = window.reserve(1, 3.1)
    assert probe is not None

    window.undo(probe, 1)

    assert window.ready_at(1, 3.1) == 3.1
    later = window.reserve(1, 11.0)
    assert later is not None
    window.admit(later)
    assert window.is_window is None
    assert window.allowance.value < 10


def test_a_day_that_is_refused_early_allows_what_was_admitted() -> None:
    day = CalendarWindow(Limit("requests", 100, per="day"), WallTime())
    stamps = [day.take(1, 10.0) for _ in range(61)]

    day.refuse(stamps[-1], 1, 11.0)

    assert day.ready_at(1, 11.0) == pytest.approx(86_400.0)
    assert day.left(86_400.0) == 60


def test_a_sliding_window_is_corrected_while_it_remembers() -> None:
    window = SlidingWindow(Limit("tokens", 100, per=10, window="sliding"))
    stamp = window.reserve(80, 0.0)
    assert stamp is not None

    window.correct(stamp, -60, 5.0)
    assert window.left(5.0) == 80
    window.correct(stamp, -20, 10.01)
    assert window.left(10.01) == 100


def test_a_day_is_new_at_its_hour() -> None:
    midnight = datetime.datetime(2026, 11, 15, tzinfo=UTC).timestamp()
    day = CalendarWindow(Limit("requests", 2, per="day"), WallTime(offset=midnight))

    assert day.reserve(1, 3600.0) is not None
    assert day.reserve(1, 80_000.0) is not None
    assert day.reserve(1, 86_399.0) is None
    assert day.ready_at(1, 80_000.0) == pytest.approx(86_400.0)
    assert day.reserve(1, day.ready_at(1, 80_000.0)) is not None


def test_a_correction_of_yesterday_does_not_change_today() -> None:
    day = CalendarWindow(Limit("tokens", 100, per="day"), WallTime())
    stamp = day.reserve(90, 0.0)
    assert stamp is not None

    day.correct(stamp, 50, 86_401.0)

    assert day.left(86_401.0) == 100


def test_a_clock_set_back_does_not_make_a_day_new_nor_endless() -> None:
    wall = WallTime(offset=10 * 86_400.0)
    day = CalendarWindow(Limit("requests", 1, per="day"), wall)
    assert day.reserve(1, 10.0) is not None

    wall.offset = 2 * 86_400.0

    assert day.reserve(1, 20.0) is None
    assert day.ready_at(1, 20.0) == pytest.approx(86_400.0)


@pytest.mark.parametrize(
    ("limit", "now", "expected"),
    [
        (Limit("requests", 1, per="day"), "2026-11-15T00:00:00+00:00", "2026-11-16T00:00:00+00:00"),
        (Limit("requests", 1, per="day", resets_at="07:30"), "2026-11-15T07:29:59+00:00", "2026-11-15T07:30:00+00:00"),
        (
            Limit("requests", 1, per="day", tz="America/Los_Angeles"),
            "2026-11-15T07:00:00+00:00",
            "2026-11-15T08:00:00+00:00",
        ),
        # Summer time begins and ends in Los Angeles: days of 23 and 25 hours.
        (
            Limit("requests", 1, per="day", tz="America/Los_Angeles"),
            "2026-03-08T08:00:00+00:00",
            "2026-03-09T07:00:00+00:00",
        ),
        (
            Limit("requests", 1, per="day", tz="America/Los_Angeles"),
            "2026-11-01T07:00:00+00:00",
            "2026-11-02T08:00:00+00:00",
        ),
    ],
)
def test_the_next_reset_is_at_the_hour_of_the_zone(limit: Limit, now: str, expected: str) -> None:
    reset = next_reset(limit, datetime.datetime.fromisoformat(now).timestamp())

    assert datetime.datetime.fromtimestamp(reset, UTC).isoformat() == expected


def test_an_hour_that_summer_time_skips_still_resets_once_a_day() -> None:
    limit = Limit("requests", 1, per="day", resets_at="02:30", tz="Europe/Berlin")
    start = datetime.datetime(2026, 3, 25, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    resets = []
    for _ in range(10):
        start = next_reset(limit, start)
        resets.append(start)

    assert all(22 * 3600 < b - a < 26 * 3600 for a, b in itertools.pairwise(resets))


@pytest.mark.parametrize(
    "limit",
    [
        Limit("requests", 5, per=10),
        Limit("requests", 5, per=10, burst=1),
        Limit("requests", 5, per=10, burst=20),
        Limit("requests", 5, per=10, window="sliding"),
        Limit("requests", 50, per="day", resets_at="07:00", tz="America/Los_Angeles"),
    ],
)
def test_r2_holds_for_the_greediest_possible_caller(limit: Limit) -> None:
    wall = WallTime(offset=1_700_000_000.0)
    state = build_limit_state(limit, wall)
    starts = []
    now = 0.0
    for _ in range(300):
        now = state.ready_at(1, now)
        assert state.reserve(1, now) is not None
        starts.append((now, 1.0))

    assert r2_starts_keep_to_the_limit(starts, limit, wall.offset) is None


@pytest.mark.parametrize(
    ("limit", "starts"),
    [
        (Limit("requests", 2, per=10), [(0, 1), (0, 1), (4, 1)]),
        (Limit("requests", 2, per=10, burst=1), [(0, 1), (4.9, 1)]),
        (Limit("requests", 2, per=10, window="sliding"), [(0, 1), (5, 1), (9.9, 1)]),
        (Limit("requests", 2, per="day"), [(0, 1), (5, 1), (86_000, 1)]),
    ],
)
def test_r2_notices_a_start_too_many(limit: Limit, starts: list[tuple[float, float]]) -> None:
    assert r2_starts_keep_to_the_limit(starts, limit) is not None


# -- a stated bucket and what the provider reports --------------------------------------------------------------------


def test_a_bucket_follows_the_reported_level_down_and_up_again() -> None:
    """A reading amid many calls in flight may be far too low: the next ones correct it."""
    bucket = Bucket(Limit("requests", 60, per=60))
    bucket.take(10.0, 0.0)

    bucket.follow(2.0, 0.0)
    assert bucket.left(0.0) == pytest.approx(3.0)  # what remains is rounded down

    bucket.follow(40.0, 0.0)
    assert bucket.left(0.0) == pytest.approx(40.0)
    bucket.follow(70.0, 0.0)
    assert bucket.left(0.0) == pytest.approx(50.0)  # own calls took the rest


def test_a_bucket_is_not_raised_above_what_a_refusal_left() -> None:
    bucket = Bucket(Limit("requests", 60, per=60))
    bucket.follow(10.0, 0.0)

    bucket.refuse(bucket.take(1.0, 0.0), 1.0, 0.0)
    bucket.follow(40.0, 0.0)

    assert bucket.left(0.0) <= 0.0


def test_a_refused_call_waits_only_for_the_rest_of_a_refill_if_a_part_of_it_was_left() -> None:
    bucket = Bucket(Limit("requests", 60, per=60, burst=5))
    for _ in range(5):
        bucket.take(1.0, 0.0)
    part = bucket.find_part_left(5.0, 4.1)

    bucket.refuse(bucket.take(1.0, 1.0), 1.0, 1.0, part)

    assert part == pytest.approx(0.9)
    assert bucket.ready_at(1.0, 1.0) == pytest.approx(1.1 + 0.02)


def test_the_reset_of_another_limit_says_nothing_of_what_a_bucket_had_left() -> None:
    assert Bucket(Limit("requests", 60, per=60, burst=5)).find_part_left(10.0, 4.1) < 0.0


def test_what_was_lost_below_a_bucket_that_has_filled_since_is_not_given_back() -> None:
    bucket = Bucket(Limit("requests", 60, per=60))
    bucket.follow(10.0, 0.0)

    assert bucket.reserve(30.0, 100.0) is not None
    bucket.follow(60.0, 100.0)

    assert bucket.left(100.0) == pytest.approx(30.0)


def test_what_was_lost_below_a_bucket_that_is_full_again_is_not_given_back_later() -> None:
    bucket = Bucket(Limit("requests", 60, per=60))
    bucket.follow(10.0, 0.0)

    bucket.follow(20.0, 100.0)  # it had filled since
    bucket.take(5.0, 100.0)
    bucket.follow(60.0, 100.0)

    assert bucket.left(100.0) == pytest.approx(55.0)


def test_how_far_a_bucket_was_lowered_outlives_the_process() -> None:
    bucket, other = Bucket(Limit("requests", 60, per=60)), Bucket(Limit("requests", 60, per=60))
    bucket.follow(10.0, 0.0)

    other.unpack(bucket.pack())
    other.follow(50.0, 0.0)

    assert other.left(0.0) == pytest.approx(50.0)


@pytest.mark.parametrize(("latency", "guard"), [(0.0, 0.0), (0.05, 0.005), (2.0, 0.02)])
def test_a_full_bucket_is_taken_for_a_little_less_once_calls_take_time(latency: float, guard: float) -> None:
    """But a request of all that it holds starts nevertheless."""
    bucket = Bucket(Limit("requests", 60, per=60))

    bucket.note_latency(latency)

    assert bucket.reserve(60.0, 100.0) is not None
    assert bucket.ready_at(1.0, 100.0) == pytest.approx(101.0 + guard)


# -- not many calls on their way when a long window turns out to be full ----------------------------------------------


def burst(state: LimitState, count: int) -> list[float]:
    """When calls start that are all made at the instant 0."""
    found, now = [], 0.0
    for _ in range(count):
        now = state.ready_at(1.0, now)
        state.take(1.0, now)
        found.append(now)
    return found


@pytest.mark.parametrize(
    "limit",
    [
        Limit("requests", 1_000, per="day"),
        Limit("requests", 1_000, per=86_400, window="sliding"),
        Limit("requests", 1_000, per=86_400),
    ],
    ids=["calendar", "sliding", "bucket"],
)
def test_calls_of_a_long_window_start_milliseconds_apart_after_the_first_ones(limit: Limit) -> None:
    starts = burst(build_limit_state(limit, WallTime(1_800_000_000.0)), 100)

    assert starts[:16] == [0.0] * 16
    assert starts[99] == pytest.approx(84 * 0.02)


def test_what_a_long_bucket_holds_starts_apart_in_the_next_process_too() -> None:
    bucket, other = (build_limit_state(Limit("requests", 1_000, per=86_400), WallTime()) for _ in range(2))
    burst(bucket, 50)

    other.unpack(bucket.pack())

    assert other.reserve(1.0, 34 * 0.02 + 0.001) is None
    assert other.ready_at(1.0, 34 * 0.02 + 0.001) == pytest.approx(35 * 0.02)


def test_a_long_bucket_that_refills_as_it_is_used_delays_nothing() -> None:
    bucket = build_limit_state(Limit("requests", 86_400, per=86_400), WallTime())
    bucket.take(1.0, 0.0)

    assert bucket.reserve(1.0, 0.0) is not None


def test_what_comes_free_of_a_window_after_a_refusal_is_left_to_others_that_wait() -> None:
    window = SlidingWindow(Limit("requests", 100, per=86_400, window="sliding"))
    window.take(1.0, 0.0)
    leaves = 86_400.0 + window.guard

    window.refuse(window.take(1.0, leaves - 0.1), 1.0, leaves - 0.05)

    assert window.ready_at(1.0, leaves) > leaves + 40.0


def test_pacing_takes_no_more_than_a_thousandth_of_a_day() -> None:
    state = build_limit_state(Limit("requests", 1_000_000, per="day"), WallTime(1_800_000_000.0))

    assert burst(state, 1_016)[-1] == pytest.approx(1_000 * 86.4e-6)


def test_calls_of_a_short_window_start_at_once() -> None:
    state = build_limit_state(Limit("requests", 1_000, per=60, window="sliding"), WallTime())

    assert burst(state, 100) == [0.0] * 100


def test_the_guard_of_a_sliding_window_shrinks_again_while_nothing_is_refused() -> None:
    state = SlidingWindow(Limit("requests", 2, per=10, window="sliding"))
    first = state.guard
    for window in range(3):
        now = 20.0 * window
        state.take(1.0, now)
        state.refuse(state.take(1.0, now), 1.0, now + 0.02)
    grown = state.guard
    for number in range(2_000):
        state.admit(state.take(1.0, 100.0 + 10.0 * number))

    assert grown > 1.4 * first
    assert state.guard == pytest.approx(first)


def test_the_first_answer_tells_how_late_the_calls_before_it_may_have_arrived() -> None:
    bucket = Bucket(Limit("requests", 60, per=60, burst=5))
    for now in (0.0, 1.0):
        bucket.take(1.0, now)

    bucket.note_latency(2.0)

    assert bucket.left(1.0) == pytest.approx(4.0 - 0.02)
