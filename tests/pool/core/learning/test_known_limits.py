"""Stated and reported limits are obeyed and used to the full, against a limiter that the pool does not know.

Each test drives a pool in virtual time, with more calls to make than any limit allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from agentos import Limit
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.learning.adaptive_rate import AdaptiveRate
from agentos.pool.core.learning.reset_evidence import BUCKET, WINDOW
from agentos.pool.core.records import PLAIN, KeySpec
from agentos.providers.signal import Reading, Signal
from agentos.simulator.limiters import FixedWindow, Gcra, Limiter, LimitLevel, SlidingLog, TokenBucket

from ..driven_provider import Headers, Style, dates, drive, durations, ietf, retry_after, silent
from ..signals_for_pool import limited, ok, pace_of, pool_of, take, takes, told_of

TEN_A_SECOND = Limit("requests", 600, per=60, burst=10)


def key(*limits: Limit) -> AdaptivePool:
    """A pool of one key that finds out itself how many calls at once it may make."""
    pool = AdaptivePool()
    pool.add(KeySpec("a", auto=True, limits=limits), 0.0)
    return pool


def estimates(pool: AdaptivePool) -> list[AdaptiveRate]:
    return [state for state in pool.keys["a"].quota.limits if isinstance(state, AdaptiveRate)]


# -- the window is read from the numbers --------------------------------------------------------------------------


def test_a_hundred_that_are_there_again_in_a_second_are_not_a_hundred_a_minute() -> None:
    pool = key()

    seen = drive(pool, TokenBucket(100, 1), until=4.0, style=durations, provider="openai")

    assert told_of(pool).limit.per == 1.0
    assert [seen.admitted_between(second, second + 1.0) > 95 for second in (1.0, 2.0, 3.0)] == [True] * 3
    assert len(seen.refused) <= 2


@pytest.mark.parametrize(
    ("limiter", "shape", "at_most", "style"),
    [
        (partial(TokenBucket, 60, 10), BUCKET, 360, durations),
        (partial(TokenBucket, 60, 10), BUCKET, 360, dates),
        (partial(FixedWindow, 60, 10, 3), WINDOW, 360, durations),
        (partial(FixedWindow, 60, 10, 3), WINDOW, 360, ietf),
        (partial(FixedWindow, 60, 10, 3), WINDOW, 360, dates),
        (partial(Gcra, 60, 10, 20), BUCKET, 320, durations),
        (partial(Gcra, 60, 10, 20), BUCKET, 320, ietf),
        (partial(Gcra, 60, 10, 20), BUCKET, 320, dates),
    ],
)
def test_every_kind_of_limiter_is_recognised_in_every_style_of_headers(
    limiter: Callable[[], Limiter], shape: str, at_most: int, style: Style
) -> None:
    pool = key()

    seen = drive(pool, limiter(), until=50.0, style=style)

    assert len(seen.admitted) >= 0.98 * at_most
    assert len(seen.refused) <= 0.01 * at_most
    assert told_of(pool).shape == shape


@pytest.mark.parametrize("latency", [0.05, 1.0])
@pytest.mark.parametrize("limits", [(), (TEN_A_SECOND,)], ids=["unknown", "stated"])
def test_a_small_bucket_is_used_to_the_full_with_calls_in_flight(limits: tuple[Limit, ...], latency: float) -> None:
    pool = key(*limits)

    seen = drive(pool, TokenBucket(10, 1), until=20.0, style=durations, provider="openai", latency=latency)

    assert seen.admitted_between(5.0, 20.0) >= 0.98 * 150
    assert len(seen.refused) <= 2


def test_a_reset_with_a_date_is_right_however_long_the_answer_takes() -> None:
    pool = key()

    seen = drive(pool, FixedWindow(60, 10, 4), until=60.0, style=dates, latency=3.0, provider="anthropic")

    assert len(seen.admitted) >= 0.9 * 420  # the first call is alone for three seconds
    assert len(seen.refused) <= 0.02 * 420


def test_calls_that_start_together_may_arrive_in_any_order() -> None:
    """Twenty, one each 50 ms: ten that start at once are answered in another order, each with what it found left."""
    pool = pool_of(KeySpec("a", slots=99))

    def left(remaining: float) -> Signal:
        return ok(Reading("requests", 20.0, remaining, (20.0 - remaining) * 0.05, source="header"))

    first = take(pool)
    pool.report(first, left(19.0), 0.1)
    together = takes(pool, 10, now=0.2)
    for arrival, grant in enumerate(together[at] for at in (7, 2, 9, 0, 4, 1, 8, 3, 6, 5)):
        pool.report(grant, left(19.0 - arrival), 0.25)

    assert sum(pool.acquire(PLAIN, None, 0.25) is not None for _ in range(20)) in (10, 11)


# -- headers that contradict the calls ----------------------------------------------------------------------------


def sixty_times_too_long(level: LimitLevel, wait: float | None, now: float) -> Headers:
    return durations(level._replace(full_in=60 * level.full_in), wait, now)


def of_another_limit(level: LimitLevel, wait: float | None, now: float) -> Headers:
    return durations(level._replace(full_in=3_600.0), wait, now)


def until_the_end_of_the_hour(level: LimitLevel, wait: float | None, now: float) -> Headers:
    return durations(level._replace(full_in=3_600.0 - now), wait, now)


@pytest.mark.parametrize("style", [sixty_times_too_long, of_another_limit, until_the_end_of_the_hour])
def test_headers_that_contradict_the_admitted_calls_lose_to_them(style: Style) -> None:
    pool = key()

    seen = drive(pool, TokenBucket(100, 10), until=60.0, style=style)

    assert len(seen.admitted) >= 0.9 * 700
    assert not told_of(pool).obeyed


def test_a_window_that_is_announced_too_short_costs_no_storm_of_refusals() -> None:
    pool = key()

    def sixty_times_too_short(level: LimitLevel, wait: float | None, now: float) -> Headers:
        return durations(level._replace(full_in=level.full_in / 60), wait, now)

    seen = drive(pool, TokenBucket(100, 10), until=60.0, style=sixty_times_too_short)

    assert len(seen.admitted) >= 0.9 * 700
    assert len(seen.refused) <= 0.2 * 700  # most of them in one burst, when the bucket is empty for the first time


# -- stated limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency", [0.05, 1.0])
def test_headers_of_the_same_limit_cost_a_stated_one_nothing(latency: float) -> None:
    told, silently = (
        drive(key(TEN_A_SECOND), TokenBucket(10, 1), until=20.0, style=style, provider="openai", latency=latency)
        for style in (durations, silent)
    )

    assert len(told.admitted) >= len(silently.admitted) - 2
    assert len(told.refused) <= 1


def test_a_refusal_at_the_edge_of_a_stated_limit_costs_one_refill() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(TEN_A_SECOND,)))
    *admitted, refused = takes(pool, 10)

    for grant in admitted:
        pool.report(grant, ok(), 0.05)
    pool.report(refused, limited(), 0.05)

    assert pool.earliest_start(PLAIN, 0.05) <= 0.121
    assert estimates(pool) == []


@pytest.mark.parametrize("style", [silent, retry_after])
def test_the_edge_of_a_stated_limit_is_used_to_the_full(style: Style) -> None:
    """Two clocks differ by milliseconds, and ``Retry-After: 1`` for a tenth of a second is only rounded up."""
    pool = key(TEN_A_SECOND)

    seen = drive(pool, TokenBucket(10, 1), until=20.0, style=style)

    assert len(seen.admitted) >= 0.98 * 210
    assert len(seen.refused) <= 2
    assert estimates(pool) == []


def test_refusals_far_apart_start_no_estimate_and_a_run_of_them_one_at_the_stated_rate() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(TEN_A_SECOND,)))
    now = 0.0

    def call(signal: Signal) -> None:
        nonlocal now
        now = max(now, pool.earliest_start(PLAIN, now))
        grant = take(pool, now=now)
        now += 0.01
        pool.report(grant, signal, now)
        pool.release(grant, now)

    for _ in range(6):
        for _ in range(60):
            call(ok())
        call(limited())
    assert estimates(pool) == []
    call(limited())
    call(limited())
    assert len(estimates(pool)) == 1
    assert pace_of(pool).rate == pytest.approx(10.0)
    assert pool.earliest_start(PLAIN, now) - now < 0.5


def test_a_search_beside_a_reported_limit_that_is_not_sure_starts_near_its_rate() -> None:
    pool = pool_of(KeySpec("a", slots=99))
    left = Reading("requests", 100.0, 90.0, 1.0, 1.0, "x-requests")
    pool.report(take(pool), ok(left), 0.1)

    for number in range(1, 4):
        pool.report(take(pool, now=2.0 * number), limited(), 2.0 * number + 0.1)

    assert pace_of(pool).searching
    assert pace_of(pool).rate == pytest.approx(100.0 / 8)


def test_the_slots_jump_to_what_the_rate_needs_after_the_first_answer() -> None:
    """Ten a second, and answers take two seconds: twenty at once, and more while a burst is left."""
    pool = key()

    seen = drive(pool, TokenBucket(600, 60), until=10.0, style=durations, latency=2.0)

    answered_at = next(at for at in seen.started if at > 0)
    assert sum(at < answered_at for at in seen.started) == 1
    assert sum(at < answered_at + 0.1 for at in seen.started) >= 20


def test_a_higher_reported_limit_changes_nothing() -> None:
    pool = key(Limit("requests", 50, per=10))

    seen = drive(pool, TokenBucket(100, 10), until=60.0, style=durations)

    assert 0.98 * 350 <= len(seen.admitted) <= 351
    assert not told_of(pool).obeyed


def test_a_lower_reported_limit_is_obeyed_until_admitted_calls_refute_it() -> None:
    stated = Limit("requests", 100, per=10)
    halved, lying = key(stated), key(stated)

    obeying = drive(halved, TokenBucket(50, 10), until=30.0, style=durations)
    refuting = drive(lying, TokenBucket(100, 10), until=60.0, style=sixty_times_too_long)

    assert 0.98 * 200 <= len(obeying.admitted) <= 201
    assert len(obeying.refused) <= 2
    assert told_of(halved).obeyed
    assert len(refuting.admitted) >= 0.98 * 700


def test_a_stated_window_finds_what_another_client_leaves_of_it() -> None:
    """Sixty in any ten seconds, and another takes twenty of them, always before us."""
    pool = key(Limit("requests", 60, per=10, window="sliding"))

    seen = drive(pool, SlidingLog(60, 10), until=200.0, other_gap=0.5)

    assert len(seen.admitted) >= 0.95 * 820
    assert len(seen.refused) <= 0.05 * 820
    assert estimates(pool) == []


# -- buckets that hold less than their reported limit --------------------------------------------------------------


@pytest.mark.parametrize(("provider", "style"), [("openai", durations), ("anthropic", dates)])
@pytest.mark.parametrize(
    ("amount", "held", "latency"), [(3_000, 3, 0.05), (600, 10, 0.3), (600, 60, 1.0)], ids=["3", "10", "60"]
)
def test_a_bucket_that_holds_less_than_a_minute_is_used_to_the_full(
    provider: str, style: Style, amount: float, held: float, latency: float
) -> None:
    pool = key()

    seen = drive(pool, TokenBucket(amount, 60, held), until=60.0, style=style, provider=provider, latency=latency)

    assert len(seen.admitted) >= 0.9 * amount
    assert len(seen.refused) <= 0.03 * len(seen.admitted)


def test_the_first_reading_of_a_small_bucket_may_be_that_of_a_refusal() -> None:
    """600 a minute, of which it holds 20: calls were made before, whose answers nobody reported."""
    pool = pool_of(KeySpec("a", slots=99))
    reading = Reading("requests", 600.0, 0.0, resets_in=1.911, source="x-ratelimit-*-requests")

    pool.report(takes(pool, 8)[-1], replace(limited(0.1, reading), provider="openai"), 0.0)

    assert told_of(pool).limit.per == 60.0


# -- another client uses a third ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limiter", "limit", "refused"),
    [
        (partial(TokenBucket, 18, 60), Limit("requests", 18, per=60), 9),
        (partial(Gcra, 18, 60, 18, count_rejections=True), Limit("requests", 18, per=60), 9),
        (partial(SlidingLog, 18, 60), Limit("requests", 18, per=60, window="sliding"), 15),
        (partial(FixedWindow, 18, 60, 13), Limit("requests", 18, per=60, window="sliding"), 9),
    ],
    ids=["bucket", "gcra", "sliding", "fixed"],
)
def test_what_another_client_leaves_of_a_stated_limit_is_found_with_few_refusals(
    limiter: Callable[[], Limiter], limit: Limit, refused: int
) -> None:
    pool = key(limit)

    seen = drive(pool, limiter(), until=4_800.0, latency=0.1, other_gap=10.0)

    assert len(seen.admitted) >= 0.92 * (18 - 6) * 80
    assert len(seen.refused) <= refused


def test_a_second_answer_is_not_awaited_where_the_user_stated_the_rate() -> None:
    """One answer of a provider's own headers does not tell the rate; the user did."""
    pool = key(Limit("requests", 4, per=1))

    seen = drive(pool, Gcra(4, 1, 4), until=9.0, latency=5.0, style=ietf)

    assert seen.admitted_between(0.0, 9.0) >= 32


