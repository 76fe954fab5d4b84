"""A limit on tokens that nobody states is recognised, estimated and used, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import pytest

from agentos.pool.core.cost import parse_used, request_cost
from agentos.pool.core.forecast import collect_capacity, forecast_completion
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.learning.adaptive_rate import AdaptiveRate
from agentos.pool.core.records import Grant, KeySpec, LeaseRequest
from agentos.providers.signal import Event, Signal
from agentos.runs.core.records import Attempt, Item
from agentos.simulator import Latency, ProviderPlan, equal_keys
from agentos.simulator.rules import Admitted, Refused
from agentos.simulator.virtual import Finished, VirtualRun, Work, build_key_specs

from ..signals_for_pool import ask, limited, ok, pool_of, take

KEYS, TOKENS_A_MINUTE, SECONDS, USUAL = 3, 60_000, 300, 1_000

Sizes = Callable[[random.Random], int]


def alike(_luck: random.Random) -> int:
    return USUAL


def uneven(luck: random.Random) -> int:
    """From a tenth to ten times as many as usual."""
    return min(12_000, max(1, round(USUAL * luck.lognormvariate(-0.5, 1.0))))


def a_few_large(luck: random.Random) -> int:
    return USUAL // 10 if luck.random() < 0.9 else 9 * USUAL


class Unnamed(VirtualRun):
    """Against a provider whose refusals do not say what they are about."""

    def _signal(self, *facts: object) -> Signal:
        return replace(super()._signal(*facts), dimensions=())  # type: ignore[arg-type]


class ItemLeases(VirtualRun):
    """With leases of items: a call's cost is known when it is made, and a refused call is made again by its lease."""

    def _begin(self, item: Item, grant: Grant) -> None:
        attempt = self.board.begin(item, grant, self.now)
        assert attempt is not None
        self._make_call(attempt, grant, self.pool.plan_call(grant, self._build_request(item), self.now))

    def _make_call(self, attempt: Attempt, grant: Grant, wait: float) -> None:
        def arrive() -> None:
            answer = self.provider.arrive(self._secrets[grant.key.name], attempt.item.payload.tokens, self.now)
            self._at(self.now + answer.latency, lambda: self._come_back(attempt, grant, answer))

        self._at(self.now + wait, arrive)

    def _come_back(self, attempt: Attempt, grant: Grant, answer: Admitted | Refused) -> None:
        if isinstance(answer, Admitted):
            super()._come_back(attempt, grant, answer)
            return
        feedback = self.pool.report(grant, self._signal(answer, None), self.now)
        assert feedback is not None
        self._granted(feedback.to_wake)
        self._make_call(attempt, grant, self.pool.plan_call(grant, self._build_request(attempt.item), self.now))

    def _build_request(self, item: Item) -> LeaseRequest:
        return LeaseRequest(request_cost({"tokens": float(item.payload.tokens)}))


def plan_of(seed: int, dialect: str, **limits: float) -> ProviderPlan:
    return equal_keys(
        KEYS,
        dialect=dialect,  # type: ignore[arg-type]
        seed=seed,
        latency=Latency(1.0, 0.3),
        rejection_latency=0.02,
        **limits,  # type: ignore[arg-type]
    )


def drained(plan: ProviderPlan, sizes: Sizes, seed: int, kind: type[VirtualRun] = VirtualRun) -> tuple[Finished, float]:
    """Drain five minutes of work; return also the efficiency, by the tokens that must flow in."""
    luck = random.Random(seed)
    work, total = [], 0
    while total < KEYS * TOKENS_A_MINUTE / 60 * SECONDS:
        size = sizes(luck)
        total += size
        work.append(Work(size, (("tokens", float(size)),)))
    held = KEYS * plan.quotas[0].tokens_at_once
    found = kind(plan, work, specs=build_key_specs(plan), parallel=200, seed=seed).run(until=4 * SECONDS)
    return found, (total - held) / (KEYS * TOKENS_A_MINUTE / 60) / found.seconds


