"""The core pool reacts to each kind of answer as docs/limits.md states."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from agentos import Limit, NoUsableCredential
from agentos.pool.core.cost import parse_used
from agentos.pool.core.credential_report import build_report
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.learning.reported import ReportedLimit
from agentos.pool.core.records import OUTAGE, PLAIN, PROBE_TIMEOUT, Grant, KeySpec
from agentos.pool.core.states import Life, TicketState
from agentos.providers.signal import Event, Reading, Signal

from ..signals_for_pool import (
    ask,
    limited,
    line_up,
    ok,
    pace_of,
    pool_of,
    requests_left,
    said,
    state_of,
    states,
    take,
    takes,
    told_of,
)

ROOMY = KeySpec("a", slots=99)
LARGE, SMALL = ask(model="large"), ask(model="small")
DEAD = said(Event.KEY_DEAD, status=401)
DAYS_35 = 35 * 86_400.0
SPARE = 0.02  # of 60 a minute, this is left alone: what flows in within 0.02 s


def heard(pool: AdaptivePool, grant: Grant, signal: Signal, now: float) -> bool:
    """Tell it; whether the pool acted on it."""
    found = pool.report(grant, signal, now)
    assert found is not None
    return found.acted


def rests_until(pool: AdaptivePool, name: str, now: float) -> float | None:
    """When the quota of that credential may be used again; None: it does not rest."""
    until = pool.keys[name].quota.closed_until
    return until if until > now else None


# -- too many: how long -------------------------------------------------------------------------------------------


def test_a_limit_closes_the_quota_for_as_long_as_was_told() -> None:
    pool = pool_of(KeySpec("a", quota="acme"), KeySpec("b", quota="acme"), KeySpec("c"))
    grant = take(pool)

    assert heard(pool, grant, limited(20.0), 5.0)

    assert {name: rests_until(pool, name, 5.0) for name in "abc"} == {"a": 25.0, "b": 25.0, "c": None}
    assert state_of(pool, "b", 5.0).why == "429"


def test_the_later_deadline_wins() -> None:
    pool = pool_of(ROOMY)
    first, second, third = takes(pool, 3)

    heard(pool, first, limited(30.0), 1.0)
    heard(pool, second, limited(5.0), 2.0)
    assert rests_until(pool, "a", 2.0) == 31.0
    heard(pool, third, limited(60.0), 3.0)

    assert rests_until(pool, "a", 3.0) == 63.0


def test_a_success_that_began_before_the_refusal_clears_nothing() -> None:
    pool = pool_of(ROOMY)
    slow, refused = takes(pool, 2)
    heard(pool, refused, limited(30.0), 1.0)

    heard(pool, slow, ok(requests_left(50.0)), 2.0)
    pool.release(slow, 2.0)

    assert rests_until(pool, "a", 2.0) == 31.0
    assert pool.acquire(PLAIN, None, 30.9) is None


def test_a_limit_without_a_delay_cools_down_for_a_second_at_first() -> None:
    pool = pool_of("a")
    grant = take(pool)

    heard(pool, grant, limited(), 10.0)

    assert rests_until(pool, "a", 10.0) == 11.0


def test_a_delay_of_nothing_is_no_rest() -> None:
    pool = pool_of("a")
    grant = take(pool)

    heard(pool, grant, limited(0.0), 10.0)

    assert rests_until(pool, "a", 10.0) is None


def test_how_long_the_first_refusal_took_is_known_to_the_search() -> None:
    pool = pool_of("a")

    heard(pool, take(pool, now=10.0), limited(), 13.0)

    assert pace_of(pool).lag == 3.0


def test_refusals_with_nothing_admitted_between_lengthen_the_cooldown() -> None:
    pool = pool_of("a")
    now, rests, tried_at = 0.0, [], []
    for _ in range(25):
        grant = take(pool, now=now)
        tried_at.append(now)
        heard(pool, grant, limited(), now)
        pool.release(grant, now)
        until = rests_until(pool, "a", now)
        assert until is not None
        rests.append(until - now)
        now = max(until, pace_of(pool).ready_at(1.0, until))

    # In proportion to the time in which nothing was admitted, so that the time until then is known within that share.
    assert rests[:4] == pytest.approx([1.0, 1.5, 3.75, 9.375])
    assert max(rests) == pytest.approx(10_800.0)
    # A window of a day ends after a day: one is made within the hour then.
    assert any(at == pytest.approx(88_200.0, abs=1_800.0) for at in tried_at)


def test_the_same_lease_reported_twice_teaches_once() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), limited(), 0.0)
    for n in range(10, 20):
        pool.release(take(pool, now=float(n)), float(n))
    grant = take(pool, now=20.0)
    heard(pool, grant, limited(), 21.0)
    before = (pace_of(pool).pack(), list(pool.keys["a"].quota.history))

    assert heard(pool, grant, limited(), 21.0)

    assert (pace_of(pool).pack(), pool.keys["a"].quota.history) == before


def test_the_same_lease_reported_again_and_again_is_one_strike() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))
    grant = take(pool)

    for _ in range(5):
        heard(pool, grant, limited(), 0.0)

    assert pool.keys["a"].quota.learned == {}


def test_a_second_report_of_a_lease_may_still_tell_a_longer_wait() -> None:
    pool = pool_of(ROOMY)
    grant = take(pool)
    heard(pool, grant, limited(5.0), 1.0)

    heard(pool, grant, limited(50.0), 2.0)

    assert rests_until(pool, "a", 2.0) == 52.0


def test_a_report_of_a_lease_that_has_ended_changes_nothing() -> None:
    pool = pool_of("a", "b", "c")
    grants = takes(pool, 3)
    for grant in grants:
        pool.release(grant, 1.0)
    before = build_report(pool, 2.0)

    for event in Event:
        for grant in grants:
            assert pool.report(grant, Signal(event, 60.0, readings=(requests_left(0.0),)), 2.0) is None

    assert build_report(pool, 2.0) == before
    assert pool.outages.has_no_failures
    assert all(key.quota.provider is None for key in pool.keys.values())


def test_a_lease_that_max_lease_ended_says_nothing_any_more() -> None:
    pool = pool_of("a", max_lease=30.0)
    grant = take(pool)
    pool.tick(31.0)

    assert pool.report(grant, DEAD, 31.0) is None
    assert states(pool, 31.0) == {"a": "available"}


# -- too many: of which model -------------------------------------------------------------------------------------


def test_a_limit_of_one_model_closes_its_family_alone() -> None:
    pool = pool_of(ROOMY)
    grant = take(pool, ask(model="large-2024-08-06"))

    heard(pool, grant, limited(30.0, scoped=True), 0.0)

    assert pool.acquire(LARGE, None, 1.0) is None
    assert pool.acquire(SMALL, None, 1.0) is not None
    assert pool.acquire(PLAIN, None, 1.0) is not None
    assert pool.acquire(LARGE, None, 31.0) is not None


def test_a_limit_of_one_model_closes_all_where_the_lease_named_none() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), limited(30.0, scoped=True), 0.0)

    assert pool.acquire(SMALL, None, 1.0) is None


def test_a_limit_of_all_models_closes_all_though_the_lease_named_one() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool, LARGE), limited(30.0), 0.0)

    assert pool.acquire(SMALL, None, 1.0) is None


def test_a_pace_is_learned_for_one_model_where_its_limit_is() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool, LARGE), limited(scoped=True), 0.0)

    assert list(pool.keys["a"].quota.learned) == ["pace large"]
    assert all(take(pool, SMALL, 0.1) for _ in range(20))


def test_a_scoped_reported_limit_applies_to_one_model() -> None:
    pool = pool_of(ROOMY)
    grant = take(pool, LARGE)

    heard(pool, grant, ok(requests_left(1.0), scoped=True), 0.0)

    assert pool.acquire(LARGE, None, 0.1) is not None  # the one that is left
    assert pool.acquire(LARGE, None, 0.1) is None
    assert pool.acquire(SMALL, None, 0.1) is not None


@pytest.mark.parametrize("model", ["a b", "é", "x" * 5000, "large\n", "x]"])
def test_odd_names_of_models_are_only_names(model: str) -> None:
    pool = pool_of(ROOMY)
    grant = take(pool, ask(model=model))

    heard(pool, grant, limited(30.0, requests_left(0.0), scoped=True), 0.0)
    heard(pool, take(pool, SMALL, 0.5), said(Event.NOT_ENTITLED), 0.5)

    assert pool.acquire(ask(model=model), None, 1.0) is None


@pytest.mark.parametrize("model", ["*", "lar*", "larg?", "[x]", "[l]arge-2024-08-06"])
@pytest.mark.parametrize("event", [Event.LIMITED, Event.PARKED, Event.RAMP])
def test_a_limit_of_a_model_whose_name_is_a_pattern_is_one_of_all(model: str, event: Event) -> None:
    """A limit that was learned under such a name would be kept to by whatever it matches."""
    pool = pool_of(ROOMY)

    heard(pool, take(pool, ask(model=model)), Signal(event, 30.0, scoped=True), 0.0)

    assert rests_until(pool, "a", 0.0) == 30.0
    assert all(state.scope is None for state in pool.keys["a"].quota.learned.values())


def test_a_report_for_a_model_whose_name_is_a_pattern_applies_to_all() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool, ask(model="*")), ok(requests_left(1.0), scoped=True), 0.0)

    assert list(pool.keys["a"].quota.learned) == ["told requests per 60s"]


@pytest.mark.parametrize("model", ["-latest", "@mine"])
def test_a_model_without_a_family_is_its_own(model: str) -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool, ask(model=model)), limited(30.0, requests_left(0.0), scoped=True), 0.0)

    assert pool.acquire(ask(model=model), None, 1.0) is None


def test_a_refusal_of_one_model_takes_nothing_from_what_was_stated_for_another() -> None:
    limits = (Limit("requests", 60, model="small"), Limit("requests", 60, model="large"))
    pool = pool_of(KeySpec("a", slots=9, limits=limits))

    heard(pool, take(pool, LARGE), limited(scoped=True), 0.0)

    small, large, *_ = state_of(pool, "a", 0.0).limits
    assert small.left == 60.0
    assert large.left == pytest.approx(0.0, abs=0.02)  # a little behind: arrivals vary


def test_what_remains_of_one_model_takes_nothing_from_what_was_stated_for_another() -> None:
    limits = (Limit("requests", 60, model="small"), Limit("requests", 60, model="large"))
    pool = pool_of(KeySpec("a", slots=9, limits=limits))

    heard(pool, take(pool, LARGE), ok(requests_left(10.0), scoped=True), 0.0)

    assert state_of(pool, "a", 0.0).limits[0].left == 60.0


def test_after_a_long_rest_of_one_model_the_others_go_on_as_before() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool, LARGE), limited(100.0, scoped=True), 0.0)

    assert len([take(pool, SMALL, 101.0) for _ in range(5)]) == 5
    assert len(takes(pool, 5, now=101.0)) == 5
    assert pool.acquire(LARGE, None, 101.0) is not None
    assert pool.acquire(LARGE, None, 101.0) is None


def test_a_snapshot_of_the_model_that_has_rested_is_its_probe_too() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool, LARGE), Signal(Event.PARKED, 100.0, scoped=True), 0.0)

    probe = take(pool, ask(model="large-2024-08-06"), 101.0)
    assert pool.acquire(LARGE, None, 101.0) is None
    pool.release(probe, 102.0)

    assert len([take(pool, LARGE, 102.0) for _ in range(3)]) == 3


def test_the_end_of_a_call_to_another_model_lets_nobody_follow() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool, LARGE), Signal(Event.PARKED, 100.0, scoped=True), 0.0)
    take(pool, LARGE, 101.0)

    pool.release(take(pool, SMALL, 101.0), 102.0)
    pool.release(take(pool, PLAIN, 102.0), 102.0)

    assert pool.acquire(LARGE, None, 102.0) is None


def test_each_model_and_the_whole_are_tried_by_a_request_of_their_own() -> None:
    pool = pool_of(ROOMY)
    large, small, whole = take(pool, LARGE), take(pool, SMALL), take(pool)
    for grant, signal in (
        (large, Signal(Event.PARKED, 100.0, scoped=True)),
        (small, Signal(Event.PARKED, 100.0, scoped=True)),
        (whole, said(Event.PARKED, 100.0)),
    ):
        heard(pool, grant, signal, 0.0)

    probe = take(pool, LARGE, 100.0)  # of its model and of the whole
    assert pool.acquire(SMALL, None, 100.0) is None
    assert pool.acquire(PLAIN, None, 100.0) is None
    pool.release(probe, 101.0)

    assert len([take(pool, LARGE, 101.0) for _ in range(3)]) == 3
    assert pool.acquire(SMALL, None, 101.0) is not None
    assert pool.acquire(SMALL, None, 101.0) is None


def test_another_request_of_the_model_goes_where_its_probe_does_not_come_back() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool, LARGE), Signal(Event.PARKED, 100.0, scoped=True), 0.0)
    take(pool, LARGE, 100.0)
    waiting = [line_up(pool, LARGE, 100.0, name) for name in "xy"]

    assert pool.next_at == 100.0 + PROBE_TIMEOUT
    pool.tick(100.0 + PROBE_TIMEOUT)

    assert [ticket.state for ticket in waiting] == [TicketState.GRANTED, TicketState.WAITING]


# -- how much is left ---------------------------------------------------------------------------------------------


def test_what_an_answer_tells_of_a_limit_is_kept_to_from_then_on() -> None:
    pool = pool_of(ROOMY)
    grant = take(pool)

    assert not heard(pool, grant, ok(requests_left(6.0)), 0.0)

    assert [pool.acquire(PLAIN, None, 0.0) is not None for _ in range(6)] == [True] * 5 + [False]
    learned = state_of(pool, "a", 0.0).limits[0]
    assert (learned.dimension, learned.amount, learned.per, learned.learned) == ("requests", 60.0, 60.0, True)
    assert pool.keys["a"].quota.history == [(0.0, "limit of 60 requests, told by x-requests")]


def test_calls_that_are_under_way_when_a_limit_is_first_told_are_taken_for_not_counted() -> None:
    pool = pool_of(ROOMY)
    grant, *_ = takes(pool, 4)

    heard(pool, grant, ok(requests_left(10.0)), 0.0)

    assert told_of(pool).left(0.0) == pytest.approx(10.0 - SPARE - 3.0)


def test_what_was_started_since_the_answered_call_is_not_left() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), ok(requests_left(59.0)), 0.0)
    answered, *_ = takes(pool, 6, now=10.0)

    heard(pool, answered, ok(requests_left(20.0)), 10.0)

    assert told_of(pool).left(10.0) == pytest.approx(20.0 - SPARE - 5.0)


def test_an_answer_to_an_older_call_is_not_believed_over_a_newer_one() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), ok(requests_left(59.0)), 0.0)
    old, new = take(pool, now=1.0), take(pool, now=2.0)
    heard(pool, new, ok(requests_left(3.0)), 3.0)
    before = told_of(pool).left(4.0)

    heard(pool, old, ok(requests_left(58.0)), 4.0)

    assert told_of(pool).left(4.0) == before


def test_a_call_that_began_before_the_limit_was_known_does_not_set_it() -> None:
    pool = pool_of(ROOMY)
    old, first = take(pool), take(pool)
    heard(pool, first, ok(requests_left(3.0)), 1.0)
    before = told_of(pool).left(2.0)

    heard(pool, old, ok(requests_left(50.0)), 2.0)

    assert told_of(pool).left(2.0) == before


def test_a_limit_that_changed_is_noted() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), ok(requests_left(59.0)), 0.0)

    heard(pool, take(pool, now=1.0), ok(requests_left(500.0, limit=600.0)), 1.0)

    assert [what for _, what in pool.keys["a"].quota.history] == [
        "limit of 60 requests, told by x-requests",
        "limit of 600 requests, told by x-requests",
    ]
    assert told_of(pool).limit.amount == 600.0


def test_limits_of_several_windows_are_kept_beside_each_other() -> None:
    pool = pool_of(ROOMY)
    readings = (requests_left(59.0), requests_left(2.0, limit=1000.0, window=86_400.0))

    heard(pool, take(pool), ok(*readings), 0.0)

    assert len(pool.keys["a"].quota.learned) == 2
    assert pool.acquire(PLAIN, None, 0.0) is not None
    assert pool.acquire(PLAIN, None, 0.0) is None


@pytest.mark.parametrize(
    ("limit", "remaining", "resets_in", "per"),
    [
        (1000.0, 500.0, 1800.0, 3600.0),
        (100.0, 50.0, 0.5, 1.0),
        (10.0, 9.0, 0.1, 1.0),
        (5000.0, 4999.0, 17.28, 86_400.0),
    ],
)
def test_the_window_is_worked_out_where_it_is_not_told(
    limit: float, remaining: float, resets_in: float, per: float
) -> None:
    """Of a provider that says when the limit is full: so much is used, and comes back in that time."""
    pool = pool_of(ROOMY)
    reading = Reading("requests", limit, remaining, resets_in=resets_in)

    heard(pool, take(pool), ok(reading, provider="openai"), 0.0)

    assert told_of(pool).limit.per == pytest.approx(per)


def test_what_is_used_up_is_there_again_when_the_answer_says_so() -> None:
    """Of a provider about which nothing is known: its windows may end at a fixed instant."""
    pool = pool_of(ROOMY)

    heard(pool, take(pool), ok(Reading("tokens", 1000.0, 0.0, resets_in=4.0)), 0.0)

    assert told_of(pool).ready_at(500.0, 0.0) == pytest.approx(4.0, abs=0.1)


def test_of_one_dimension_there_is_one_limit_where_its_window_is_a_guess() -> None:
    pool = pool_of(ROOMY)
    for now, remaining, resets_in in ((0.0, 500.0, 30.0), (10.0, 990.0, 0.6), (20.0, 500.0, 30.0)):
        reading = Reading("requests", 1000.0, remaining, resets_in=resets_in)
        heard(pool, take(pool, now=now), ok(reading, provider="openai"), now)

    assert list(pool.keys["a"].quota.learned) == ["told requests"]
    assert told_of(pool).limit.per == 60.0


def test_a_little_use_at_the_beginning_of_a_minute_is_not_taken_for_an_hour() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), ok(Reading("requests", 60.0, 59.0, resets_in=59.0)), 0.0)

    assert told_of(pool).limit.per == 60.0


def test_a_limit_on_tokens_is_kept_once_somebody_says_what_requests_cost() -> None:
    pool = pool_of(ROOMY)
    reading = Reading("tokens", 1000.0, 300.0, window=60.0)
    grant = take(pool)
    heard(pool, grant, ok(reading), 0.0)
    assert len(takes(pool, 2)) == 2  # nobody knows what they cost
    assert pool.acquire(ask(tokens=301), None, 0.0) is None

    pool.settle(grant, parse_used("used", {"tokens": 200.0}), 0.0)

    assert pool.acquire(PLAIN, None, 0.0) is None


def test_a_limit_is_also_read_from_a_refusal() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), limited(None, requests_left(0.0, limit=6.0)), 0.0)

    assert list(pool.keys["a"].quota.learned) == ["told requests per 60s"]  # and no pace: the figures explain it
    assert rests_until(pool, "a", 0.0) is None  # they say when there is something again
    assert pool.acquire(PLAIN, None, 10.0) is None
    assert pool.acquire(PLAIN, None, 10.1) is not None  # one each ten seconds


def test_refusals_with_much_left_are_of_something_else() -> None:
    """One may be chance and costs one refill. Several in a row start an estimate beside it."""
    pool = pool_of(ROOMY)
    for now in (0.0, 10.0):
        heard(pool, take(pool, now=now), limited(None, requests_left(30.0)), now)
        assert list(pool.keys["a"].quota.learned) == ["told requests per 60s"]
        assert rests_until(pool, "a", now) is None
        assert pool.acquire(PLAIN, None, now + 0.5) is None

    heard(pool, take(pool, now=20.0), limited(None, requests_left(30.0)), 20.0)

    assert set(pool.keys["a"].quota.learned) == {"told requests per 60s", "pace"}


def test_a_refusal_that_names_the_dimension_is_explained_by_it() -> None:
    pool = pool_of(ROOMY)
    reading = Reading("tokens", 1000.0, 300.0, window=60.0)
    signal = Signal(Event.LIMITED, 5.0, dimensions=("tokens",), readings=(reading,))

    heard(pool, take(pool), signal, 0.0)

    assert list(pool.keys["a"].quota.learned) == ["told tokens per 60s"]
    assert rests_until(pool, "a", 0.0) == 5.0


def test_nothing_left_of_a_limit_nobody_named_closes_until_it_is_new() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), ok(Reading("requests", None, 0.0, resets_in=40.0, source="x-remaining")), 0.0)

    assert rests_until(pool, "a", 0.0) == 40.0
    assert state_of(pool, "a", 0.0).why == "nothing left: x-remaining"
    assert pool.keys["a"].quota.learned == {}


@pytest.mark.parametrize(
    "reading",
    [
        Reading("requests"),
        Reading("requests", 60.0),
        Reading("requests", None, 5.0, 30.0),
        Reading("requests", None, 0.0),
        Reading("requests", None, 0.0, 0.0),
        Reading("requests", 0.0, 5.0, 30.0),
        Reading("images", 10.0, 0.0, 30.0, 60.0),
        Reading("", 10.0, 0.0, 30.0, 60.0),
    ],
)
def test_readings_that_say_nothing_usable_change_nothing(reading: Reading) -> None:
    pool = pool_of(ROOMY)
    before = build_report(pool, 0.0)
    grant = take(pool)

    heard(pool, grant, ok(reading), 0.0)
    pool.release(grant, 0.0)

    assert build_report(pool, 0.0) == before


def test_a_stated_limit_is_never_exceeded_whatever_the_provider_would_allow() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 5),)))

    heard(pool, take(pool), ok(requests_left(600.0, limit=600.0)), 0.0)

    assert [pool.acquire(PLAIN, None, 0.0) is not None for _ in range(5)] == [True] * 4 + [False]


def test_a_stated_limit_is_drained_where_the_provider_knows_of_more_use() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))

    heard(pool, take(pool), ok(requests_left(3.0)), 0.0)

    assert 3.0 <= state_of(pool, "a", 0.0).limits[0].left <= 4.0  # what remains is rounded down


def test_a_limit_of_another_window_does_not_drain_the_stated_one() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))

    heard(pool, take(pool), ok(requests_left(3.0, window=3600.0)), 0.0)

    assert state_of(pool, "a", 0.0).limits[0].left == 59.0


def told_in_dates(limit: float, remaining: float, resets_in: float, overdue: float = 0.0) -> Reading:
    """As Anthropic does: the window of a minute is only its dialect's usual one."""
    told = Reading("requests", limit, remaining, resets_in, 60.0, "x-requests", assumed=True, dated=True)
    return replace(told, overdue=overdue)


