"""What one key found out of its provider is not paid for again by each other key."""

from __future__ import annotations

from functools import partial

import pytest

from agentos import Limit
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.learning.common_evidence import CommonEvidence
from agentos.pool.core.records import KeySpec
from agentos.providers.signal import Event
from agentos.simulator.limiters import FixedWindow, Limiter, LimitLevel, SlidingLog, TokenBucket

from ..driven_provider import Headers, drive, durations, silent
from ..signals_for_pool import ok, said, take, told_of

NAMES = [f"key-{number}" for number in range(8)]


def pool_of_eight(*limits: Limit) -> AdaptivePool:
    pool = AdaptivePool()
    for name in NAMES:
        pool.add(KeySpec(name, auto=True, limits=limits), 0.0)
    return pool


def windows(length: float, amount: int = 10) -> dict[str, Limiter]:
    """A window for each key, of which some seconds have passed already."""
    return {name: FixedWindow(amount, length, 0.11 * number * length) for number, name in enumerate(NAMES)}


def test_one_key_tries_if_reported_limits_are_true_and_not_each_of_eight() -> None:
    pool = pool_of_eight()

    seen = drive(pool, {name: FixedWindow(10, 600) for name in NAMES}, until=590.0, style=durations)

    assert len(seen.admitted) == 80
    assert len(seen.refused) <= 8


def test_all_keys_try_at_once_when_the_call_of_one_was_admitted() -> None:
    pool = pool_of_eight()
    generous = {name: FixedWindow(10, 1) for name in NAMES}

    def wrong(level: LimitLevel, _wait: float | None, _now: float) -> Headers:
        return {"ratelimit": f"limit=10, remaining={int(level.remaining)}, reset=600"}

    seen = drive(pool, generous, until=30.0, style=wrong)

    assert seen.admitted_between(15.0, 30.0) > 0.8 * 15 * 80


def test_a_window_is_as_long_as_the_longest_reset_that_any_key_was_told() -> None:
    pool = pool_of_eight()

    drive(pool, windows(60.0), until=1.0, style=durations)

    assert {told_of(pool, name).limit.per for name in NAMES} == {60.0}


def test_what_others_leave_of_a_window_is_confirmed_by_other_keys() -> None:
    limit = Limit("requests", 6, per=10, window="sliding")
    refused = []
    for count in (1, 8):
        pool = AdaptivePool()
        for name in NAMES[:count]:
            pool.add(KeySpec(name, auto=True, limits=(limit,)), 0.0)
        limiters = {name: SlidingLog(6, 10) for name in NAMES[:count]}
        seen = drive(pool, limiters, until=200.0, style=silent, other_gap=5.0)
        refused.append(len(seen.refused) / count)

    assert refused[1] < 0.8 * refused[0]


def test_a_bucket_of_a_day_that_another_client_uses_is_not_refused_at_every_third_refill() -> None:
    refill = 86_400 / 378
    buckets = {name: TokenBucket(378, 86_400) for name in NAMES}

    seen = drive(pool_of_eight(), buckets, until=100 * refill, style=durations, other_gap=3 * refill)

    assert len(seen.refused) < 80  # of 264 without an estimate of what the other client leaves


def test_evidence_is_shared_by_the_quotas_of_one_provider_only() -> None:
    pool = AdaptivePool()
    for name, provider in (("a", "openai"), ("b", "openai"), ("c", "anthropic")):
        pool.add(KeySpec(name), 0.0)
        pool.report(take(pool), ok(provider=provider), 0.0)
    common = [pool.keys[name].quota.common for name in "abc"]

    assert common[0] is common[1]
    assert common[0] is not common[2]


class TestEvidence:
    def test_a_share_confirms_one_of_another_limit_but_not_of_the_same(self) -> None:
        common = CommonEvidence()

        assert not common.confirms_share("a", 0.66, 0.05)
        assert not common.confirms_share("a", 0.67, 0.05)
        assert common.confirms_share("b", 0.66, 0.05)
        assert not common.confirms_share("c", 0.3, 0.05)

    def test_refused_calls_count_when_other_limits_showed_it(self) -> None:
        common = CommonEvidence()
        common.note_echoes("a", 2)
        common.note_echoes("b", 2)

        assert common.counts_refused("c")
        assert not common.counts_refused("a")

        common.note_echoes("d", -4)
        assert not common.counts_refused("c")

    @pytest.mark.parametrize(
        ("kinds", "expected"), [([True], False), ([True] * 2, True), ([True] * 3 + [False], False)]
    )
    def test_windows_are_known_by_two_of_them_and_no_bucket(self, kinds: list[bool], expected: bool) -> None:
        common = CommonEvidence()
        for kind in kinds:
            common.note_window(kind)

        assert common.has_windows is expected

    def test_each_refused_try_delays_the_next_one_of_any_key_and_an_admitted_one_ends_that(self) -> None:
        common = CommonEvidence()
        at = partial(common.probe_at, 100.0)

        common.probe_started(101.0)
        on_its_way = at()
        common.probe_ended(1.0)
        once = at()
        common.probe_started(104.0)
        common.probe_ended(4.0)
        twice, proven = at(), common.reports_are_true
        common.probe_started(116.0)
        common.probe_ended(16.0, admitted=True)

        assert (on_its_way, once, twice, at()) == (101.25, 104.0, 116.0, 116.0)
        assert (proven, common.reports_are_true, common.opened) == (True, False, 1)


def test_what_answers_without_a_name_have_shown_is_about_the_provider_that_an_error_names() -> None:
    pool = pool_of_eight()
    grants = {name: take(pool) for name in NAMES[:2]}
    for grant in grants.values():
        pool.report(grant, ok(), 0.1)
    shown = grants[NAMES[0]].key.quota.common

    pool.report(grants[NAMES[0]], said(Event.BUSY, provider="openai"), 0.2)

    assert all(grant.key.quota.common is shown for grant in grants.values())


def test_two_providers_that_errors_name_share_nothing() -> None:
    pool = pool_of_eight()
    one, other = take(pool), take(pool)
    for grant in (one, other):
        pool.report(grant, ok(), 0.1)

    pool.report(one, said(Event.BUSY, provider="openai"), 0.2)
    pool.report(other, said(Event.BUSY, provider="anthropic"), 0.2)

    assert one.key.quota.common is not other.key.quota.common
