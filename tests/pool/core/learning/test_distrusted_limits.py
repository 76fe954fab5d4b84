"""What calls that were admitted or refused do to a limit that they contradict, and what takes its place."""

from __future__ import annotations

import pytest

from agentos import Limit
from agentos.pool.core.checked_pool import CheckedPool
from agentos.pool.core.learning.adaptive_rate import AdaptiveRate
from agentos.pool.core.learning.reported import ReportedLimit
from agentos.pool.core.learning.reset_evidence import BUCKET, WINDOW
from agentos.pool.core.records import PLAIN, KeySpec
from agentos.providers.signal import Reading

from ..signals_for_pool import limited, ok, pace_of, pool_of, take, takes, told_of


def nothing_left(limit: float = 8.0, resets_in: float = 600.0) -> Reading:
    return Reading("requests", limit, 0.0, resets_in, source="x-requests")


def used_up(*limits: Limit) -> CheckedPool:
    """A pool whose provider reports that nothing is left for ten minutes."""
    pool = pool_of(KeySpec("a", slots=64, limits=limits))
    pool.report(take(pool), ok(Reading("requests", 8.0, 1.0, 600.0, source="x-requests")), 0.1)
    take(pool, now=0.2)
    assert pool.acquire(PLAIN, None, 0.3) is None
    return pool


# -- a limit that is let go ---------------------------------------------------------------------------------------


def test_an_admitted_call_that_tried_ends_a_limit_even_if_its_answer_reports_nothing() -> None:
    pool = used_up()
    assert told_of(pool).obeyed

    probe = take(pool, now=2.0)
    pool.report(probe, ok(), 2.1)

    assert not told_of(pool).obeyed


def test_an_estimate_takes_the_place_of_a_limit_that_is_let_go_and_starts_few_at_once() -> None:
    pool = used_up()

    pool.report(take(pool, now=2.0), ok(), 2.1)

    assert pace_of(pool).searching
    started = 0
    while pool.acquire(PLAIN, None, 3.0) is not None:
        started += 1
    assert started <= 3


def test_a_stated_limit_needs_no_estimate_when_a_reported_one_is_let_go() -> None:
    pool = used_up(Limit("requests", 100, per=10))

    pool.report(take(pool, now=2.0), ok(), 2.1)

    assert not told_of(pool).obeyed
    assert "pace" not in pool.keys["a"].quota.learned


def test_the_first_refusal_after_a_limit_was_let_go_measures_no_rate() -> None:
    pace = AdaptiveRate(None, 0.0)
    pace.begin_unrefused(2.0)

    stamps = [pace.take(1.0, 1.0 * at) for at in range(1, 8)]
    pace.on_refusal(stamps[-1], 7.0, 7.1)

    assert pace.searching
    assert pace.rate == 2.0


def test_a_limit_that_is_not_obeyed_explains_no_refusal_as_a_try() -> None:
    limit = ReportedLimit("requests", None, 8.0, 640.0, BUCKET)
    limit.take(8.0, 100.0)
    stamp = limit.take(1.0, 101.0)
    assert limit.is_probe(stamp[1])

    limit.obeyed = False

    assert not limit.is_probe(stamp[1])


# -- refused calls take nothing -----------------------------------------------------------------------------------


def test_of_two_calls_that_are_refused_together_neither_is_taken_off_what_flows_in() -> None:
    limit = ReportedLimit("requests", None, 8.0, 64.0, BUCKET)
    first, second = limit.take(1.0, 10.0), limit.take(1.0, 10.0)

    limit.apply_reading(8.0, 0.0, 64.0, 64.0, 10.0, first, refused=True)
    for stamp in (first, second):
        limit.on_refusal(1.0, stamp[1], 10.1, surprising=False)

    assert limit.left(18.1) == pytest.approx(1.0, abs=0.02)


def test_calls_that_began_before_a_limit_was_known_and_are_refused_take_nothing_of_it() -> None:
    pool = pool_of(KeySpec("a", slots=64))
    calls = takes(pool, 5)

    for call in calls:
        pool.report(call, limited(None, nothing_left()), 0.1)

    assert told_of(pool).left(0.1) == pytest.approx(0.0, abs=0.01)