def test_a_stated_window_says_more_of_a_reported_limit_than_the_dialect() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 7, per=10),)))

    heard(pool, take(pool), limited(None, told_in_dates(6.0, 0.0, 10.9)), 0.0)

    reported = next(state for state in pool.keys["a"].quota.limits if isinstance(state, ReportedLimit))
    assert reported.per == 10.0


def test_an_answer_that_takes_longer_than_its_window_tells_when_that_ended() -> None:
    pool = pool_of(KeySpec("a", slots=99))
    grants = [take(pool), take(pool)]

    for grant in grants:
        heard(pool, grant, ok(told_in_dates(6.0, 3.0, 0.0, overdue=55.0)), 60.0)

    reported = next(state for state in pool.keys["a"].quota.limits if isinstance(state, ReportedLimit))
    assert reported.heard_at == 0.0
    assert reported.evidence.find_window(6.0, None) == 5.0


def test_what_an_answer_says_is_left_stays_so_when_its_usage_is_settled() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool, ask(tokens=100)), ok(Reading("tokens", 1000.0, 900.0, window=60.0)), 0.0)
    grant, _ = take(pool, ask(tokens=500), 60.0), take(pool, ask(tokens=300), 60.0)

    heard(pool, grant, ok(Reading("tokens", 1000.0, 900.0, window=60.0)), 60.0)
    pool.settle(grant, parse_used("used", {"tokens": 100.0}), 60.0)

    assert told_of(pool).left(60.0) == pytest.approx(900.0 - 300.0)


