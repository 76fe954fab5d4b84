"""The bound is true (no client beats it) and tight (an omniscient client reaches it)."""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

import pytest

from agentos.simulator import (
    Admitted,
    Bound,
    KeyPlan,
    Latency,
    Provider,
    ProviderPlan,
    QuotaPlan,
    equal_keys,
    lower_bound,
    organisations,
)

EXACT = Latency(0.5, 0.0)


def greedy(plan: ProviderPlan, calls: int, tokens: int = 1, parallel: int | None = None) -> tuple[float, list[float]]:
    """When a client that knows everything has its last success, in virtual time, and the latencies it met with.

    It asks only when it will be let in, with whichever key is ready first, and begins no call that is not needed.
    """
    provider = Provider(plan)
    now, done = 0.0, 0
    under_way: list[tuple[float, int, Admitted]] = []
    latencies: list[float] = []
    while done < calls:
        waits = [(provider.ready_in(secret, tokens, now), secret) for secret in plan.secrets]
        wait, secret = min(waits)
        room = (parallel is None or len(under_way) < parallel) and len(under_way) + done < calls
        next_end = under_way[0][0] if under_way else math.inf
        if room and now + wait <= next_end:
            assert wait < math.inf, "stuck"
            now += wait
            if provider.ready_in(secret, tokens, now) > 0:
                continue  # the limit was lowered meanwhile
            answer = provider.arrive(secret, tokens, now)
            assert isinstance(answer, Admitted), answer
            latencies.append(answer.latency)
            heapq.heappush(under_way, (now + answer.latency, answer.call, answer))
        else:
            now, _, ended = heapq.heappop(under_way)
            provider.finish(ended, now)
            done += ended.fate == "ok"
    assert provider.statistics().violations == ()
    return now, latencies


CASES: list[tuple[ProviderPlan, dict[str, Any], str]] = [
    (equal_keys(1, rpm=60, request_burst=5, latency=EXACT), {"calls": 200}, "requests of quota quota-1"),
    (equal_keys(4, rpm=60, request_burst=5, latency=EXACT), {"calls": 203}, "requests of 4 quotas"),
    (equal_keys(3, tpm=6_000, latency=EXACT), {"calls": 300, "tokens_each": 130}, "tokens of 3 quotas"),
    (equal_keys(2, rpm=40, refill="fixed", latency=EXACT), {"calls": 250}, "requests of 2 quotas"),
    (
        equal_keys(2, tpm=1_000, refill="fixed", latency=EXACT),
        {"calls": 30, "tokens_each": 300},
        "tokens of 2 quotas",
    ),
    (organisations({"acme": 4, "beta": 2}, rpm=30, latency=EXACT), {"calls": 200}, "requests of 2 quotas"),
    (equal_keys(1, concurrency=7, latency=EXACT), {"calls": 300}, "concurrency of quota quota-1"),
    (equal_keys(3, concurrency=2, latency=EXACT), {"calls": 300}, "concurrency of 3 quotas"),
    (equal_keys(3, rpm=6_000, latency=EXACT), {"calls": 500, "parallel": 8}, "parallelism"),
    (equal_keys(2, daily_requests=10, latency=EXACT), {"calls": 35}, "daily requests of 2 quotas"),
    (equal_keys(1, rpm=600, latency=EXACT), {"calls": 100}, "latency"),
    (equal_keys(2, rpm=600, window=1, latency=EXACT), {"calls": 500}, "requests of 2 quotas"),
    (equal_keys(2, rpm=600, window=5, refill="fixed", latency=EXACT), {"calls": 470}, "requests of 2 quotas"),
    (equal_keys(2, rpm=600, window=5, refill="sliding", latency=EXACT), {"calls": 470}, "requests of 2 quotas"),
    (equal_keys(2, rpm=600, window=5, refill="gcra", latency=EXACT), {"calls": 470}, "requests of 2 quotas"),
    (equal_keys(2, rpm=600, window=1, changes_at=5, latency=EXACT), {"calls": 300}, "requests of 2 quotas"),
    (
        equal_keys(2, rpm=600, window=4, refill="fixed", changes_at=6, changes_to=0.5, latency=EXACT),
        {"calls": 300},
        "requests of 2 quotas",
    ),
    (equal_keys(1, rpm=0.5, request_burst=1, latency=Latency(0, 0)), {"calls": 50}, "requests of quota quota-1"),
]


@pytest.mark.parametrize(("plan", "load", "binding"), CASES, ids=[f"{case[2]}-{at}" for at, case in enumerate(CASES)])
def test_nobody_beats_the_bound_and_who_knows_everything_reaches_it(
    plan: ProviderPlan, load: dict[str, Any], binding: str
) -> None:
    bound = lower_bound(plan, **load)

    taken, _ = greedy(plan, load["calls"], load.get("tokens_each", 1), load.get("parallel"))

    assert bound.seconds <= taken + 1e-9
    assert bound.seconds >= 0.99 * taken
    assert bound.binding == binding


def test_the_bound_is_exact_to_the_call() -> None:
    """5 at once, then one a second, each taking half a second."""
    plan = equal_keys(1, rpm=60, request_burst=5, latency=EXACT)

    assert [lower_bound(plan, calls).seconds for calls in (1, 5, 6, 7)] == pytest.approx([0.5, 0.5, 1.5, 2.5], abs=1e-5)


