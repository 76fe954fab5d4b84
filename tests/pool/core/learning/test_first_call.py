"""The first calls of a credential with adaptive slots: one, and more only where waiting for its answer loses calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from agentos import Limit
from agentos.pool.core.learning.adaptive_concurrency import MAX_SLOTS
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.learning.first_call import UNTRIED_SLOTS
from agentos.pool.core.records import PLAIN, KeySpec, LeaseRequest
from agentos.pool.core.states import Life
from agentos.providers.signal import Event, Signal
from agentos.simulator.limiters import FixedWindow, Limiter, SlidingLog, TokenBucket

from ..driven_provider import drive
from ..signals_for_pool import ask, limited, ok, said, take, takes

TEN_A_SECOND = Limit("requests", 600, per=60, burst=10)


def key(*limits: Limit) -> AdaptivePool:
    pool = AdaptivePool()
    pool.add(KeySpec("a", auto=True, limits=limits), 0.0)
    return pool


def starts(pool: AdaptivePool, until: float, request: LeaseRequest = PLAIN) -> list[float]:
    """When calls that nobody answers start."""
    found, now = [], 0.0
    while now < until:
        if pool.acquire(request, None, now) is None:
            now = pool.earliest_start(request, now)
        else:
            found.append(now)
    return found


def test_a_full_bucket_loses_nothing_while_the_first_answer_is_awaited() -> None:
    assert starts(key(TEN_A_SECOND), 0.95) == pytest.approx([0.1 * number for number in range(10)])


def test_few_start_while_a_dead_credential_might_be_refused() -> None:
    hundred_a_second = Limit("requests", 6_000, per=60, burst=1)

    assert len(starts(key(hundred_a_second), 0.99)) == UNTRIED_SLOTS
    assert len(starts(key(hundred_a_second), 600.0)) == MAX_SLOTS


def test_a_window_is_used_at_even_intervals_while_the_first_answer_is_awaited() -> None:
    ten_in_a_second = Limit("requests", 10, per=1, window="sliding")

    assert starts(key(ten_in_a_second), 0.95) == pytest.approx([0.1 * number for number in range(10)])


@pytest.mark.parametrize(
    "limits",
    [(), (Limit("requests", 100, per="day"),)],
    ids=["unknown", "day"],
)
def test_nothing_is_lost_where_nothing_overflows_so_that_the_first_call_goes_alone(limits: tuple[Limit, ...]) -> None:
    pool = key(*limits)

    assert take(pool) is not None
    assert pool.acquire(PLAIN, None, 30.0) is None


def test_another_call_waits_until_every_bucket_is_full() -> None:
    pool = key(TEN_A_SECOND, Limit("tokens", 6_000, per=60, burst=1_000))

    assert starts(pool, 7.0, ask(tokens=300)) == pytest.approx([0.0, 3.0, 6.0])


def test_all_slots_are_open_after_a_success() -> None:
    pool = key(TEN_A_SECOND)

    first = take(pool)
    pool.report(first, ok(), 0.01)
    pool.release(first, 0.01)

    assert len(takes(pool, 9, now=0.01)) == 9


def test_a_call_that_ended_without_an_answer_lets_another_one_start() -> None:
    pool = key()

    pool.release(take(pool), 0.5)

    assert take(pool, now=0.5) is not None


@pytest.mark.parametrize("answer", [partial(said, Event.KEY_DEAD), partial(limited, 5.0)], ids=["dead", "limited"])
def test_a_refusal_within_a_refill_is_the_only_one(answer: Callable[[], Signal]) -> None:
    pool = key(TEN_A_SECOND)

    first = take(pool)
    pool.report(first, answer(), 0.05)
    pool.release(first, 0.05)

    assert pool.acquire(PLAIN, None, 0.2) is None
    assert (pool.keys["a"].life is Life.ALIVE) == (answer().event is Event.LIMITED)


@pytest.mark.parametrize(
    ("limit", "limiter", "least"),
    [
        (TEN_A_SECOND, TokenBucket(10, 1), 38),  # of 10 + 30
        (Limit("requests", 10, per=1, window="sliding"), SlidingLog(10, 1), 28),  # of 30
    ],
    ids=["bucket", "sliding window"],
)
def test_slow_answers_cost_a_stated_limit_nothing(limit: Limit, limiter: Limiter, least: int) -> None:
    seen = drive(key(limit), limiter, until=3.0, latency=1.5)

    assert len(seen.admitted) >= least
    assert seen.refused == []


@pytest.mark.parametrize(("limits", "at_once"), [((), 1), ((Limit("requests", 600),), 4)], ids=["unknown", "stated"])
def test_calls_start_a_few_milliseconds_apart_only_while_no_limit_is_known(
    limits: tuple[Limit, ...], at_once: int
) -> None:
    pool = key(*limits)
    first = take(pool)
    pool.report(first, ok(), 0.1)
    pool.release(first, 0.1)
    assert pool.keys["a"].slots >= 4

    started = sum(pool.acquire(PLAIN, None, 1.0) is not None for _ in range(4))

    assert started == at_once
    assert pool.acquire(PLAIN, None, 1.006) is not None


# -- many credentials of one quota ------------------------------------------------------------------------------------


def organisation(count: int, *limits: Limit) -> AdaptivePool:
    pool = AdaptivePool()
    for number in range(count):
        pool.add(KeySpec(f"key-{number}", auto=True, quota="organisation", limits=limits), 0.0)
    return pool


@pytest.mark.parametrize(("count", "expected"), [(8, 8), (16, 16), (64, 16)])
def test_few_of_many_credentials_of_an_unknown_quota_start_together(count: int, expected: int) -> None:
    pool = organisation(count)

    assert len(starts(pool, 1.0)) == expected


def test_all_credentials_of_a_quota_start_together_where_its_limits_are_stated() -> None:
    assert len(starts(organisation(64, Limit("requests", 6_000)), 0.001)) == 64


def test_an_unknown_limit_of_many_credentials_refuses_few_calls_when_it_is_reached() -> None:
    seen = drive(organisation(64), FixedWindow(13, 1), until=60.0, latency=0.1)

    assert len(seen.admitted) > 0.9 * 13 * 60
    assert len(seen.refused) < 0.03 * len(seen.admitted)


def test_all_of_many_credentials_are_used_in_the_end_without_any_limit() -> None:
    seen = drive(organisation(64), TokenBucket(1_000_000, 1), until=20.0, latency=1.0)

    assert seen.widest >= 64


def test_all_of_many_credentials_have_their_turn() -> None:
    pool, used = organisation(40), set()
    for now in (0.0, 1.0, 2.0):
        grants = takes(pool, 16, now)
        for grant in grants:
            used.add(grant.key.name)
            pool.report(grant, said(Event.CALLER), now + 0.5)
            pool.release(grant, now + 0.5)

    assert len(used) == 40


def test_credentials_of_one_quota_may_state_slots_or_not() -> None:
    pool = organisation(16)
    pool.add(KeySpec("fixed", slots=2, quota="organisation"), 0.0)
    pool.add(KeySpec("automatic", auto=True, quota="organisation"), 0.0)

    assert len(pool.keys) == 18