HOSTILE = (math.nan, math.inf, -math.inf, -1.0, 1e308, -1e308)


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("field", ["limit", "remaining", "resets_in", "window"])
def test_figures_that_make_no_sense_close_nothing_for_ever(field: str, value: float) -> None:
    """Not each of them does harm alone: all readings with one such figure, and each other one of those too."""
    for other in ("limit", "remaining", "resets_in", "window"):
        for second in HOSTILE:
            figures: dict[str, Any] = {
                "limit": 60.0,
                "remaining": 0.0,
                "resets_in": 30.0,
                "window": 60.0,
                field: value,
                other: second,
            }
            pool = pool_of(ROOMY)
            for event, grant in zip((Event.OK, Event.LIMITED), takes(pool, 2), strict=True):
                pool.report(grant, Signal(event, readings=(Reading(dimension="requests", **figures),)), 0.0)
            ticket = line_up(pool, now=0.0)
            assert ticket.state is TicketState.GRANTED or (
                ticket.state is TicketState.WAITING and pool.next_at <= DAYS_35
            )


@pytest.mark.parametrize("limit", [1e-308, 1e-12, 0.999])
def test_a_limit_of_less_than_one_request_is_one_that_was_not_told(limit: float) -> None:
    pool = pool_of(ROOMY)
    first, _ = takes(pool, 2)

    heard(pool, first, ok(requests_left(0.0, limit=limit)), 0.0)

    assert pool.keys["a"].quota.learned == {}
    assert line_up(pool).state is TicketState.GRANTED


@pytest.mark.parametrize("limit", [1e-308, 1e-12, 0.999])
def test_where_a_limit_of_less_than_one_request_is_used_up_it_rests_for_as_long_as_was_told(limit: float) -> None:
    pool = pool_of(ROOMY)
    first, _ = takes(pool, 2)

    heard(pool, first, ok(Reading("requests", limit, 0.0, resets_in=30.0, window=60.0)), 0.0)

    line_up(pool)
    assert pool.next_at == 30.0


def test_a_limit_of_one_request_is_believed() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), ok(requests_left(0.0, limit=1.0)), 0.0)

    assert told_of(pool).limit.amount == 1.0
    line_up(pool)
    assert 0.0 < pool.next_at <= 120.0


@pytest.mark.parametrize("field", ["remaining", "resets_in", "window"])
def test_next_to_nothing_of_anything_else_closes_nothing_for_ever(field: str) -> None:
    figures: dict[str, Any] = {"limit": 60.0, "remaining": 0.0, "resets_in": 30.0, "window": 60.0, field: 1e-308}
    pool = pool_of(ROOMY)
    first, _ = takes(pool, 2)

    heard(pool, first, ok(Reading("requests", **figures)), 0.0)

    assert line_up(pool).state is TicketState.GRANTED or pool.next_at <= DAYS_35


NO_DELAYS = (math.nan, math.inf, -math.inf, 1e308, -1e308, -1.0, DAYS_35 + 1)


@pytest.mark.parametrize("delay", NO_DELAYS)
@pytest.mark.parametrize("event", Event)
def test_a_delay_that_makes_no_sense_is_one_that_was_not_told(event: Event, delay: float) -> None:
    pools = [pool_of(ROOMY), pool_of(ROOMY)]

    for pool, told in zip(pools, (delay, None), strict=True):
        for grant in takes(pool, 3):
            pool.report(grant, Signal(event, told), 0.0)

    assert build_report(pools[0], 0.0) == build_report(pools[1], 0.0)


def test_the_longest_window_there_is_is_believed() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), said(Event.PARKED, DAYS_35), 0.0)

    assert rests_until(pool, "a", 0.0) == DAYS_35


@pytest.mark.parametrize("delay", [math.inf, 1e308])
@pytest.mark.parametrize("event", [Event.LIMITED, Event.PARKED, Event.RAMP])
def test_a_delay_that_makes_no_sense_closes_nothing_for_ever(event: Event, delay: float) -> None:
    pool = pool_of(ROOMY)

    for grant in takes(pool, 2):
        pool.report(grant, Signal(event, delay), 0.0)

    ticket = line_up(pool, now=0.0)
    assert ticket.state is TicketState.GRANTED or (ticket.state is TicketState.WAITING and pool.next_at <= DAYS_35)


@pytest.mark.parametrize("delay", [0.0, 1e-308])
@pytest.mark.parametrize("event", [Event.LIMITED, Event.PARKED, Event.RAMP, Event.BUSY, Event.NETWORK])
def test_a_delay_of_next_to_nothing_is_hardly_one(event: Event, delay: float) -> None:
    pool = pool_of(ROOMY)

    pool.report(take(pool), Signal(event, delay), 0.0)

    ticket = line_up(pool, now=0.0)
    assert ticket.state is TicketState.GRANTED or pool.next_at < 10.0


def told_limits(pool: AdaptivePool) -> int:
    return sum(isinstance(state, ReportedLimit) for state in pool.keys["a"].quota.learned.values())


def test_an_answer_that_names_a_new_window_each_time_teaches_so_many_limits_at_most() -> None:
    pool = pool_of(ROOMY)

    for number in range(1, 201):
        grant = take(pool, now=number / 100)
        heard(pool, grant, ok(requests_left(5e4, limit=6e4, window=float(number))), number / 100)
        pool.release(grant, number / 100)

    assert told_limits(pool) == 128


def test_a_limit_that_answers_do_not_report_any_more_is_forgotten() -> None:
    """One refusal named an hour, and no answer since: it must not hold back anything for ever."""
    pool = pool_of(ROOMY)
    heard(pool, take(pool), limited(0.0, requests_left(0.0, limit=5.0, window=10.0)), 0.0)
    for now in (50.0, 60.0):
        heard(pool, take(pool, now=now), ok(requests_left(50.0)), now)
        assert "told requests per 10s" in pool.keys["a"].quota.learned

    heard(pool, take(pool, now=61.0), ok(requests_left(50.0)), 61.0)

    assert list(pool.keys["a"].quota.learned) == ["told requests per 60s"]


def test_among_so_many_limits_those_that_are_known_are_still_set_right() -> None:
    pool = pool_of(ROOMY)
    grant = take(pool)
    heard(pool, grant, ok(*(requests_left(50.0, window=float(number)) for number in range(1, 141))), 0.0)

    heard(pool, take(pool, now=1.0), ok(requests_left(9.0, window=20.0)), 1.0)

    assert pool.keys["a"].quota.learned["told requests per 20s"].left(1.0) == pytest.approx(9.0 - 3 * SPARE)


def test_a_refusal_by_one_limit_too_many_is_still_explained_by_it() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), ok(*(requests_left(50.0, window=float(number)) for number in range(1, 141))), 0.0)

    heard(pool, take(pool, now=1.0), limited(5.0, requests_left(0.0, window=1000.0)), 1.0)

    assert told_limits(pool) == len(pool.keys["a"].quota.learned) == 128  # and no search for a rate
    assert rests_until(pool, "a", 1.0) == 6.0


# -- what is news -------------------------------------------------------------------------------------------------


def told_at(now: float, remaining: float = 50.0) -> tuple[AdaptivePool, Grant]:
    """A pool that was told, with the answer to this lease, how many of sixty requests a minute remain."""
    pool = pool_of(ROOMY)
    grant = take(pool, now=now)
    heard(pool, grant, ok(requests_left(remaining)), now)
    return pool, grant


def test_the_first_answer_is_news() -> None:
    pool = pool_of(ROOMY)

    assert pool.wants_readings(take(pool), 0.0)


@pytest.mark.parametrize(("passed", "news"), [(0.0, False), (0.09, False), (0.11, True), (60.0, True)])
def test_an_answer_is_news_when_none_has_told_anything_for_a_tenth_of_a_second(passed: float, news: bool) -> None:
    pool, _ = told_at(10.0)

    assert pool.wants_readings(take(pool, now=10.0 + passed), 10.0 + passed) is news


@pytest.mark.parametrize(("remaining", "news"), [(60.0, False), (32.0, False), (30.0, True), (1.0, True)])
def test_an_answer_is_news_when_less_than_half_was_left(remaining: float, news: bool) -> None:
    pool, grant = told_at(10.0, remaining)

    assert pool.wants_readings(grant, 10.0) is news


def test_an_answer_is_news_when_less_than_half_is_left_by_what_was_taken_since() -> None:
    pool, grant = told_at(10.0, 40.0)
    assert not pool.wants_readings(grant, 10.0)

    takes(pool, 10, now=10.0)

    assert pool.wants_readings(grant, 10.0)


def test_an_answer_is_news_while_the_quota_rests() -> None:
    pool, grant = told_at(10.0)
    other = take(pool, now=10.0)

    heard(pool, other, limited(20.0), 10.0)

    assert pool.wants_readings(grant, 10.0)


def test_an_answer_is_news_until_the_request_that_went_first_is_back() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), said(Event.PARKED, 1000.0), 0.0)
    first = take(pool, now=1000.0)
    heard(pool, first, ok(requests_left(50.0)), 1000.0)
    assert pool.wants_readings(first, 1000.0)

    pool.release(first, 1000.0)

    assert not pool.wants_readings(take(pool, now=1000.0), 1000.0)


def test_what_is_told_of_one_quota_makes_nothing_old_that_is_told_of_another() -> None:
    pool = pool_of("a", "b")
    of_a, of_b = takes(pool, 2)

    heard(pool, of_a, ok(requests_left(50.0)), 0.0)

    assert not pool.wants_readings(of_a, 0.0)
    assert pool.wants_readings(of_b, 0.0)