@pytest.mark.parametrize("kind", [VirtualRun, Unnamed])
@pytest.mark.parametrize("dialect", ["retry-after", "none"])
@pytest.mark.parametrize("sizes", [alike, uneven, a_few_large])
def test_an_unknown_limit_on_tokens_is_used_and_seldom_exceeded(
    kind: type[VirtualRun], dialect: str, sizes: Sizes
) -> None:
    plan = plan_of(7, dialect, tpm=TOKENS_A_MINUTE)

    found, efficiency = drained(plan, sizes, 7, kind)

    assert (found.unfinished, found.failed) == (0, 0)
    assert found.rejected <= 0.05 * found.done
    assert efficiency >= 0.9


@pytest.mark.parametrize("kind", [VirtualRun, ItemLeases])
@pytest.mark.parametrize("dialect", ["full", "retry-after", "none"])
def test_a_short_run_under_an_unknown_limit_on_tokens_is_seldom_refused(kind: type[VirtualRun], dialect: str) -> None:
    found = [_drain_short_run(seed, dialect, kind) for seed in range(20, 23)]

    assert sum(rejected for rejected, _, _ in found) <= 0.04 * sum(calls for _, calls, _ in found)
    assert fmean(efficiency for _, _, efficiency in found) >= 0.89


def _drain_short_run(seed: int, dialect: str, kind: type[VirtualRun]) -> tuple[int, int, float]:
    """Drain 42 s of work over buckets that hold a quarter of a minute; return refusals, calls and the efficiency."""
    plan = replace(
        plan_of(seed, dialect, tpm=TOKENS_A_MINUTE, token_burst=TOKENS_A_MINUTE // 4), latency=Latency(0.5, 0.3)
    )
    luck, work, flows_in = random.Random(seed), [], -KEYS * 15_000.0
    while flows_in < KEYS * 1_000 * 42:
        size = max(1, uneven(luck) // 2)
        flows_in += size
        work.append(Work(size, () if kind is ItemLeases else (("tokens", float(size)),)))
    run = kind(plan, work, specs=build_key_specs(plan), parallel=200, seed=seed)
    found = run.run(until=4 * SECONDS)
    assert (found.unfinished, found.failed) == (0, 0)
    return found.rejected, found.statistics.total.calls, flows_in / (KEYS * 1_000) / found.seconds


@pytest.mark.parametrize("sizes", [alike, uneven, a_few_large])
def test_a_bucket_that_holds_less_than_its_reported_limit_is_used_to_the_full(sizes: Sizes) -> None:
    plan = plan_of(8, "full", tpm=TOKENS_A_MINUTE, token_burst=15_000)

    found, efficiency = drained(plan, sizes, 8)

    assert found.rejected <= 0.01 * found.done
    assert efficiency >= 0.95


def test_a_limit_on_requests_is_hardly_ever_taken_for_one_on_tokens() -> None:
    """The test that tells them apart is wrong once in a while, which costs nothing."""
    mistaken = 0
    for seed in range(9, 14):
        luck = random.Random(seed)
        plan = plan_of(seed, "none", rpm=60, request_burst=15)
        work = [Work(size := uneven(luck), (("tokens", float(size)),)) for _ in range(945)]
        run = Unnamed(plan, work, specs=build_key_specs(plan), parallel=200, seed=seed)

        found = run.run(until=4 * SECONDS)

        assert 300 / found.seconds >= 0.95
        mistaken += {name for key in run.pool.keys.values() for name in key.quota.learned} != {"pace"}
    assert mistaken <= 2


# -- step by step --------------------------------------------------------------------------------------------------


def of_tokens(delay: float | None = None) -> Signal:
    return Signal(Event.LIMITED, delay, dimensions=("tokens",), evidence=("429",), status=429)


def key_with_costs(*costs: float) -> AdaptivePool:
    """A pool of one key, on which calls of these costs have succeeded."""
    pool = pool_of(KeySpec("a", slots=99))
    for cost in costs:
        call(pool, cost, 0.0)
    return pool


def call(pool: AdaptivePool, cost: float, now: float, used: float | None = None) -> Grant:
    grant = take(pool, ask(tokens=cost), now)
    pool.report(grant, ok(), now)
    pool.settle(grant, parse_used("used", {"tokens": cost if used is None else used}), now)
    pool.release(grant, now)
    return grant


def refuse(pool: AdaptivePool, cost: float, now: float, signal: Signal) -> None:
    grant = take(pool, ask(tokens=cost), now)
    pool.report(grant, signal, now)
    pool.release(grant, now)


def estimate(pool: AdaptivePool) -> AdaptiveRate:
    (found,) = pool.keys["a"].quota.learned.values()
    assert isinstance(found, AdaptiveRate)
    return found


def test_a_refusal_that_names_tokens_starts_an_estimate_of_tokens() -> None:
    pool = key_with_costs(100.0, 300.0)

    refuse(pool, 300.0, 0.0, of_tokens())

    assert estimate(pool).limit.dimension == "tokens"
    assert "tokens" in str(estimate(pool))
    assert estimate(pool).unit == 200.0


def test_the_search_begins_at_half_the_rate_that_the_admitted_calls_make_likely() -> None:
    pool = key_with_costs(*[100.0] * 200)

    refuse(pool, 100.0, 5.0, of_tokens())

    assert estimate(pool).rate * estimate(pool).unit == pytest.approx(20_000 / 25 / 2, rel=0.02)


def test_a_refused_call_is_made_again_when_the_estimate_allows_it_and_others_wait_behind_it() -> None:
    pool = key_with_costs(*[100.0] * 8)
    grant = take(pool, ask(), 0.0)
    pool.report(grant, of_tokens(), 0.0)
    estimate(pool).begin_at(1.0, 0.0)  # a hundred tokens a second, and one usual call behind

    wait = pool.plan_call(grant, ask(tokens=500), 0.0)

    assert wait == pytest.approx(6.0)
    assert pool.acquire(ask(tokens=100), "other", 6.5) is None
    assert pool.acquire(ask(tokens=100), "other", 7.0) is not None


def test_a_call_that_cannot_start_in_time_takes_nothing() -> None:
    pool = key_with_costs(*[100.0] * 8)
    grant = take(pool, ask(), 0.0)
    pool.report(grant, of_tokens(), 0.0)
    estimate(pool).begin_at(1.0, 0.0)

    assert pool.plan_call(grant, ask(tokens=500), 0.0, within=3.0) >= 3.0

    assert estimate(pool).taken == 0.0


def test_the_refusal_of_a_call_that_was_made_again_measures_the_rate() -> None:
    pool = key_with_costs(*[100.0] * 8)
    grant = take(pool, ask(), 0.0)
    pool.report(grant, of_tokens(), 0.0)
    estimate(pool).begin_at(1.0, 0.0)
    wait = pool.plan_call(grant, ask(tokens=1_000), 0.0)

    pool.report(grant, of_tokens(), wait)

    assert estimate(pool).mark == pytest.approx(10.0)
    assert estimate(pool).left(wait) < 0


def test_a_lease_takes_what_its_call_costs_instead_of_a_guess() -> None:
    pool = key_with_costs(*[100.0] * 8)
    refuse(pool, 100.0, 0.0, of_tokens())
    estimate(pool).begin_at(1.0, 0.0)
    grant = take(pool, ask(), 60.0)
    before = estimate(pool).left(60.0)

    assert pool.plan_call(grant, ask(tokens=40), 60.0) == 0.0

    assert estimate(pool).left(60.0) == pytest.approx(before + 60.0)


def test_a_refusal_that_is_too_early_to_measure_still_bounds_the_rate() -> None:
    pool = key_with_costs(*[100.0] * 8)
    refuse(pool, 100.0, 0.0, of_tokens())
    estimate(pool).begin_at(50.0, 1.0)  # five thousand tokens a second
    call(pool, 100.0, 1.5)

    refuse(pool, 400.0, 2.0, of_tokens())

    assert estimate(pool).rate == pytest.approx(5.0)


def test_without_any_known_cost_a_refusal_counts_requests() -> None:
    pool = key_with_costs()

    refuse(pool, 300.0, 0.0, of_tokens())

    assert estimate(pool).limit.dimension == "requests"


def test_the_estimate_of_requests_is_dropped_once_tokens_are_known_to_be_the_cause() -> None:
    pool = key_with_costs()
    refuse(pool, 300.0, 0.0, of_tokens())
    call(pool, 300.0, 10.0)

    refuse(pool, 300.0, 20.0, of_tokens())

    assert estimate(pool).limit.dimension == "tokens"


def test_refusals_of_large_calls_point_at_tokens_and_those_of_usual_ones_do_not() -> None:
    large, usual = key_with_costs(*[100.0] * 60), key_with_costs(*[100.0] * 60)

    for step in range(4):
        refuse(large, 400.0, 100.0 * step, limited(1.0))
        refuse(usual, 100.0, 100.0 * step, limited(1.0))

    assert estimate(large).limit.dimension == "tokens"
    assert estimate(usual).limit.dimension == "requests"


def test_a_large_call_takes_more_of_the_estimate_and_what_it_did_not_use_comes_back() -> None:
    pool = key_with_costs(*[100.0] * 8)
    refuse(pool, 100.0, 0.0, of_tokens())
    rate = estimate(pool)
    rate.begin_at(1.0, 0.0)  # a hundred tokens a second
    before = rate.left(60.0)

    call(pool, 400.0, 60.0, used=150.0)

    assert rate.left(60.0) == pytest.approx(before - 150.0)


def test_calls_that_started_before_the_estimate_do_not_count_as_admitted_by_it() -> None:
    pool = key_with_costs(*[100.0] * 8)
    early = take(pool, ask(tokens=100), 0.0)
    refuse(pool, 100.0, 0.0, of_tokens())

    pool.settle(early, parse_used("used", {"tokens": 100.0}), 1.0)

    assert estimate(pool).taken == 0.0


def test_more_tokens_than_the_estimate_allows_refute_it() -> None:
    pool = key_with_costs(*[100.0] * 8)
    refuse(pool, 100.0, 0.0, of_tokens())
    rate = estimate(pool)
    rate.begin_at(0.1, 0.0)  # ten tokens a second
    grant = take(pool, ask(tokens=100), 200.0)

    pool.settle(grant, parse_used("used", {"tokens": 50_000.0}), 201.0)

    assert rate.rate > 0.1
    assert not rate.is_refuted(201.0)


def test_usage_that_is_reported_twice_counts_once_as_evidence() -> None:
    pool = key_with_costs(*[100.0] * 8)
    refuse(pool, 100.0, 0.0, of_tokens())
    estimate(pool).begin_at(1.0, 0.0)
    grant = take(pool, ask(tokens=100), 60.0)

    for used in (80.0, 90.0):
        pool.settle(grant, parse_used("used", {"tokens": used}), 61.0)

    assert estimate(pool).admitted == pytest.approx(0.9)


def test_a_forecast_counts_what_calls_cost_on_average_of_an_estimated_limit() -> None:
    pool = key_with_costs(*[100.0] * 9, 1_000.0)
    refuse(pool, 100.0, 0.0, of_tokens())
    estimate(pool).begin_at(1.0, 0.0)  # a usual call a second

    capacity = collect_capacity(pool.keys.values(), ask(), duration=0.0, now=1.0, wall=0.0)

    assert forecast_completion(capacity, 1_000, None).seconds == pytest.approx(1_000, rel=0.01)