def test_a_limit_that_calls_in_flight_seem_to_exceed_is_tried_soon() -> None:
    limit = ReportedLimit("requests", None, 8.0, 640.0, BUCKET)

    limit.apply_reading(8.0, 0.0, 640.0, 640.0, 100.0, None, 5.0)

    assert limit.ready_at(1.0, 100.5) == 101.0


def test_an_answer_that_took_long_does_not_let_several_calls_try_at_once() -> None:
    """Nothing was left since it arrived, not since its call began."""
    limit = ReportedLimit("requests", None, 28.0, 60.0, BUCKET)
    stamps = [limit.take(1.0, 2.0 * number) for number in range(31)]

    limit.apply_reading(28.0, 2.0, 56.0, 60.0, 0.0, stamps[0], now=60.0)

    assert limit.ready_at(1.0, 60.0) > 60.0


def test_a_late_try_is_the_only_one_for_long() -> None:
    limit = ReportedLimit("requests", None, 8.0, 640.0, BUCKET)
    limit.apply_reading(8.0, 0.0, 640.0, 640.0, 100.0, None, 5.0)

    limit.take(1.0, 130.0)

    assert limit.ready_at(1.0, 130.0) == 220.0  # four times as long as until then


# -- what held the calls back -------------------------------------------------------------------------------------


def test_a_search_does_not_go_on_while_something_else_holds_the_calls_back() -> None:
    pace = AdaptiveRate(None, 0.0)
    pace.take(1.0, pace.ready_at(1.0, 1.0))

    started = 0
    while pace.ready_at(1.0, 60.0) <= 60.0 and started < 100:
        pace.take(1.0, 60.0)
        started += 1

    assert started <= 3
    assert pace.ready_at(1.0, 60.0) > 60.2


def test_what_a_window_held_back_does_not_lower_an_estimate_beside_it() -> None:
    """It would have found a call in eight hours between the end of one day and that of the next."""
    pool = pool_of(KeySpec("a", slots=99))
    pool.report(take(pool), limited(), 0.1)
    for now in (10.0, 40_000.0, 80_000.0, 86_500.0):
        left = Reading("requests", 550.0, 500.0, resets_in=86_410.5 - now % 86_400.0, source="x-requests")
        pool.report(take(pool, now=now), ok(left), now + 0.1)
    pace_of(pool).begin_at(0.01, 20.0)
    for now in (40_000.0, 60_000.0, 80_000.0):
        take(pool, now=now)

    pool.report(take(pool, now=90_000.0), limited(), 90_000.1)

    assert pace_of(pool).rate >= 0.005


def test_after_a_call_that_the_others_waited_for_not_much_starts_at_once() -> None:
    pace = AdaptiveRate(None, 0.0)
    pace.begin_at(1.0, 0.0)
    pace.take(1.0, 10.0)

    pace.on_probed(70.0)

    assert pace.left(70.0) <= 2.0
    pace.take(1.0, 70.0)
    assert not pace.overflowed  # the next refusal measures a rate


def test_the_answer_of_a_probe_tells_the_estimate_that_the_others_waited() -> None:
    pool = pool_of(KeySpec("a", slots=64))
    pool.report(take(pool), limited(), 0.1)
    pace_of(pool).begin_at(1.0, 0.0)
    pool.report(take(pool, now=5.0), limited(120.0), 5.1)
    probe = take(pool, now=126.0)

    pool.report(probe, ok(), 186.0)

    assert pace_of(pool).left(186.0) <= 2.0


@pytest.mark.parametrize(("latency", "waits"), [(0.1, True), (60.0, False)])
def test_others_wait_for_a_probe_only_if_its_answer_does_not_take_longer_than_the_cooldown(
    latency: float, waits: bool
) -> None:
    pool = pool_of(KeySpec("a", auto=True))
    first = take(pool)
    pool.report(first, ok(), latency)
    pool.release(first, latency)

    for at in (100.0, 110.0):
        refused = take(pool, now=at)
        pool.report(refused, limited(), at + 0.1)
        pool.release(refused, at + 0.1)

    block = pool.keys["a"].quota.whole_block()
    assert block is not None
    assert block.probe == waits