# -- how fast -----------------------------------------------------------------------------------------------------


def test_a_refusal_that_nothing_explains_begins_the_search_for_a_rate() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), limited(), 1.0)

    assert pace_of(pool).searching
    assert pool.keys["a"].quota.history == [(1.0, "looking for the rate: refused (429)")]
    learned = state_of(pool, "a", 1.0).limits[0]
    assert (learned.dimension, learned.amount, learned.learned) == ("requests", 15.0, True)


def test_the_search_begins_by_what_was_started_of_late() -> None:
    pool = pool_of(ROOMY)
    grants = [take(pool, now=n / 32) for n in range(64)]

    heard(pool, grants[-1], limited(), 2.0)

    assert pace_of(pool).rate == pytest.approx(32 / 8)


def test_a_burst_of_refusals_in_flight_is_one_lesson() -> None:
    pool = pool_of(ROOMY)
    grants = takes(pool, 10)

    for number, grant in enumerate(grants):
        heard(pool, grant, limited(), 0.5 + number / 16)

    assert len(pool.keys["a"].quota.history) == 1
    assert rests_until(pool, "a", 0.5) == 1.5


def test_a_measured_rate_is_noted_in_the_words_of_people() -> None:
    pool = pool_of(ROOMY)
    pool.release(take(pool), 0.0)
    heard(pool, grant := take(pool), limited(), 0.0)
    now = 1.0
    for _ in range(11):
        now = pace_of(pool).ready_at(1.0, now)
        pool.release(grant, now)
        grant = take(pool, now=now)

    heard(pool, grant, limited(), now)

    assert not pace_of(pool).searching
    assert pool.keys["a"].quota.history[-1] == (now, f"{10 / now * 60:.3g} requests a minute: refused (429)")


def test_history_keeps_the_last_twenty_lessons() -> None:
    pool = pool_of(ROOMY)
    for n in range(30):
        heard(pool, take(pool, now=100.0 * n), ok(requests_left(50.0, limit=60.0 + n)), 100.0 * n)

    history = pool.keys["a"].quota.history
    assert len(history) == 20
    assert history[-1] == (2900.0, "limit of 89 requests, told by x-requests")


def test_a_stated_limit_is_not_doubted_by_two_refusals() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))
    for now in (0.0, 100.0):
        heard(pool, take(pool, now=now), limited(), now)
        assert pool.keys["a"].quota.learned == {}
        # Nothing, and a little less: arrivals vary, and the next call should not be early again.
        assert -0.02 <= state_of(pool, "a", now).limits[0].left <= 0.0

    heard(pool, take(pool, now=200.0), limited(), 200.0)

    assert list(pool.keys["a"].quota.learned) == ["pace"]


def test_a_stated_limit_whose_refusals_last_for_long_is_doubted_too() -> None:
    """144 a day: the next call is ten minutes away, and a delay of that length parks the quota."""
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 144, per=86_400),)))
    for now in (0.0, 700.0, 1_400.0):
        assert pool.keys["a"].quota.learned == {}
        heard(pool, take(pool, now=now), said(Event.PARKED, 613.0), now)

    assert list(pool.keys["a"].quota.learned) == ["pace"]


def test_a_long_refusal_for_lack_of_the_next_call_starts_no_new_search() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 144, per=86_400),)))
    for now in (0.0, 700.0, 1_400.0):
        heard(pool, take(pool, now=now), said(Event.PARKED, 613.0), now)
    now = 1_400.0
    for _ in range(12):
        now = pool.earliest_start(PLAIN, now)
        grant = take(pool, now=now)
        heard(pool, grant, ok(), now)
        pool.release(grant, now)

    now = pool.earliest_start(PLAIN, now)
    heard(pool, take(pool, now=now), said(Event.PARKED, 613.0), now)

    assert not pace_of(pool).searching
    assert 60 / 86_400 < pace_of(pool).rate < 144 / 86_400


def of_tokens(delay: float | None = None) -> Signal:
    return Signal(Event.LIMITED, delay, dimensions=("tokens",), evidence=("429",), status=429)


def test_a_refusal_of_tokens_drains_those_that_were_stated_and_is_no_pace_before_the_third() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("tokens", 6000),)))
    for now in (0.0, 100.0):
        heard(pool, take(pool, ask(tokens=10), now=now), of_tokens(), now)
        assert pool.keys["a"].quota.learned == {}
        assert -1.0 <= state_of(pool, "a", now).limits[0].left <= 0.0

    heard(pool, take(pool, ask(tokens=10), now=200.0), of_tokens(), 200.0)

    assert list(pool.keys["a"].quota.learned) == ["pace"]


def test_a_refusal_of_tokens_takes_nothing_from_the_requests_that_were_stated() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("tokens", 6000), Limit("requests", 60))))

    heard(pool, take(pool, ask(tokens=10)), of_tokens(), 0.0)

    tokens, requests = (limit.left for limit in state_of(pool, "a", 0.0).limits)
    assert -1.0 <= tokens <= 0.0
    assert requests == 59.0


@pytest.mark.parametrize(
    "limit", [Limit("tokens", 100, per=10, window="sliding"), Limit("tokens", 100, per="day")], ids=["sliding", "day"]
)
def test_what_a_refused_call_took_is_given_back_once(limit: Limit) -> None:
    """Even if its usage is reported, too: none."""
    pool = pool_of(KeySpec("a", slots=99, limits=(limit,)))
    pool.settle(take(pool, ask(tokens=40)), parse_used("used", {"tokens": 40.0}), 0.0)
    grant = take(pool, ask(tokens=60))

    heard(pool, grant, of_tokens(0.0), 0.0)
    pool.settle(grant, parse_used("used", {"tokens": 0.0}), 0.0)

    state = pool.keys["a"].quota.limits[0]
    assert state.pack().get("used", sum(amount for _, amount in state.pack().get("starts", ()))) == 40.0


def test_refusals_that_lie_far_apart_do_not_add_up() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))
    for day in range(3):
        now = 86_400.0 * day
        heard(pool, take(pool, now=now), limited(), now)
        for n in range(1, 100):
            pool.release(take(pool, now=now + 10 * n), now + 10 * n)

    assert pool.keys["a"].quota.learned == {}


@pytest.mark.parametrize(("admitted", "doubted"), [(9, True), (99, False)])
def test_a_stated_limit_is_doubted_if_refusals_are_too_frequent_for_chance(admitted: int, doubted: bool) -> None:
    """Wald's test: one refusal in ten calls is no jitter, one in a hundred is."""
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))
    now = 0.0
    for _ in range(12):
        heard(pool, take(pool, now=now), limited(), now)
        for _ in range(admitted):
            now += 10.0
            grant = take(pool, now=now)
            heard(pool, grant, ok(), now)
            pool.release(grant, now)
        now += 10.0
        if pool.keys["a"].quota.learned:
            break

    assert bool(pool.keys["a"].quota.learned) == doubted


def test_an_estimate_beside_a_stated_limit_begins_at_the_stated_rate() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))
    for now in (0.0, 100.0, 200.0):
        heard(pool, take(pool, now=now), limited(), now)

    assert pace_of(pool).rate == pytest.approx(1.0, rel=0.02)
    assert not pace_of(pool).searching


@pytest.mark.parametrize(("burst", "beside_bucket"), [(None, True), (10, False)])
def test_a_bucket_that_holds_little_is_taken_for_one_that_loses_inflow(burst: int | None, beside_bucket: bool) -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60, burst=burst),)))
    for now in (0.0, 100.0, 200.0):
        heard(pool, take(pool, now=now), limited(), now)

    assert pace_of(pool).beside_bucket == beside_bucket


def test_clearing_forgets_the_strikes() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))
    for now in (0.0, 100.0, 200.0):
        heard(pool, take(pool, now=now), limited(), now)
        pool.clear(pool.keys["a"], now + 1)

    assert pool.keys["a"].quota.learned == {}


def test_a_call_of_before_a_clear_counts_like_any_other() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))
    first, second = takes(pool, 2)
    heard(pool, first, limited(), 1.0)
    pool.clear(pool.keys["a"], 2.0)

    heard(pool, second, limited(), 3.0)
    heard(pool, take(pool, now=100.0), limited(), 100.0)
    assert pool.keys["a"].quota.learned == {}
    heard(pool, take(pool, now=200.0), limited(), 200.0)

    assert list(pool.keys["a"].quota.learned) == ["pace"]  # the third


def test_a_burst_is_one_strike() -> None:
    pool = pool_of(KeySpec("a", slots=99, limits=(Limit("requests", 60),)))

    for grant in takes(pool, 5):
        heard(pool, grant, limited(), 0.0)

    assert pool.keys["a"].quota.learned == {}


def test_clearing_forgets_what_was_learned() -> None:
    pool = pool_of(KeySpec("a", auto=True))
    grant = take(pool)
    heard(pool, grant, limited(700.0, requests_left(30.0)), 0.0)
    pool.release(grant, 1.0)

    pool.clear(pool.keys["a"], 2.0)

    row = state_of(pool, "a", 2.0)
    assert (row.state, row.limits, row.history) == ("available", (), ())
    assert pool.acquire(PLAIN, None, 2.0) is not None


def test_what_a_lease_of_before_reports_after_a_clear_is_learned_anew() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), ok(requests_left(59.0)), 0.0)
    grant = take(pool, now=1.0)
    pool.clear(pool.keys["a"], 2.0)

    heard(pool, grant, limited(None, requests_left(0.0)), 3.0)
    pool.release(grant, 3.0)

    assert told_of(pool).left(3.0) < 1.0


# -- how wide -----------------------------------------------------------------------------------------------------


AUTO = KeySpec("a", auto=True)


def busy_work(pool: AdaptivePool, now: float, calls: int, cap: int = 99) -> int:
    """Keep every slot busy; what is more than *cap* at once is refused. How many were."""
    held: list[Grant] = list(pool.leases.values())
    refused = 0
    for n in range(calls):
        at = now + n
        while (grant := pool.acquire(PLAIN, None, at)) is not None:
            held.append(grant)
        while len(held) > cap:
            refused += 1
            heard(pool, held[-1], limited(0.0), at)
            pool.release(held.pop(), at)
        if held:
            pool.release(held.pop(0), at)
    for grant in held:
        pool.release(grant, now + calls)
    return refused


def test_auto_slots_begin_with_one_and_grow_where_they_are_used() -> None:
    pool = pool_of(AUTO)
    assert state_of(pool, "a", 0.0).slots == 1

    busy_work(pool, 0.0, 100)

    assert state_of(pool, "a", 100.0).slots == 64
    lessons = [what for _, what in pool.keys["a"].quota.history]
    assert lessons == ["slots 64: all were used, and nothing was refused"]


def test_auto_slots_do_not_grow_where_they_are_not_used() -> None:
    pool = pool_of(AUTO)
    for now in range(50):
        pool.release(take(pool, now=float(now)), float(now))

    assert state_of(pool, "a", 50.0).slots == 4


def test_who_waits_gets_the_slots_that_grow() -> None:
    pool = pool_of(AUTO)
    grant = take(pool)
    tickets = [line_up(pool, name=f"w{n}") for n in range(5)]

    pool.release(grant, 1.0)

    assert [ticket.state for ticket in tickets] == [TicketState.GRANTED] * 4 + [TicketState.WAITING]


