"""Whole runs in virtual time: the pool's core, the run's core and the provider's rules. Exact, every time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentos.pool.core.checked_pool import CheckedPool
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.quota_codec import pack_quota, unpack_quota
from agentos.pool.core.states import Life
from agentos.simulator import (
    KeyPlan,
    Latency,
    Provider,
    ProviderPlan,
    QuotaPlan,
    Scripted,
    VirtualRun,
    Work,
    lower_bound,
)
from agentos.simulator.virtual import Finished, build_key_specs

CALLS_TAKE = Latency(median=0.3, sigma=0.3, least=0.15)
UNEQUAL = (30.0, 60.0, 110.0, 240.0, 480.0, 900.0, 1_500.0, 2_600.0)


def provider(rpms: Sequence[float | QuotaPlan], **manners: Any) -> ProviderPlan:
    quotas = [
        rpm if isinstance(rpm, QuotaPlan) else QuotaPlan(f"org-{place}", rpm=rpm) for place, rpm in enumerate(rpms)
    ]
    keys = tuple(KeyPlan(f"not-a-secret-{quota.name}", quota.name) for quota in quotas)
    manners.setdefault("latency", CALLS_TAKE)
    return ProviderPlan(tuple(quotas), keys, rejection_latency=0.02, **manners)


def calls_for(plan: ProviderPlan, seconds: float) -> int:
    """About as many as the plan's live quotas let through in that time."""
    rates = [quota.rpm or 0.0 for quota in plan.quotas if not quota.spent]
    return int(sum(rpm * (1 + seconds / 60) for rpm in rates) * (1 - plan.failure_rate))


def drained(plan: ProviderPlan, calls: int, **options: Any) -> tuple[Finished, float]:
    """The run, and how near it came to what no client can beat."""
    run = VirtualRun(plan, [Work()] * calls, parallel=options.pop("parallel", 400), seed=plan.seed, **options)
    finished = run.run()
    return finished, lower_bound(plan, calls, parallel=400).seconds / finished.seconds


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("rpms", "manners", "known", "most_rejected", "least_efficiency"),
    [
        pytest.param((500.0,) * 8, {"dialect": "none"}, True, 0.01, 0.985, id="equal, known"),
        pytest.param((500.0,) * 8, {"dialect": "full"}, False, 0.01, 0.985, id="told by full headers"),
        pytest.param((500.0,) * 8, {"dialect": "full", "style": "anthropic"}, False, 0.01, 0.98, id="told, anthropic"),
        pytest.param(UNEQUAL, {"dialect": "retry-after"}, False, 0.05, 0.98, id="unequal, retry-after only"),
        pytest.param(UNEQUAL, {"dialect": "none"}, False, 0.05, 0.98, id="unequal, nothing told"),
        pytest.param(
            UNEQUAL,
            {"dialect": "retry-after", "count_rejections": True, "error_rate": 0.02},
            False,
            0.03,
            0.93,
            id="rejections count, calls fail",
        ),
    ],
)
def test_a_drain_is_nearly_as_fast_as_the_limits_allow(
    rpms: tuple[float, ...],
    manners: dict[str, Any],
    known: bool,
    most_rejected: float,
    least_efficiency: float,
    seed: int,
) -> None:
    luck = random.Random(seed)
    plan = provider(tuple(rpm * luck.uniform(0.8, 1.2) for rpm in rpms), seed=seed, **manners)
    calls = calls_for(plan, 60)

    finished, efficiency = drained(plan, calls, specs=build_key_specs(plan, known=known))

    assert (finished.done, finished.failed, finished.unfinished) == (calls, 0, 0)
    assert efficiency >= least_efficiency
    assert finished.rejected / calls <= most_rejected
    assert finished.statistics.violations == ()


def test_a_dead_and_a_spent_key_cost_one_call_each() -> None:
    plan = provider((600.0,) * 6, dialect="retry-after", seed=3)
    quotas = (replace(plan.quotas[0], spent=True), *plan.quotas[1:])
    keys = (plan.keys[0], replace(plan.keys[1], dead=True), *plan.keys[2:])
    plan = replace(plan, quotas=quotas, keys=keys)

    finished, _ = drained(plan, 3_000)

    assert finished.done == 3_000
    assert finished.statistics.keys["key-1"].calls == 1
    assert finished.statistics.keys["key-2"].calls == 1


def test_exclusive_keys_are_never_used_twice_at_once() -> None:
    plan = provider(tuple(QuotaPlan(f"org-{n}", concurrency=1) for n in range(8)), seed=4)

    finished, efficiency = drained(plan, 2_000, specs=build_key_specs(plan, slots=1))

    assert finished.done == 2_000
    assert finished.rejected == 0
    assert max(tally.most_in_flight for tally in finished.statistics.keys.values()) == 1
    assert efficiency >= 0.98