def test_random_plans_are_never_beaten() -> None:
    chance = random.Random(11)
    for _ in range(300):
        burst = chance.choice([None, chance.randrange(1, 20)])
        limits: dict[str, Any] = {
            "rpm": chance.choice([None, chance.randrange(20, 600)]),
            "tpm": chance.choice([None, chance.randrange(2_000, 50_000)]),
            "concurrency": chance.choice([None, chance.randrange(1, 9)]),
            "refill": chance.choice(["continuous", "fixed", "sliding", "gcra"]),
            "window": chance.choice([60, chance.randrange(6, 120)]),
            "changes_at": chance.choice([None, chance.uniform(1, 90)]),
            "changes_to": chance.choice([0.5, 2.0]),
        }
        if limits["tpm"] is not None:
            limits["tpm"] *= 60 / limits["window"]
        if burst is not None and limits["rpm"] is not None and limits["refill"] in ("continuous", "gcra"):
            limits["request_burst"] = burst + 1
        plan = organisations({"a": chance.randrange(1, 3), "b": 1}, latency=Latency(0.4, 0.0), **limits)
        calls, tokens = chance.randrange(1, 150), chance.randrange(1, 500)
        parallel = chance.choice([None, chance.randrange(1, 20)])

        bound = lower_bound(plan, calls, tokens_each=tokens, parallel=parallel)

        taken, _ = greedy(plan, calls, tokens, parallel)
        assert bound.seconds <= taken + 1e-9, (plan, calls, tokens, parallel)


@pytest.mark.parametrize(
    ("plan", "parallel"),
    [(equal_keys(2, concurrency=4), None), (equal_keys(2, rpm=6_000), 8), (equal_keys(1, concurrency=6), None)],
)
def test_with_latencies_that_vary_the_bound_is_an_expectation_or_exact_if_it_is_told_them(
    plan: ProviderPlan, parallel: int | None
) -> None:
    taken, latencies = greedy(plan, 4_000, parallel=parallel)

    expected = lower_bound(plan, 4_000, parallel=parallel)
    exact = lower_bound(plan, 4_000, parallel=parallel, latencies=latencies)

    assert expected.seconds == pytest.approx(taken, rel=0.03)
    assert 0.99 * taken <= exact.seconds <= taken + 1e-9


def test_failures_make_more_calls_needed() -> None:
    plan = equal_keys(1, rpm=60, request_burst=1, latency=Latency(0, 0), error_rate=0.1, overload_rate=0.1)

    assert lower_bound(plan, 800).seconds == pytest.approx(999.0, abs=1e-3)
    taken, _ = greedy(plan, 800)
    assert lower_bound(plan, 800).seconds == pytest.approx(taken, rel=0.05)


def test_dead_keys_and_spent_quotas_give_nothing() -> None:
    plan = ProviderPlan(
        (QuotaPlan("a", rpm=60), QuotaPlan("b", rpm=60, spent=True), QuotaPlan("c", rpm=60), QuotaPlan("d", rpm=60)),
        (KeyPlan("s1", "a"), KeyPlan("s2", "b"), KeyPlan("s3", "c", dead=True), KeyPlan("s4", "d", dies_after=0)),
        latency=Latency(0, 0),
    )

    bound = lower_bound(plan, 120)

    assert bound.seconds == pytest.approx(60.0)
    assert bound.binding == "requests of quota a"


def test_quotas_bound_by_different_things_are_each_named() -> None:
    plan = ProviderPlan(
        (QuotaPlan("a", rpm=60), QuotaPlan("b", rpm=600, money=10)),
        (KeyPlan("s1", "a"), KeyPlan("s2", "b")),
        latency=EXACT,
    )

    bound = lower_bound(plan, 130)

    assert bound.seconds == pytest.approx(60.5)
    assert bound.binding == "requests of quota a, money of quota b"


@pytest.mark.parametrize(
    ("plan", "load", "binding"),
    [
        (equal_keys(1, money=9), {"calls": 10}, "money of quota quota-1"),
        (equal_keys(1, tpm=100), {"calls": 1, "tokens_each": 101}, "tokens of quota quota-1"),
        (equal_keys(2, spent=True), {"calls": 1}, "no usable key"),
        (
            ProviderPlan((QuotaPlan("a"),), (KeyPlan("s", "a", dies_after=3),)),
            {"calls": 4},
            "life of the keys of quota a",
        ),
    ],
)
def test_what_can_never_be_done_is_infinite(plan: ProviderPlan, load: dict[str, Any], binding: str) -> None:
    assert lower_bound(plan, **load) == Bound(math.inf, binding)


def test_nothing_takes_no_time() -> None:
    assert lower_bound(equal_keys(1, spent=True), 0).seconds == 0


@pytest.mark.parametrize(
    ("load", "argument"),
    [
        ({"calls": -1}, "calls"),
        ({"calls": 1.5}, "calls"),
        ({"calls": 1, "tokens_each": -1}, "tokens_each"),
        ({"calls": 1, "parallel": 0}, "parallel"),
        ({"calls": 3, "latencies": [1.0]}, "latencies"),
    ],
)
def test_a_bad_load_is_a_value_error_that_names_the_argument(load: dict[str, Any], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        lower_bound(equal_keys(1), **load)