def test_slots_become_fewer_while_they_are_leased_and_nobody_is_lost() -> None:
    pool = pool_of(AUTO)
    for n in range(3):
        pool.release(take(pool, now=float(n)), float(n))
    grants = takes(pool, 4, now=10.0)
    ticket = line_up(pool, now=10.0)

    heard(pool, grants[1], limited(0.0), 11.0)

    row = state_of(pool, "a", 11.0)
    assert (row.slots, len(row.holders)) == (1, 4)
    assert "slots 1: more at once were refused (429)" in [what for _, what in pool.keys["a"].quota.history]
    for grant in grants[:3]:
        pool.release(grant, 12.0)
        assert ticket.state is TicketState.WAITING
    pool.release(grants[3], 12.0)
    while ticket.state is TicketState.WAITING:
        pool.tick(pool.next_at)
    assert ticket.grant is not None


def test_slots_that_were_lost_while_they_were_leased_do_not_come_back_one_by_one() -> None:
    pool = pool_of(AUTO)
    for n in range(3):
        pool.release(take(pool, now=float(n)), float(n))
    grants = takes(pool, 4, now=10.0)
    heard(pool, grants[1], limited(0.0), 11.0)

    for grant in grants[:3]:
        pool.release(grant, 100.0)
        assert pool.acquire(PLAIN, None, 100.0) is None
    pool.release(grants[3], 100.0)

    assert pool.acquire(PLAIN, None, 100.0) is not None


def test_keys_of_one_quota_find_their_slots_together() -> None:
    pool = pool_of(KeySpec("a", quota="q", auto=True), KeySpec("b", quota="q", auto=True), KeySpec("c", quota="q"))

    for n in range(60):
        grants = []
        while (grant := pool.acquire(PLAIN, None, float(n))) is not None:
            grants.append(grant)
        for grant in grants:
            pool.release(grant, float(n))

    slots = {row.name: row.slots for row in build_report(pool, 60.0)}
    assert slots["a"] == slots["b"] > 4
    assert slots["c"] == 1


def test_a_key_with_which_no_call_has_gone_well_has_one_slot() -> None:
    pool = pool_of(KeySpec("a", quota="q", auto=True))
    busy_work(pool, 0.0, 50)

    pool.add(KeySpec("b", quota="q", auto=True), 60.0)

    assert {row.name: row.slots for row in build_report(pool, 60.0)} == {"a": 64, "b": 1}


def test_a_call_that_did_not_go_well_is_no_reason_to_grow() -> None:
    pool = pool_of(AUTO)
    for event in (Event.LIMITED, Event.BUSY, Event.NETWORK, Event.RAMP, Event.PARKED, Event.NOT_ENTITLED):
        fresh = pool_of(AUTO)
        grant = take(fresh)
        heard(fresh, grant, said(event), 0.0)
        fresh.release(grant, 0.0)
        assert state_of(fresh, "a", 0.0).slots == 1, event

    grant = take(pool)
    heard(pool, grant, said(Event.CALLER), 0.0)
    pool.release(grant, 0.0)
    assert state_of(pool, "a", 0.0).slots == 4


def test_clearing_starts_the_width_over() -> None:
    pool = pool_of(AUTO)
    busy_work(pool, 0.0, 50)

    pool.clear(pool.keys["a"], 60.0)

    assert state_of(pool, "a", 60.0).slots == 1


def test_a_call_of_which_nobody_knows_how_it_went_does_not_make_it_wider() -> None:
    pool = pool_of(AUTO)
    for now in range(20):
        grant = take(pool, now=float(now))
        pool.mark_unknown_outcome(grant)
        pool.release(grant, float(now))

    assert state_of(pool, "a", 20.0).slots == 1
    assert not pool.keys["a"].proven
    pool.release(take(pool, now=20.0), 20.0)
    assert state_of(pool, "a", 20.0).slots > 1


def test_a_lease_that_max_lease_ended_does_not_make_it_wider() -> None:
    pool = pool_of(AUTO, max_lease=10.0)
    take(pool)

    pool.tick(10.0)

    assert (pool.leases, state_of(pool, "a", 10.0).slots, pool.keys["a"].proven) == ({}, 1, False)


def test_of_leases_that_are_open_those_that_max_lease_ended_alone_tell_nothing() -> None:
    pool = pool_of(AUTO, KeySpec("b", auto=True), max_lease=10.0)
    take(pool)
    later = take(pool, now=5.0)

    pool.tick(10.0)
    pool.release(later, 11.0)

    assert {name: key.proven for name, key in pool.keys.items()} == {"a": False, "b": True}


def test_a_refusal_on_one_credential_of_a_quota_takes_nothing_from_what_another_bears() -> None:
    pool = pool_of(KeySpec("a", quota="q", auto=True), KeySpec("b", quota="q", auto=True))
    width = pool.keys["a"].quota.concurrency
    assert width is not None
    first, second = takes(pool, 2)
    assert {first.key.name, second.key.name} == {"a", "b"}

    heard(pool, first, limited(0.0), 0.0)
    pool.release(second, 0.0)

    assert width.proven == 1


# -- probes -------------------------------------------------------------------------------------------------------


def rested(pool: AdaptivePool, seconds: float, signal: Signal | None = None) -> float:
    """Let the only quota rest; the instant at which that ends."""
    grant = take(pool)
    heard(pool, grant, signal or limited(seconds), 0.0)
    pool.release(grant, 0.0)
    return seconds


def test_after_a_long_rest_one_goes_first_and_the_others_follow_when_it_is_back() -> None:
    pool = pool_of(ROOMY)
    now = rested(pool, 60.0)

    probe = take(pool, now=now + 5)
    assert pool.acquire(PLAIN, None, now + 5) is None
    waiting = line_up(pool, now=now + 5)
    assert state_of(pool, "a", now + 5).why == "one request tries whether a long rest is over"
    pool.release(probe, now + 6)

    assert waiting.state is TicketState.GRANTED


def test_after_a_short_rest_all_go_at_once() -> None:
    pool = pool_of(ROOMY)
    pool.report(take(pool), limited(59.9, requests_left(0.0, limit=6000.0)), 0.0)

    assert len(takes(pool, 3, now=60.0)) == 3


def test_another_goes_where_the_probe_does_not_come_back() -> None:
    pool = pool_of(ROOMY)
    now = rested(pool, 60.0)
    take(pool, now=now)
    waiting = [line_up(pool, now=now, name=name) for name in "xy"]

    assert pool.next_at == now + PROBE_TIMEOUT
    pool.tick(now + PROBE_TIMEOUT)

    assert [ticket.state for ticket in waiting] == [TicketState.GRANTED, TicketState.WAITING]
    assert pool.next_at == now + 2 * PROBE_TIMEOUT


def test_a_probe_that_is_refused_lets_nobody_follow() -> None:
    pool = pool_of(ROOMY)
    now = rested(pool, 60.0)
    probe = take(pool, now=now)

    heard(pool, probe, limited(120.0), now + 1)
    pool.release(probe, now + 1)

    assert pool.acquire(PLAIN, None, now + 120) is None
    assert pool.acquire(PLAIN, None, now + 121) is not None
    assert pool.acquire(PLAIN, None, now + 121) is None


def test_a_lease_of_before_the_rest_does_not_end_the_probing() -> None:
    pool = pool_of(ROOMY)
    slow = take(pool)
    now = rested(pool, 60.0)
    take(pool, now=now)

    pool.release(slow, now + 1)

    assert pool.acquire(PLAIN, None, now + 1) is None


def test_a_lease_of_before_the_rest_does_not_end_a_probation_that_nobody_tried() -> None:
    pool = pool_of(ROOMY, max_lease=1000.0)
    slow = take(pool)
    now = rested(pool, 60.0)
    assert len(pool.keys["a"].quota.blocks) == 1
    pool.tick(now)
    pool.keys["a"].quota.forget_ended_blocks(now)

    pool.release(slow, now + 1)

    take(pool, now=now + 1)
    assert pool.acquire(PLAIN, None, now + 1) is None


@pytest.mark.parametrize("event", [Event.NETWORK, Event.BUSY])
def test_a_probe_that_got_no_answer_lets_the_next_one_go_first(event: Event) -> None:
    pool = pool_of(ROOMY)
    now = rested(pool, 60.0)
    probe = take(pool, now=now)

    heard(pool, probe, said(event), now + 2)
    pool.release(probe, now + 2)

    second = take(pool, now=now + 2)
    assert pool.acquire(PLAIN, None, now + 2) is None
    pool.release(second, now + 3)
    assert len(takes(pool, 2, now=now + 5)) == 2


def test_a_probe_of_which_nobody_knows_how_it_went_lets_the_next_one_go_first() -> None:
    pool = pool_of(ROOMY)
    now = rested(pool, 60.0)
    probe = take(pool, now=now)
    waiting = [line_up(pool, now=now, name=name) for name in "xy"]

    pool.mark_unknown_outcome(probe)
    pool.release(probe, now + 2)

    assert [ticket.state for ticket in waiting] == [TicketState.GRANTED, TicketState.WAITING]


def test_after_repeated_refusals_with_nothing_admitted_one_goes_first() -> None:
    pool = pool_of(ROOMY)
    now = 0.0
    for _ in range(3):
        grant = take(pool, now=now)
        heard(pool, grant, limited(20.0), now)
        pool.release(grant, now)
        now = pace_of(pool).ready_at(1.0, now + 20.0)

    assert pool.acquire(PLAIN, None, now) is not None
    assert pool.acquire(PLAIN, None, now) is None


def test_the_probe_after_a_rest_that_a_good_answer_told_of_is_noticed() -> None:
    pool = pool_of(ROOMY)
    rested(pool, 100.0, ok(Reading("requests", None, 0.0, resets_in=100.0)))
    pool.release(take(pool, now=100.0), 101.0)

    assert len(takes(pool, 2, now=102.0)) == 2


def test_a_probe_that_ends_without_a_word_is_one_that_went_well() -> None:
    pool = pool_of(ROOMY)
    now = rested(pool, 60.0)

    pool.release(take(pool, now=now), now + 1)

    assert pool.keys["a"].quota.probation == {}
    assert len(takes(pool, 2, now=now + 4)) == 2


def test_clearing_ends_the_probing() -> None:
    pool = pool_of(ROOMY)
    now = rested(pool, 60.0)
    take(pool, now=now)

    pool.clear(pool.keys["a"], now)

    assert len(takes(pool, 2, now=now)) == 2


# -- long windows, money, dead keys -------------------------------------------------------------------------------


def test_a_long_window_parks_the_quota_until_it_is_new_and_one_goes_first() -> None:
    pool = pool_of(ROOMY)
    rested(pool, 7200.0, said(Event.PARKED, 7200.0))

    assert state_of(pool, "a", 0.0).state == "parked"
    assert pool.acquire(PLAIN, None, 7199.0) is None
    assert pool.acquire(PLAIN, None, 7200.0) is not None
    assert pool.acquire(PLAIN, None, 7200.0) is None


def test_one_goes_first_after_a_long_window_though_little_of_it_was_left() -> None:
    pool = pool_of(ROOMY)
    rested(pool, 20.0, said(Event.PARKED, 20.0))

    assert pool.acquire(PLAIN, None, 20.0) is not None
    assert pool.acquire(PLAIN, None, 20.0) is None