def test_a_reset_in_whole_seconds_does_not_delay_a_stated_window_that_nobody_else_uses() -> None:
    pool = key(Limit("requests", 17, per=10, window="sliding"))

    seen = drive(pool, SlidingLog(17, 10), until=300.0, latency=0.1, style=dates)

    assert len(seen.admitted) >= 0.98 * 17 * 30
    assert not seen.refused


@pytest.mark.parametrize("limits", [(), (Limit("requests", 22.8, per=1, window="sliding"),)], ids=["unknown", "stated"])
def test_whole_seconds_do_not_say_when_a_window_of_one_second_ends(limits: tuple[Limit, ...]) -> None:
    """Each answer says that it ends in a second: waiting for that after the last one loses a fifth of each window."""
    pool = AdaptivePool()
    for number in range(8):
        pool.add(KeySpec(f"key-{number}", auto=True, quota="one", limits=limits), 0.0)

    seen = drive(pool, SlidingLog(19, 1), until=30.0, latency=0.1, style=ietf)

    assert len(seen.admitted) >= 0.95 * 19 * 30


def test_a_call_refused_a_moment_too_early_waits_for_that_moment() -> None:
    """The exact reset of a bucket says that nearly all of a call was left: not a whole refill is to be waited for."""
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60, per=60, burst=5),)))
    for grant in takes(pool, 5):
        pool.report(grant, ok(), 0.2)
        pool.release(grant, 0.2)
    refused = take(pool, now=1.02)

    told = Reading("requests", 5.0, 0.0, resets_in=4.01, source="x-requests")
    pool.report(refused, limited(1.0, told), 1.03)

    assert pool.earliest_start(PLAIN, 1.03) <= 1.1