def test_refusals_are_not_in_a_row_if_calls_between_them_are_still_in_flight() -> None:
    pool = pool_of(KeySpec("a", slots=64, limits=(Limit("requests", 3, per=1, window="sliding"),)))

    for at in range(0, 60, 10):
        take(pool, now=at)  # its answer takes long
        pool.report(take(pool, now=at + 5.0), limited(), at + 5.02)

    assert pool.acquire(PLAIN, None, 56.5) is not None


# -- windows that begin anew --------------------------------------------------------------------------------------


def renewing(amount: float = 6.0) -> ReportedLimit:
    """A window of a minute that was renewed as announced, at 60 and at 120."""
    limit = ReportedLimit("requests", None, amount, 60.0, WINDOW)
    for began in (0.0, 60.0, 120.0):
        stamp = limit.take(1.0, began + 0.5)
        limit.apply_reading(amount, amount - 1.0, 59.5, 60.0, began + 0.5, stamp)
    assert limit.renews
    assert limit.is_sure
    return limit


def refuse(limit: ReportedLimit, stamp: tuple[float, ...], at: float, resets_in: float) -> None:
    limit.apply_reading(limit.limit.amount, 0.0, resets_in, 60.0, at, stamp, refused=True)  # type: ignore[arg-type]
    limit.on_refusal(1.0, stamp[1], at + 0.1, surprising=False)


def test_a_refusal_at_the_beginning_of_a_window_that_others_used_confirms_its_end() -> None:
    limit = renewing()
    trust = limit.trust

    refuse(limit, limit.take(1.0, 180.5), 180.5, 59.5)

    assert limit.renews
    assert limit.trust >= trust


def test_a_reported_window_finds_what_others_leave_of_it() -> None:
    limit = renewing()
    stamps = [limit.take(1.0, 180.1 + at / 10) for at in range(6)]

    for number in (4, 5):
        refuse(limit, stamps[number], 180.1 + number / 10, 59.5)

    starts = []
    now = 181.0
    while (now := limit.ready_at(1.0, now)) < 290.0:
        limit.take(1.0, now)
        starts.append(now)
    assert len([at for at in starts if at > 240.0]) == 4


def test_a_refusal_before_the_end_of_a_window_says_nothing_about_what_it_allows() -> None:
    limit = renewing()

    refuse(limit, limit.take(1.0, 180.1), 180.1, 0.4)

    assert limit.usable.value == 6.0


def test_calls_of_a_window_count_even_if_answers_say_that_much_is_left() -> None:
    limit = renewing()

    stamps = [limit.take(1.0, 121.0) for _ in range(5)]
    limit.apply_reading(6.0, 5.0, 59.0, 60.0, 121.0, stamps[-1])

    assert limit.left(122.0) == 1.0
    assert limit.ready_at(1.0, 122.0) > 150.0


@pytest.mark.parametrize(("dimension", "expected"), [("requests", [True, False]), ("tokens", [True, True])])
def test_a_limit_that_calls_have_refuted_twice_is_let_go(dimension: str, expected: list[bool]) -> None:
    """Raising it again and again would never be faster than itself. Tokens are counted in different ways."""
    limit = ReportedLimit(dimension, None, 6.0, 600.0, WINDOW)
    limit.begin_count(0.0)

    trusted = []
    for now in (100.0, 200.0):
        limit.admitted = 100.0
        limit.yield_to_evidence(now)
        trusted.append(limit.believed)

    assert trusted == expected


def test_what_a_refusal_says_is_left_of_a_window_is_no_more_than_was_left_before() -> None:
    limit = ReportedLimit("requests", None, 8.0, 60.0, WINDOW)
    limit.apply_reading(8.0, 7.0, 50.0, 60.0, 0.0, limit.take(1.0, 0.0))
    for _ in range(7):
        limit.take(1.0, 1.0)

    limit.apply_reading(8.0, 7.0, 48.0, 60.0, 2.0, limit.take(1.0, 2.0), refused=True)

    assert limit.left(2.0) < 1.0
    assert limit.ready_at(1.0, 2.0) > 2.0