def test_a_limit_that_is_used_up_for_long_after_few_calls_refills_slowly() -> None:
    """Each time that it opens one call is admitted: all slots at once would be refused again and again."""
    pool = pool_of(ROOMY)
    rested(pool, 1_000.0, said(Event.PARKED, 1_000.0))
    probe = take(pool, now=1_000.0)
    pool.report(probe, ok(), 1_000.1)
    pool.release(probe, 1_000.1)

    refused = take(pool, now=1_000.2)
    heard(pool, refused, said(Event.PARKED, 1_000.0), 1_000.3)
    pool.release(refused, 1_000.3)

    assert pace_of(pool).searching
    probe = take(pool, now=2_004.0)
    pool.report(probe, ok(), 2_004.1)
    pool.release(probe, 2_004.1)
    started = 0
    while pool.acquire(PLAIN, None, 2_004.1) is not None:
        started += 1
    assert started <= 3


def test_a_long_window_that_many_calls_have_used_up_is_no_slow_refill() -> None:
    pool = pool_of(ROOMY)
    rested(pool, 1_000.0, said(Event.PARKED, 1_000.0))
    probe = take(pool, now=1_000.0)
    pool.release(probe, 1_000.1)
    for grant in takes(pool, 8, now=1_000.2):
        pool.report(grant, ok(), 1_000.3)
        pool.release(grant, 1_000.3)

    heard(pool, take(pool, now=1_000.4), said(Event.PARKED, 1_000.0), 1_000.5)

    assert "pace" not in pool.keys["a"].quota.learned


def test_after_a_long_window_adaptive_slots_do_not_all_start_at_once() -> None:
    pool = pool_of(KeySpec("a", auto=True))
    pool.release(take(pool), 0.1)
    rested(pool, 1_000.0, said(Event.PARKED, 1_000.0))

    assert pace_of(pool).searching


def test_a_refusal_at_the_edge_of_an_estimate_costs_one_refill() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), limited(), 0.0)
    pace_of(pool).begin_at(2.0, 0.0)
    now = 1.0
    for _ in range(12):
        now = max(now, pace_of(pool).ready_at(1.0, now))
        grant = take(pool, now=now)
        pool.report(grant, ok(), now)
        pool.release(grant, now)
    now = pace_of(pool).ready_at(1.0, now)

    heard(pool, take(pool, now=now), limited(), now)

    assert rests_until(pool, "a", now) == pytest.approx(now + 1 / pace_of(pool).rate)


def test_a_long_window_that_nobody_names_is_asked_about_in_an_hour() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), said(Event.PARKED), 5.0)

    assert rests_until(pool, "a", 5.0) == 3605.0


@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_a_long_window_rests_for_a_second_at_least(delay: float) -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), said(Event.PARKED, delay), 5.0)

    assert rests_until(pool, "a", 5.0) == 6.0


def test_a_long_window_of_one_model_parks_that_alone() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool, LARGE), Signal(Event.PARKED, 7200.0, scoped=True), 0.0)

    assert pool.acquire(LARGE, None, 1.0) is None
    assert pool.acquire(SMALL, None, 1.0) is not None
    assert pool.acquire(SMALL, None, 1.0) is not None


def test_money_that_is_gone_closes_the_quota_until_a_person_acts() -> None:
    pool = pool_of(KeySpec("a", quota="q"), KeySpec("b", quota="q"), KeySpec("c"))
    grant = take(pool)

    assert heard(pool, grant, said(Event.MONEY_GONE), 0.0)

    assert states(pool, 0.0) == {"a": "spent", "b": "spent", "c": "available"}
    pool.release(grant, 1.0)
    pool.revive(pool.keys["b"], 2.0)
    assert states(pool, 2.0)["a"] == "available"


@pytest.mark.parametrize(("delay", "state"), [(599.0, "spent"), (600.0, "cooling"), (7200.0, "parked")])
def test_money_that_comes_back_at_a_known_hour_is_waited_for(delay: float, state: str) -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), said(Event.MONEY_GONE, delay), 0.0)

    assert state_of(pool, "a", 0.0).state == state
    if state != "spent":
        assert state_of(pool, "a", 0.0).why == "money gone: MONEY_GONE"
        assert rests_until(pool, "a", 0.0) == delay


def test_a_dead_key_is_dead_at_once_and_its_quota_lives() -> None:
    pool = pool_of(KeySpec("a", quota="q"), KeySpec("b", quota="q"))
    grant = take(pool)

    assert heard(pool, grant, DEAD, 0.0)

    assert grant.key.life is Life.DEAD
    assert states(pool, 0.0) == {"a": "dead", "b": "available"}


def test_who_waits_for_the_last_key_is_told_that_it_is_dead() -> None:
    pool = pool_of("a")
    grant = take(pool)
    ticket = line_up(pool)

    heard(pool, grant, DEAD, 0.0)

    assert ticket.state is TicketState.FAILED
    assert isinstance(ticket.error, NoUsableCredential)


def refuse(pool: AdaptivePool, grants: list[Grant], now: float, status: int = 401) -> None:
    for grant in grants:
        heard(pool, grant, said(Event.KEY_DEAD, status=status), now)


def test_three_unrelated_keys_refused_at_once_are_not_to_blame() -> None:
    pool = pool_of(*"abc")
    grants = takes(pool, 3)

    refuse(pool, grants, 1.0)
    for grant in grants:
        pool.release(grant, 1.0)

    assert states(pool, 1.0) == dict.fromkeys("abc", "cooling")
    assert rests_until(pool, "a", 1.0) == 11.0
    assert "the network may be to blame" in pool.notes[-1]
    assert pool.acquire(PLAIN, None, 10.9) is None


def test_keys_that_are_refused_again_after_the_rest_are_believed_to_be_dead() -> None:
    pool = pool_of(*"abc")
    refuse(pool, takes(pool, 3), 1.0)
    for grant in list(pool.leases.values()):
        pool.release(grant, 1.0)

    refuse(pool, takes(pool, 3, now=11.0), 11.5)

    assert {key.life for key in pool.keys.values()} == {Life.DEAD}


def test_a_key_that_works_after_the_rest_is_blamed_anew_only_by_itself() -> None:
    pool = pool_of(*"abcd")
    grants = takes(pool, 4)
    refuse(pool, grants[:3], 1.0)
    for grant in grants:
        pool.release(grant, 1.0)
    again = takes(pool, 4, now=11.0)

    heard(pool, again[0], ok(), 12.0)
    refuse(pool, again[1:2], 12.0)

    assert [key.name for key in pool.keys.values() if key.life is Life.DEAD] == [again[1].key.name]


def test_doubt_begins_anew_once_something_has_gone_well() -> None:
    pool = pool_of(*"abc")
    refuse(pool, takes(pool, 3), 1.0)
    for grant in list(pool.leases.values()):
        pool.release(grant, 1.0)
    again = takes(pool, 3, now=11.0)
    heard(pool, again[0], ok(), 12.0)

    refuse(pool, again, 30.0)

    assert {key.life for key in pool.keys.values()} == {Life.ALIVE}


@pytest.mark.parametrize("event", [Event.OK, Event.LIMITED, Event.CALLER, Event.RAMP, Event.PARKED, Event.NEVER_FITS])
def test_where_something_is_answered_each_refused_key_is_dead(event: Event) -> None:
    pool = pool_of(*"abcd")
    grants = takes(pool, 4)
    refuse(pool, grants[:2], 1.0)

    pool.report(grants[3], said(event, 0.0), 1.5)
    refuse(pool, grants[2:3], 2.0)

    assert [key.life for key in pool.keys.values()] == [Life.DEAD] * 3 + [Life.ALIVE]


def test_keys_that_are_refused_in_different_ways_are_dead() -> None:
    pool = pool_of(*"abc")
    grants = takes(pool, 3)

    refuse(pool, grants[:2], 1.0, status=401)
    refuse(pool, grants[2:], 1.0, status=403)

    assert {key.life for key in pool.keys.values()} == {Life.DEAD}


def test_keys_of_one_quota_that_are_refused_at_once_are_dead() -> None:
    pool = pool_of(*(KeySpec(name, quota="q") for name in "abc"))

    refuse(pool, takes(pool, 3), 1.0)

    assert {key.life for key in pool.keys.values()} == {Life.DEAD}


def test_keys_that_were_refused_long_before_stay_dead() -> None:
    pool = pool_of(*"abcd")
    grants = takes(pool, 4)
    refuse(pool, grants[:1], 0.0)

    refuse(pool, grants[1:], 20.0)

    assert pool.keys["a"].life is Life.DEAD
    assert [pool.keys[name].life for name in "bcd"] == [Life.ALIVE] * 3


def test_a_retired_key_is_not_brought_back_by_doubt() -> None:
    pool = pool_of(*"abc")
    grants = takes(pool, 3)
    refuse(pool, grants[:2], 1.0)
    pool.retire(pool.keys["a"], 1.0)

    refuse(pool, grants[2:], 1.0)

    assert [key.life for key in pool.keys.values()] == [Life.RETIRED, Life.ALIVE, Life.ALIVE]


def test_no_key_is_blamed_however_many_are_refused_at_once() -> None:
    pool = pool_of(*"abcde")

    refuse(pool, takes(pool, 5), 1.0)

    assert {key.life for key in pool.keys.values()} == {Life.ALIVE}


def test_a_doubted_key_is_not_blamed_for_calls_that_were_under_way() -> None:
    pool = pool_of(KeySpec("a", slots=2), "b", "c")
    grants = takes(pool, 4)
    assert [grant.key.name for grant in grants] == ["a", "b", "c", "a"]

    refuse(pool, grants, 1.0)

    assert pool.keys["a"].life is Life.ALIVE


def test_a_call_that_was_under_way_is_not_believed_however_late_it_comes_back() -> None:
    pool = pool_of(*"abcd")
    grants = takes(pool, 4)
    refuse(pool, grants[:3], 1.0)

    assert heard(pool, grants[3], DEAD, 60.0)  # its item waits: no try is spent

    assert pool.keys["d"].life is Life.ALIVE


def test_a_key_whose_call_was_under_way_is_believed_to_be_dead_the_next_time() -> None:
    pool = pool_of(*"abcd")
    grants = takes(pool, 4)
    refuse(pool, grants, 1.0)
    pool.release(grants[3], 1.0)

    refuse(pool, [take(pool, now=11.0)], 11.5)

    assert pool.keys["d"].life is Life.DEAD


def test_keys_whose_calls_were_under_way_are_not_doubted_a_second_time() -> None:
    pool = pool_of(*"abcdef")
    grants = takes(pool, 6)
    refuse(pool, grants, 1.0)
    for grant in grants:
        pool.release(grant, 1.0)
    again = {grant.key.name: grant for grant in takes(pool, 6, now=11.0)}

    refuse(pool, [again[name] for name in "def"], 11.5)

    assert [key.name for key in pool.keys.values() if key.life is Life.DEAD] == ["d", "e", "f"]


def test_once_something_has_gone_well_a_call_that_was_under_way_is_believed() -> None:
    pool = pool_of(*"abcde")
    grants = takes(pool, 5)
    refuse(pool, grants[:3], 1.0)

    heard(pool, grants[3], ok(), 2.0)
    refuse(pool, grants[4:], 3.0)

    assert [key.name for key in pool.keys.values() if key.life is Life.DEAD] == ["e"]