def test_slots_find_the_providers_own_cap() -> None:
    plan = provider(tuple(QuotaPlan(f"org-{n}", concurrency=4) for n in range(4)), dialect="none", seed=5)
    run = VirtualRun(plan, [Work()] * 3_000, parallel=400, seed=5)

    finished = run.run()

    assert finished.done == 3_000
    assert finished.rejected / 3_000 <= 0.03
    assert all(3 <= key.slots <= 6 for key in run.pool.keys.values())
    assert lower_bound(plan, 3_000, parallel=400).seconds / finished.seconds >= 0.9


def test_what_was_learned_carries_over_to_the_next_run() -> None:
    """As a store would: the quotas as plain data, into a new pool."""
    plan = provider(UNEQUAL, dialect="retry-after", seed=6)
    first = VirtualRun(plan, [Work()] * calls_for(plan, 60), parallel=400, seed=6)
    first.run(until=30.0)
    before = first.provider.statistics()
    pool = AdaptivePool()
    for spec in build_key_specs(plan):
        pool.add(spec, first.now)
        unpack_quota(pool.keys[spec.name].quota, pack_quota(first.pool.keys[spec.name].quota))
    rest = first.board.taken - first.board.done

    second = VirtualRun(plan, [Work()] * rest, parallel=400, seed=7, pool=pool, provider=first.provider)
    second.now = first.now
    second.run(until=first.now + 5.0)

    after = second.provider.statistics()
    for name, tally in after.keys.items():
        assert sum(tally.rejected.values()) - sum(before.keys[name].rejected.values()) <= 1


def test_the_same_seed_gives_the_same_log() -> None:
    plan = provider(UNEQUAL, dialect="retry-after", error_rate=0.02, seed=8)
    logs: list[list[tuple[Any, ...]]] = [[], [], []]
    for log, seed in zip(logs, (8, 8, 9), strict=True):
        VirtualRun(plan, [Work()] * 2_000, parallel=100, seed=seed, log=log).run()

    assert logs[0] == logs[1]
    assert len(logs[0]) > 2_000
    assert logs[0] != logs[2]


def test_the_pools_own_promises_hold_all_along() -> None:
    plan = provider((60.0, 120.0, 300.0), dialect="retry-after", error_rate=0.05, overload_rate=0.02, seed=9)

    finished = VirtualRun(plan, [Work()] * 700, parallel=50, seed=9, pool=CheckedPool()).run()

    assert finished.done == 700


def test_an_outage_is_waited_out_and_no_key_is_blamed() -> None:
    plan = provider((600.0,) * 4, dialect="full", overload_rate=0.0, seed=10)
    outage = ProviderPlan.from_dict({**plan.to_dict(), "script": [{"status": 529, "at": 2.0, "until": 40.0}]})

    run = VirtualRun(outage, [Work()] * 1_000, parallel=40, seed=10)
    finished = run.run()

    assert finished.done == 1_000
    assert finished.statistics.total.failed < 200
    assert all(key.life is Life.ALIVE for key in run.pool.keys.values())


@pytest.mark.parametrize("mishap", ["stall", "hang"])
def test_a_call_that_gets_no_answer_is_given_up_after_ten_minutes_and_made_again(mishap: Any) -> None:
    plan = provider((600.0,), script=(Scripted(mishap, call=1),), seed=13)
    run = VirtualRun(plan, [Work()] * 3, parallel=3, seed=13)

    finished = run.run()

    assert (finished.done, finished.failed, finished.unfinished) == (3, 0, 0)
    assert 600.0 < finished.seconds < 610.0
    total = finished.statistics.total
    assert (total.calls, total.ok, total.left) == (4, 3, 1)
    assert run.board.retried == 1


def test_a_pool_drains_a_gemini_provider_by_what_its_bodies_tell() -> None:
    plan = provider((60.0, 120.0, QuotaPlan("poor", spent=True)), style="gemini", retry_after="exact", seed=14)

    finished, near = drained(plan, 300)

    assert (finished.done, finished.failed) == (300, 0)
    assert near > 0.9
    assert finished.statistics.keys["key-3"].calls == 1


def test_a_provider_starts_where_it_was_left() -> None:
    plan = provider((60.0,), seed=11)
    rules = Provider(plan)
    VirtualRun(plan, [Work()] * 30, parallel=40, provider=rules).run()

    assert rules.statistics().total.ok == 30


def test_fifty_thousand_calls_are_simulated() -> None:
    plan = provider((6_000.0,) * 8, dialect="retry-after", seed=12)

    finished, _ = drained(plan, 50_000)

    assert (finished.done, finished.rejected < 500) == (50_000, True)
