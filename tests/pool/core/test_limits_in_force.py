"""Which limit is in force, where it comes from, and how sure it is."""

from __future__ import annotations

from contextlib import closing

import pytest

from agentos import Credential, CredentialCoordinator, Limit
from agentos.pool.core.credential_report import build_report, find_limits_in_force
from agentos.pool.core.learning.adaptive_rate import AdaptiveRate
from agentos.pool.core.learning.reported import ReportedLimit
from agentos.pool.core.limits.bucket import Bucket
from agentos.pool.core.limits.calendar import WallTime
from agentos.pool.core.pool import LeasePool
from agentos.pool.core.records import KeySpec, Quota
from agentos.pool.snapshot import LimitInForce
from agentos.providers import Event, Reading, Signal
from agentos.testing import FakeClock

WALL = WallTime(1_700_000_000.0)
NOW = 100.0


def in_force(quota: Quota) -> list[tuple[str, float, float | str, str, str | None]]:
    found = find_limits_in_force(quota, NOW)
    return [(each.dimension, each.amount, each.per, each.source, each.model) for each in found]


def test_a_limit_knows_its_source_and_how_sure_it_is() -> None:
    stated = Bucket(Limit("requests", 60))
    reported = ReportedLimit("requests", None, 60.0, 60.0)
    estimated = AdaptiveRate(None, 0.0)
    reported.apply_reading(60.0, 30.0, None, 60.0, 100.0, None)

    assert [limit.source for limit in (stated, reported, estimated)] == ["stated", "reported", "estimated"]
    assert (stated.certainty(110.0), reported.certainty(110.0)) == ("as configured", "last answer 10 s ago")
    assert estimated.certainty(110.0) == "still searching"


def test_of_several_limits_of_a_dimension_the_one_with_the_lowest_rate_is_in_force() -> None:
    quota = Quota("q", (Limit("requests", 6000), Limit("requests", 50_000, per=3600)), WALL)

    assert in_force(quota) == [("requests", 50_000.0, 3600.0, "stated", None)]

    quota.learn("one", ReportedLimit("requests", None, 100.0, 60.0))
    quota.learn("two", ReportedLimit("requests", None, 100.0, 1.0))
    assert in_force(quota) == [("requests", 100.0, 60.0, "reported", None)]

    estimated = AdaptiveRate(None, NOW)
    quota.learn("three", estimated)
    assert in_force(quota) == [("requests", estimated.rate * 60, 60.0, "estimated", None)]

    quota.unlearn(["one", "two", "three"])
    assert in_force(quota) == [("requests", 50_000.0, 3600.0, "stated", None)]


def test_tokens_days_and_model_families_have_lines_of_their_own() -> None:
    quota = Quota("q", (Limit("requests", 60), Limit("tokens", 9000), Limit("requests", 500, per="day")), WALL)
    quota.learn("of a family", ReportedLimit("requests", "large", 10.0, 60.0))
    quota.learn("of a day", ReportedLimit("requests", None, 400.0, 86_400.0))

    assert in_force(quota) == [
        ("requests", 60.0, 60.0, "stated", None),
        ("tokens", 9000.0, 60.0, "stated", None),
        ("requests", 400.0, 86_400.0, "reported", None),
        ("requests", 10.0, 60.0, "reported", "large"),
    ]


def test_a_limit_that_is_set_aside_is_not_in_force_beside_another() -> None:
    quota = Quota("q", (Limit("tokens", 600), Limit("tokens", 60_000, per=60)), WALL)
    low, high = quota.stated
    low.usage.set_aside = True
    assert in_force(quota) == [("tokens", 60_000.0, 60.0, "stated", None)]

    high.usage.set_aside = True
    (found,) = find_limits_in_force(quota, NOW)
    assert (found.amount, found.certainty) == (600.0, "not applied: the answers tell no usage")


def test_a_limit_that_is_not_obeyed_is_not_in_force() -> None:
    class NotObeyed(Bucket):
        obeyed = False

    quota = Quota("q", (Limit("requests", 60),), WALL)
    quota.learn("lower", NotObeyed(Limit("requests", 6)))
    quota.learn("tokens", NotObeyed(Limit("tokens", 6)))

    assert in_force(quota) == [("requests", 60.0, 60.0, "stated", None)]

    pool = LeasePool()
    pool.add(KeySpec("a", limits=(Limit("requests", 60),)), NOW)
    pool.keys["a"].quota.learn("lower", NotObeyed(Limit("requests", 6)))
    (row,) = build_report(pool, NOW)
    assert [(each.amount, each.set_aside) for each in row.limits] == [(60, False), (6, True)]


def test_a_limit_in_force_is_one_line_for_people() -> None:
    line = LimitInForce("input_tokens", 90_000.0, 10.0, "estimated", "still searching", 38.9, "large")
    assert str(line) == "90,000 input tokens in 10 s for large, estimated (still searching): 38 left"


def test_a_snapshot_has_the_limits_in_force_of_each_quota() -> None:
    keys = [
        Credential(f"sk-in-force-{name}-0123456789", name=name, quota="team", rpm=600, labels={"of": "team"})
        for name in "ab"
    ]
    other = Credential("sk-in-force-c-0123456789", name="c", labels={"of": "another"})
    with closing(CredentialCoordinator([*keys, other], clock=FakeClock())) as pool:
        with pool.acquire(labels={"of": "team"}) as lease:
            reading = Reading("requests", 60.0, 31.0, window=60.0, source="x-left")
            lease.report(Signal(Event.OK, readings=(reading,)))
        a, b, c = pool.snapshot()

    assert a.limits_in_force == b.limits_in_force
    (found,) = a.limits_in_force
    assert found == LimitInForce("requests", 60.0, 60.0, "reported", "last answer 0 s ago", found.left)
    assert found.left == pytest.approx(31.0, abs=0.1)
    assert c.limits_in_force == ()
    assert [(each.amount, each.learned) for each in a.limits] == [(600.0, False), (60.0, True)]  # all are there
    assert {each.slots_source for each in (a, b, c)} == {"stated"}