@pytest.mark.parametrize("event", [Event.LIMITED, Event.CALLER, Event.BUSY])
def test_only_what_went_well_ends_the_doubt(event: Event) -> None:
    pool = pool_of(*"abcde")
    grants = takes(pool, 5)
    refuse(pool, grants[:3], 1.0)

    heard(pool, grants[3], said(event, 0.0), 2.0)
    refuse(pool, grants[4:], 3.0)

    assert {key.life for key in pool.keys.values()} == {Life.ALIVE}


def test_doubt_gives_nobody_money() -> None:
    pool = pool_of(KeySpec("a", quota="q"), KeySpec("x", quota="q"), "b", "c")
    grants = {grant.key.name: grant for grant in takes(pool, 4)}
    refuse(pool, [grants["a"]], 1.0)
    heard(pool, grants["x"], said(Event.MONEY_GONE), 1.0)

    refuse(pool, [grants["b"], grants["c"]], 1.0)

    assert pool.keys["x"].quota.spent is not None


def test_a_call_of_which_nobody_knows_how_it_went_does_not_end_the_doubt() -> None:
    pool = pool_of(*"abcde")
    grants = takes(pool, 5)
    refuse(pool, grants[:3], 1.0)

    pool.mark_unknown_outcome(grants[3])
    pool.release(grants[3], 2.0)
    refuse(pool, grants[4:], 3.0)

    assert {key.life for key in pool.keys.values()} == {Life.ALIVE}


def test_a_lease_that_max_lease_ended_does_not_end_the_doubt() -> None:
    pool = pool_of(*"abcde", max_lease=10.0)
    grants = takes(pool, 4)
    last = take(pool, now=1.0)
    refuse(pool, grants[:3], 1.0)

    pool.tick(10.0)
    refuse(pool, [last], 10.5)

    assert {key.life for key in pool.keys.values()} == {Life.ALIVE}


# -- refusals that may have been somebody else's ------------------------------------------------------------------


def suspect(pool: AdaptivePool, event: Event, now: float = 0.0) -> bool:
    """A lease whose worker met with that, of whomever; whether the pool acted on it."""
    grant = take(pool, LARGE, now)
    found = pool.report(grant, said(event, status=401), now, sure=False)
    pool.release(grant, now)
    assert found is not None
    return found.acted


GRAVE = [Event.KEY_DEAD, Event.MONEY_GONE, Event.NOT_ENTITLED]


@pytest.mark.parametrize("event", GRAVE)
def test_a_refusal_that_may_be_of_somebody_else_is_believed_the_third_time_in_a_row(event: Event) -> None:
    pool = pool_of("a")

    assert [suspect(pool, event) for _ in range(3)] == [False, False, True]

    assert pool.acquire(LARGE, None, 0.0) is None


@pytest.mark.parametrize("event", GRAVE)
def test_a_refusal_that_is_surely_of_its_provider_is_believed_at_once(event: Event) -> None:
    pool = pool_of("a")

    assert heard(pool, take(pool, LARGE), said(event, status=401), 0.0)


@pytest.mark.parametrize("word", [ok(), None])
def test_a_success_between_begins_the_count_anew(word: Signal | None) -> None:
    pool = pool_of("a")
    for _ in range(2):
        suspect(pool, Event.KEY_DEAD)
    grant = take(pool)
    if word is not None:
        heard(pool, grant, word, 0.0)
    pool.release(grant, 0.0)

    assert [suspect(pool, Event.KEY_DEAD) for _ in range(3)] == [False, False, True]


def test_a_call_that_ended_in_doubt_is_no_success_between() -> None:
    pool = pool_of("a")
    for _ in range(2):
        suspect(pool, Event.KEY_DEAD)
    grant = take(pool)
    pool.mark_unknown_outcome(grant)
    pool.release(grant, 0.0)

    assert suspect(pool, Event.KEY_DEAD)


def test_each_credential_is_suspected_by_itself() -> None:
    pool = pool_of("a", "b")
    for _ in range(2):
        for grant in takes(pool, 2):
            pool.report(grant, DEAD, 0.0, sure=False)
            pool.release(grant, 0.0)

    assert {key.suspicions for key in pool.keys.values()} == {2}
    assert {key.life for key in pool.keys.values()} == {Life.ALIVE}


@pytest.mark.parametrize(
    ("signal", "provider"),
    [
        (ok(), "default"),
        (ok(provider="anthropic"), "anthropic"),
        (said(Event.BUSY), None),
        (said(Event.BUSY, provider="github"), None),
        (said(Event.CALLER), None),
        (limited(1.0), None),
        (said(Event.BUSY, provider="anthropic"), "anthropic"),
    ],
)
def test_whose_a_quota_is_tells_an_answer_that_went_well_or_one_of_a_known_provider(
    signal: Signal, provider: str | None
) -> None:
    pool = pool_of("a")

    heard(pool, take(pool), signal, 0.0)

    assert pool.keys["a"].quota.provider == provider


# -- nobody's fault -----------------------------------------------------------------------------------------------


def test_a_single_busy_answer_does_nothing() -> None:
    pool = pool_of("a", "b")
    grant = take(pool)

    assert not heard(pool, grant, said(Event.BUSY, 30.0), 0.0)

    assert rests_until(pool, "a", 0.0) is None
    assert pool.keys["a"].quota.learned == {}


def test_where_most_answers_are_busy_the_quotas_of_that_provider_rest() -> None:
    pool = pool_of(*"abc")
    grants = takes(pool, 3)
    heard(pool, grants[2], ok(provider="other"), 0.0)
    acted = [heard(pool, grant, said(Event.BUSY, provider="p"), 0.0) for grant in (*grants[:2], *grants[:2])]

    assert acted == [False, False, True, True]
    assert {name: rests_until(pool, name, 0.0) for name in "abc"} == {"a": 1.0, "b": 1.0, "c": None}
    assert pool.keys["a"].quota.blocks[OUTAGE].evidence == "provider busy: BUSY"


def test_few_busy_answers_pause_nothing_where_only_errors_tell_whose_they_are() -> None:
    """A compatible provider's error has OpenAI's shape; its successes have no mark at all."""
    pool = pool_of("a")

    for call in range(100):
        grant = take(pool, now=float(call))
        acted = heard(pool, grant, ok() if call % 20 else said(Event.BUSY, provider="openai"), float(call))
        pool.release(grant, float(call))
        assert not acted


def test_a_busy_answer_while_its_provider_rests_costs_nobody_a_try_and_one_of_another_provider_does() -> None:
    pool = pool_of(ROOMY, "b")
    grants = [grant for grant in takes(pool, 8) if grant.key.name == "a"]
    other = next(grant for grant in pool.leases.values() if grant.key.name == "b")
    for grant in grants[:3]:
        heard(pool, grant, said(Event.BUSY, provider="p"), 0.0)

    assert heard(pool, grants[3], said(Event.BUSY, provider="p"), 0.5)
    assert not heard(pool, other, said(Event.BUSY, provider="q"), 0.5)

    assert rests_until(pool, "b", 0.5) is None


def of_the_last(pool: AdaptivePool, provider: str) -> list[bool]:
    """Whether the last calls to it were answered."""
    return list(pool.outages._answers[provider])


def test_a_success_that_was_reported_counts_once() -> None:
    pool = pool_of(ROOMY)
    first, second = takes(pool, 2)
    heard(pool, first, said(Event.BUSY, provider="p"), 0.0)

    heard(pool, second, ok(provider="p"), 0.0)
    pool.release(second, 0.0)

    assert of_the_last(pool, "p") == [False, True]


def test_a_success_that_nobody_reported_counts_once() -> None:
    pool = pool_of(ROOMY)
    first, second = takes(pool, 2)
    heard(pool, first, said(Event.BUSY, provider="p"), 0.0)

    pool.release(second, 0.0)

    assert of_the_last(pool, "p") == [False, True]


def test_a_call_of_which_nobody_knows_how_it_went_says_nothing_of_the_weather() -> None:
    pool = pool_of(ROOMY, max_lease=10.0)
    first, second, _third = takes(pool, 3)
    heard(pool, first, said(Event.BUSY, provider="p"), 0.0)

    pool.mark_unknown_outcome(second)
    pool.release(second, 0.0)
    pool.tick(10.0)

    assert of_the_last(pool, "p") == [False]


def test_rests_of_a_busy_provider_double() -> None:
    pool = pool_of("a")
    now, rests = 0.0, []
    for n in range(10):
        grant = take(pool, now=now)
        heard(pool, grant, said(Event.BUSY, provider="p"), now)
        pool.release(grant, now)
        until = rests_until(pool, "a", now)
        if until is not None:
            rests.append(until - now)
            now = until
        assert n < 2 or until is not None

    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_after_a_busy_provider_has_rested_one_goes_first() -> None:
    pool = pool_of(ROOMY)
    for grant in takes(pool, 3):
        heard(pool, grant, said(Event.BUSY, provider="p"), 0.0)

    assert len([1 for _ in range(3) if pool.acquire(PLAIN, None, 1.0) is not None]) == 1


def test_a_network_that_fails_for_unrelated_quotas_lets_all_rest() -> None:
    pool = pool_of(*"abcd")
    grants = takes(pool, 4)

    acted = [heard(pool, grant, said(Event.NETWORK), 0.0) for grant in grants]

    assert acted == [False, False, True, True]
    assert {rests_until(pool, name, 0.0) for name in "abcd"} == {1.0}
    assert pool.keys["a"].quota.blocks[OUTAGE].evidence == "no answer from several at once: NETWORK"


def test_where_there_is_one_quota_three_failures_of_the_network_let_it_rest() -> None:
    pool = pool_of(ROOMY)

    acted = [heard(pool, grant, said(Event.NETWORK), 0.0) for grant in takes(pool, 3)]

    assert acted == [False, False, True]


def test_callers_that_gave_up_waiting_let_nothing_rest_and_are_no_evidence() -> None:
    pool = pool_of(*"abcd")
    grants = takes(pool, 4)
    impatient = replace(said(Event.NETWORK), gave_up=True)

    acted = [heard(pool, grant, impatient, 0.0) for grant in grants * 3]

    assert not any(acted)
    assert pool.outages.has_no_failures
    assert {rests_until(pool, name, 0.0) for name in "abcd"} == {None}


def test_a_caller_that_gave_up_while_all_rest_spends_no_try() -> None:
    pool = pool_of(*"abcd")
    *others, last = takes(pool, 4)
    for grant in others:
        heard(pool, grant, said(Event.NETWORK), 0.0)

    assert heard(pool, last, replace(said(Event.NETWORK), gave_up=True), 0.5)


def test_a_network_that_fails_for_one_of_many_touches_nothing() -> None:
    pool = pool_of(ROOMY, "b", "c")
    grants = [grant for grant in takes(pool, 20) if grant.key.name == "a"]

    assert not any(heard(pool, grant, said(Event.NETWORK), 0.0) for grant in grants)


def test_traffic_that_grew_too_fast_is_slowed_to_half() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), limited(), 0.0)
    pace = pace_of(pool)
    pace.rate, pace.searching_since = 8.0, None

    assert heard(pool, take(pool, now=10.0), said(Event.RAMP), 10.0)

    assert pace.rate == pytest.approx(4.0, rel=0.02)
    assert rests_until(pool, "a", 10.0) == 11.0
    text = f"{pace.rate * 60:.3g} requests a minute: traffic grew too fast (RAMP)"
    assert pool.keys["a"].quota.history[-1] == (10.0, text)