def test_a_reported_window_is_obeyed_beside_the_same_stated_one_while_others_use_it() -> None:
    pool = key(Limit("requests", 18, per=60, window="sliding"))

    seen = drive(pool, FixedWindow(18, 60, 13), until=1_200.0, latency=0.1, style=ietf, other_gap=10.0)

    assert told_of(pool).obeyed
    assert len(seen.refused) <= 4


def test_a_reading_that_was_too_low_costs_a_stated_limit_nothing_for_long() -> None:
    """Half of the limit is held at once, and all of that is in flight when the first answers come."""
    pool = AdaptivePool()
    for name in "abcdefgh":
        pool.add(KeySpec(name, quota="q", auto=True, limits=(Limit("requests", 680, per=1_000, burst=340),)), 0.0)

    seen = drive(pool, Gcra(680, 1_000, 340), until=2_000.0, latency=20.0, style=ietf)

    assert len(seen.admitted) >= 0.98 * (340 + 2 * 680)


def test_a_bucket_that_fills_between_calls_is_refused_at_most_once_for_jitter() -> None:
    """Slots hold the calls back, so that the bucket is full again and again and two calls start together."""
    pool = pool_of(KeySpec("a", slots=10, limits=(Limit("requests", 2, per=1),)))

    seen = drive(pool, TokenBucket(2, 1), until=1_000.0, latency=10.0)

    assert len(seen.admitted) >= 900
    assert len(seen.refused) <= 1  # before the first answer
