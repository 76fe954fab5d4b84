"""The shortcut to a lease grants the same key as the full search."""

from __future__ import annotations

import pytest

from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.records import Grant, KeySpec, LeaseRequest
from agentos.pool.limit import Limit

MODEL = "some-model"
OF_A_MODEL = Limit("requests", 2, per=60, burst=2, model=MODEL)  # so that there is more than one kind of request


class SearchingPool(AdaptivePool):
    """Looks at all keys, each time."""

    def _start_on_first(self, *_: object) -> Grant | None:
        return None


def story(pool: AdaptivePool) -> list[str | None]:
    """Who got which key, while keys are limited, closed, barred, kept for a label and given back."""
    told: list[str | None] = []
    held: list[Grant] = []

    def take(ask: LeaseRequest, now: float) -> None:
        grant = pool.acquire(ask, None, now)
        told.append(None if grant is None else grant.key.name)
        if grant is not None:
            held.append(grant)

    for name in "abc":
        pool.add(KeySpec(name, limits=(OF_A_MODEL, Limit("tokens", 600, per=60, burst=600))), 0.0)
    pool.add(KeySpec("d", slots=2, labels=frozenset({("tier", "free")})), 0.0)
    for round_ in range(12):
        now = 5.0 * round_
        take(LeaseRequest((1.0, 250.0, None, None), MODEL), now)
        take(LeaseRequest(model=MODEL, labels=frozenset({("tier", "free")})), now)
        take(LeaseRequest((1.0, 10.0, None, None), "another-model"), now)
        if round_ == 2:
            pool.close_quota(pool.keys["b"], now + 17.0, model=MODEL, evidence="limited", now=now)
        if round_ == 4:
            pool.keys["c"].barred[MODEL] = "not entitled"
        if round_ == 6:
            pool.retire(pool.keys["a"], now)
        while len(held) > 2:
            assert pool.end(held.pop(0))
    return told


def test_it_is_the_key_that_a_search_of_all_would_find() -> None:
    assert story(AdaptivePool()) == story(SearchingPool())


@pytest.mark.parametrize("now", [0.0, 30.0])
def test_a_request_that_the_first_key_cannot_carry_takes_nothing_from_it(now: float) -> None:
    pool = AdaptivePool()
    pool.add(KeySpec("small", limits=(Limit("requests", 5, per=60, burst=5), Limit("tokens", 100, per=60))), 0.0)
    pool.add(KeySpec("wide", limits=(Limit("requests", 5, per=60, burst=5, model=MODEL),)), 0.0)

    grant = pool.acquire(LeaseRequest((1.0, 500.0, None, None), MODEL), None, now)

    assert grant is not None
    assert grant.key.name == "wide"
    assert [state.left(now) for state in pool.keys["small"].quota.limits] == [5.0, 100.0]


def test_who_holds_a_lease_gets_requests_back_though_another_was_refused_meanwhile() -> None:
    pool = AdaptivePool()
    limits = (Limit("requests", 10, per=60, burst=10), Limit("tokens", 100, per=60), OF_A_MODEL)
    pool.add(KeySpec("key", slots=2, limits=limits), 0.0)
    grant = pool.acquire(LeaseRequest((5.0, 1.0, None, None)), None, 0.0)
    assert grant is not None

    assert pool.acquire(LeaseRequest((1.0, 500.0, None, None)), None, 0.0) is None
    pool.settle(grant, (1.0, 1.0, None, None), 0.0)

    assert pool.keys["key"].quota.limits[0].left(0.0) == 9.0