def test_traffic_that_grew_too_fast_rests_as_long_as_was_told() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool), said(Event.RAMP, 25.0), 0.0)

    assert rests_until(pool, "a", 0.0) == 25.0


def test_the_first_ramp_halves_what_was_started_of_late() -> None:
    pool = pool_of(ROOMY)
    grants = [take(pool, now=n / 10) for n in range(90)]

    heard(pool, grants[-1], said(Event.RAMP), 9.0)

    assert pace_of(pool).rate == pytest.approx(5.0, rel=0.2)


def test_a_burst_of_ramps_halves_once() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), limited(), 0.0)
    pace = pace_of(pool)
    pace.rate, pace.searching_since = 64.0, None
    grants = takes(pool, 5, now=10.0)

    for grant in grants:
        heard(pool, grant, said(Event.RAMP), 10.5)

    assert pace.rate == pytest.approx(32.0, rel=0.02)
    assert sum("traffic grew too fast" in what for _, what in pool.keys["a"].quota.history) == 1


def test_ramps_of_calls_that_began_before_the_first_was_heard_of_halve_once() -> None:
    pool = pool_of(ROOMY)
    grants = [take(pool, now=n / 10) for n in range(90)]

    for grant in grants[-20:]:
        heard(pool, grant, said(Event.RAMP), 9.0)

    assert pace_of(pool).rate == pytest.approx(5.0, rel=0.2)


def test_a_ramp_of_one_model_slows_that_alone() -> None:
    pool = pool_of(ROOMY)

    heard(pool, take(pool, LARGE), Signal(Event.RAMP, 5.0, scoped=True), 0.0)

    assert list(pool.keys["a"].quota.learned) == ["pace large"]
    assert pool.acquire(LARGE, None, 1.0) is None
    assert pool.acquire(SMALL, None, 1.0) is not None


# -- models that a credential may not use -------------------------------------------------------------------------


def test_a_model_that_a_credential_may_not_use_bars_that_pair_alone() -> None:
    pool = pool_of(KeySpec("a", slots=9, quota="q"), KeySpec("b", slots=9, quota="q"))
    grant = take(pool, LARGE)
    assert grant.key.name == "a"

    assert heard(pool, grant, said(Event.NOT_ENTITLED), 0.0)

    assert {take(pool, LARGE).key.name for _ in range(5)} == {"b"}
    assert {take(pool, SMALL).key.name for _ in range(5)} == {"a", "b"}
    assert "not for large (NOT_ENTITLED)" in state_of(pool, "a", 0.0).why


def test_who_waits_for_a_model_that_no_credential_may_use_is_told() -> None:
    pool = pool_of("a", "b")
    grants = [take(pool, LARGE), take(pool, LARGE)]
    waiting, other = line_up(pool, LARGE), line_up(pool, SMALL)

    for grant in grants:
        heard(pool, grant, said(Event.NOT_ENTITLED), 0.0)

    assert (waiting.state, other.state) == (TicketState.FAILED, TicketState.WAITING)
    assert "of 2 that could serve for model large, 2 not entitled" in str(waiting.error)
    assert line_up(pool, LARGE).state is TicketState.FAILED


def test_who_waits_for_a_model_goes_to_the_credential_that_may_use_it() -> None:
    pool = pool_of("a", "b")
    first, second = take(pool, LARGE), take(pool, LARGE)
    waiting = line_up(pool, LARGE)
    heard(pool, first, said(Event.NOT_ENTITLED), 0.0)

    pool.release(first, 1.0)
    assert waiting.state is TicketState.WAITING
    pool.release(second, 2.0)

    assert waiting.grant is not None
    assert waiting.grant.key.name == "b"


def test_who_waits_for_a_model_does_not_wait_for_a_credential_that_may_not_use_it() -> None:
    pool = pool_of("a", "b")
    first, second = take(pool, LARGE), take(pool, LARGE)
    heard(pool, first, said(Event.NOT_ENTITLED), 0.0)
    assert pool.acquire(LARGE, None, 0.0) is None  # all are leased
    for grant, until in ((first, 10.0), (second, 30.0)):
        pool.close_quota(grant.key, until, model=None, evidence="", now=0.0)
        pool.release(grant, 0.0)

    waiting = line_up(pool, LARGE, 1.0)
    assert pool.next_at == 30.0
    pool.tick(30.0)

    assert waiting.grant is not None
    assert waiting.grant.key.name == "b"


def test_an_affinity_does_not_lead_to_a_credential_that_may_not_use_the_model() -> None:
    pool = pool_of(KeySpec("a", slots=9), KeySpec("b", slots=9))
    wanted = ask(model="large")
    wanted.affinity = "talk"
    grant = take(pool, wanted)
    heard(pool, grant, said(Event.NOT_ENTITLED), 0.0)

    assert take(pool, wanted).key is not grant.key


def test_without_a_model_nobody_knows_what_to_bar() -> None:
    pool = pool_of("a")
    grant = take(pool)

    assert not heard(pool, grant, said(Event.NOT_ENTITLED), 0.0)
    pool.release(grant, 0.0)

    assert pool.acquire(LARGE, None, 0.0) is not None


@pytest.mark.parametrize("act", [AdaptivePool.clear, AdaptivePool.revive])
def test_clearing_and_reviving_let_it_be_tried_again(act) -> None:  # type: ignore[no-untyped-def]
    pool = pool_of("a")
    grant = take(pool, LARGE)
    heard(pool, grant, said(Event.NOT_ENTITLED), 0.0)
    pool.release(grant, 0.0)

    act(pool, pool.keys["a"], 1.0)

    assert pool.acquire(LARGE, None, 1.0) is not None


# -- the caller's own ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [Event.CALLER, Event.NEVER_FITS, Event.OK])
def test_what_is_the_requests_own_fault_touches_nothing(event: Event) -> None:
    pool = pool_of("a", "b")
    before = build_report(pool, 0.0)
    grant = take(pool)

    assert not heard(pool, grant, said(event, 60.0), 0.0)
    pool.release(grant, 0.0)

    assert build_report(pool, 0.0) == before
    assert pool.outages.has_no_failures
    assert not pool._memory.troubled


# -- who waits ----------------------------------------------------------------------------------------------------


def test_who_waits_is_served_by_a_limit_that_turns_out_larger() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), ok(requests_left(1.0)), 0.0)
    grant = take(pool, now=1.0)
    waiting = line_up(pool, now=1.0)
    assert pool.waiting == 1

    heard(pool, grant, ok(requests_left(50.0)), 2.0)

    assert waiting.state is TicketState.GRANTED


def test_who_waits_for_another_quota_is_served_by_a_limit_that_turns_out_larger() -> None:
    pool = pool_of(ROOMY, "b")
    first, other = takes(pool, 2)
    heard(pool, first, ok(requests_left(0.0, window=420.0)), 0.0)
    heard(pool, other, limited(0.0), 0.0)
    pool.release(other, 0.0)
    grant = next(grant for grant in takes(pool, 2, now=8.0) if grant.key.name == "a")
    waiting = line_up(pool, now=8.0)
    assert 14.0 <= pool.next_at <= 15.0  # on a there is one each seven seconds, as far as is known

    heard(pool, grant, ok(requests_left(50.0, window=420.0)), 9.0)

    assert waiting.state is TicketState.GRANTED or pool.next_at < 11.0


def test_who_waits_for_a_slot_is_looked_at_when_a_limit_appears() -> None:
    pool = pool_of(KeySpec("a", slots=2))
    first, second = takes(pool, 2)
    waiting = [line_up(pool, name=name) for name in "xy"]

    heard(pool, first, limited(None, requests_left(0.0)), 1.0)
    pool.release(first, 1.0)
    pool.release(second, 1.0)
    served = []
    while any(ticket.state is TicketState.WAITING for ticket in waiting):
        served.append(pool.next_at)
        pool.tick(pool.next_at)

    assert served == pytest.approx([2.0 + SPARE, 3.0 + SPARE])  # one a second, and two were under way


def test_who_waits_goes_to_another_quota_when_theirs_rests() -> None:
    pool = pool_of("a", "b")
    first, second = takes(pool, 2)
    waiting = line_up(pool)
    heard(pool, first, limited(30.0), 0.0)

    pool.release(first, 0.0)
    assert waiting.state is TicketState.WAITING
    assert pool.next_at == 30.0
    pool.release(second, 1.0)

    assert waiting.grant is not None
    assert waiting.grant.key is second.key


def test_who_names_no_cost_does_not_wait_for_a_limit_on_tokens_that_is_set_aside() -> None:
    pool = pool_of(ROOMY, "b")
    first, other = takes(pool, 2)
    heard(pool, first, ok(Reading("tokens", 60.0, 60.0, window=60.0)), 0.0)
    heard(pool, other, limited(30.0), 0.0)
    pool.release(other, 0.0)
    take(pool, ask(tokens=600))  # more than fits: it is paid for in ten minutes
    assert pool.acquire(ask(tokens=8), None, 0.0) is None

    assert line_up(pool).state is TicketState.GRANTED


def test_who_waits_is_looked_at_when_a_ramp_changes_the_pace() -> None:
    pool = pool_of(ROOMY, "b")
    first, other = takes(pool, 2)
    heard(pool, other, limited(100.0), 0.0)
    pool.release(other, 0.0)
    heard(pool, first, limited(), 0.0)
    pace = pace_of(pool)
    pace.rate, pace.searching_since, pace.level = 0.001, None, -2.0
    line_up(pool, now=5.0)
    assert pool.next_at == 100.0

    heard(pool, first, said(Event.RAMP), 5.0)


def test_who_takes_nothing_of_a_learned_limit_passes_one_that_waits_for_it() -> None:
    pool = pool_of(ROOMY)
    heard(pool, take(pool), ok(Reading("tokens", 6000.0, 6000.0, window=60.0)), 0.0)
    take(pool, ask(tokens=6000))
    assert line_up(pool, ask(tokens=4000), name="first").state is TicketState.WAITING

    assert line_up(pool, name="second").state is TicketState.GRANTED


# -- what is remembered -------------------------------------------------------------------------------------------


def test_nothing_is_remembered_of_leases_that_have_ended() -> None:
    pool = pool_of(ROOMY, KeySpec("b", auto=True))
    for n in range(200):
        grant = take(pool, now=100.0 * n)
        pool.report(grant, said(list(Event)[n % 6], 0.0, provider="p"), 100.0 * n)
        pool.release(grant, 100.0 * n)
        for key in pool.keys.values():
            pool.clear(key, 100.0 * n)

    assert (pool._memory.troubled, pool._memory.well) == ({}, set())
    width = pool.keys["b"].quota.concurrency
    assert width is not None
    assert not width._in_flight


def test_nothing_is_remembered_of_leases_that_went_straight_to_the_next_in_line() -> None:
    pool = pool_of("a")
    grant = take(pool)
    for n in range(50):
        ticket = line_up(pool, now=float(n))
        pool.report(grant, said(Event.NETWORK), 20.0 * n)
        pool.release(grant, 20.0 * n)
        assert ticket.grant is not None
        grant = ticket.grant

    assert len(pool._memory.troubled) <= 1
