"""A limit that nobody stated stands until the calls that were admitted refute it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.pool.core.learning.adaptive_rate import AdaptiveRate
from agentos.pool.core.learning.hypothesis import ESTIMATED, REPORTED, Hypothesis
from agentos.pool.core.learning.reported import ReportedLimit


def reported(amount: float = 10.0, per: float = 10.0) -> ReportedLimit:
    limit = ReportedLimit("requests", None, amount, per)
    limit.begin_count(0.0)
    return limit


def estimated(rate: float = 1.0) -> AdaptiveRate:
    limit = AdaptiveRate(None, 0.0)
    limit.begin_at(rate, 0.0)
    limit.begin_count(0.0)
    return limit


def stands_refuted(limit: Hypothesis, now: float) -> bool:
    return limit.obeyed and limit.is_refuted(now)


def test_each_has_a_source_a_rate_a_capacity_and_a_window() -> None:
    limits: list[Hypothesis] = [reported(), estimated()]

    assert [limit.source for limit in limits] == [REPORTED, ESTIMATED]
    assert [limit.believed_rate for limit in limits] == pytest.approx([1.0, 1.0], rel=0.02)
    assert [limit.capacity for limit in limits] == [10.0, 60.0]
    assert [limit.limit.per for limit in limits] == [10.0, 60.0]


@pytest.mark.parametrize(("now", "refuting"), [(0.0, 11), (5.0, 16), (100.0, 111)])
def test_one_call_more_than_capacity_and_refill_refutes(now: float, refuting: int) -> None:
    limit = reported()

    found = [limit.on_admitted(1.0, 0.0, now) for _ in range(refuting)]

    assert found == [False] * (refuting - 1) + [True]
    assert not stands_refuted(limit, now)
    assert limit.believed_rate > 1.0 or not limit.obeyed


def test_a_hundred_a_minute_do_not_survive_two_hundred_in_two_seconds() -> None:
    limit = reported(100.0, 60.0)

    for call in range(1, 201):
        limit.on_admitted(1.0, call / 100, call / 100)

    assert not limit.obeyed


def test_a_bucket_that_held_a_little_more_than_concluded_stays_in_force() -> None:
    limit = ReportedLimit("tokens", None, 60_000.0, 60.0)
    limit.evidence.spare = 45_000.0
    limit.begin_count(0.0)

    limit.on_admitted(20_300.0, 0.0, 5.0)  # 15,000 at once and 1,000 a second are 20,000

    assert limit.obeyed
    assert limit.believed
    assert not limit.is_refuted(5.0)
    assert (limit.capacity, limit.believed_rate) == (15_300.0, 1_000.0)


@pytest.mark.parametrize(("admitted", "stands"), [(65_300.0, True), (75_000.0, False)])
def test_a_few_tokens_too_many_raise_a_limit_and_many_more_end_it(admitted: float, stands: bool) -> None:
    limit = ReportedLimit("tokens", None, 60_000.0, 60.0)
    limit.begin_count(0.0)

    limit.on_admitted(admitted, 0.0, 5.0)

    assert limit.obeyed is stands
    assert not stands_refuted(limit, 5.0)


def test_a_raise_does_not_forgive_what_was_admitted_before_it() -> None:
    """Two a second where one was believed: each raise counts all that was admitted since the last refusal."""
    limit = reported()

    for call in range(1, 401):
        limit.on_admitted(1.0, call / 2, call / 2)

    assert limit.obeyed
    assert limit.capacity + 200.0 * limit.believed_rate >= 399.999


def test_calls_from_before_the_last_refusal_prove_nothing() -> None:
    limit = reported()
    for _ in range(10):
        limit.on_admitted(1.0, 0.0, 0.0)

    limit.on_refusal(1.0, 10.0, 2.0, surprising=False)

    assert limit.on_admitted(1.0, 1.0, 3.0) is False
    assert (limit.since, limit.admitted) == (2.0, 0.0)


def test_a_later_refusal_lowers_the_limit_again() -> None:
    limit = reported()
    for _ in range(50):
        limit.on_admitted(1.0, 5.0, 10.0)
    assert limit.believed_rate > 1.0

    limit.on_refusal(1.0, 0.0, 11.0, surprising=False)
    limit.apply_reading(10.0, 5.0, 5.0, None, 12.0, limit.take(1.0, 12.0))

    assert limit.believed_rate == pytest.approx(1.0, rel=0.05)


def test_a_search_for_a_rate_is_not_refuted() -> None:
    limit = AdaptiveRate(None, 0.0)

    assert not any(limit.on_admitted(1.0, 0.0, 0.0) for _ in range(1_000))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    amount=st.floats(1, 1e4),
    per=st.floats(0.1, 1e5),
    calls=st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 50)), max_size=40),
    kind=st.sampled_from(["reported", "estimated"]),
)
def test_whatever_is_admitted_no_limit_stays_refuted(
    amount: float, per: float, calls: list[tuple[float, float]], kind: str
) -> None:
    limit: Hypothesis = reported(amount, per) if kind == "reported" else estimated(max(0.1, amount / per))
    now = 0.0

    for later, size in calls:
        now += later
        rate = limit.believed_rate
        raised = limit.on_admitted(size, now, now)
        assert not stands_refuted(limit, now)
        assert raised or limit.believed_rate == pytest.approx(rate)
        assert limit.believed_rate >= rate * (1 - 1e-9)


def test_the_evidence_survives_storage() -> None:
    limit = reported()
    limit.on_admitted(3.0, 1.0, 1.0)
    copy = ReportedLimit("requests", None, 10.0, 10.0)

    copy.unpack(limit.pack())

    assert (copy.since, copy.admitted, copy.confirmed) == (limit.since, limit.admitted, limit.confirmed)
