"""Plans: what they refuse, that they travel as JSON, and that they hide their secrets."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from agentos.simulator import (
    KeyPlan,
    Latency,
    ProviderPlan,
    QuotaPlan,
    Scripted,
    equal_keys,
    organisations,
    simulated_key,
)

QUOTA = QuotaPlan("acme", rpm=60)
KEY = KeyPlan("a-planted-secret", "acme")


def plan(**changes: Any) -> ProviderPlan:
    return ProviderPlan(**{"quotas": (QUOTA,), "keys": (KEY,), **changes})


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: QuotaPlan(""), "name"),
        (lambda: QuotaPlan("two words"), "name"),
        (lambda: QuotaPlan("a\r\nb"), "name"),
        (lambda: QuotaPlan("a", rpm=0), "rpm"),
        (lambda: QuotaPlan("a", rpm=-1), "rpm"),
        (lambda: QuotaPlan("a", rpm=True), "rpm"),
        (lambda: QuotaPlan("a", rpm=math.nan), "rpm"),
        (lambda: QuotaPlan("a", rpm=0.5), "rpm"),
        (lambda: QuotaPlan("a", tpm=math.inf), "tpm"),
        (lambda: QuotaPlan("a", rpm=9, request_burst=0.5), "request_burst"),
        (lambda: QuotaPlan("a", request_burst=5), "request_burst"),
        (lambda: QuotaPlan("a", token_burst=5), "token_burst"),
        (lambda: QuotaPlan("a", tpm=5, token_burst=5, refill="fixed"), "token_burst"),
        (lambda: QuotaPlan("a", concurrency=0), "concurrency"),
        (lambda: QuotaPlan("a", concurrency=1.5), "concurrency"),  # type: ignore[arg-type]
        (lambda: QuotaPlan("a", daily_requests=0), "daily_requests"),
        (lambda: QuotaPlan("a", money=-1), "money"),
        (lambda: QuotaPlan("a", spent=1), "spent"),  # type: ignore[arg-type]
        (lambda: QuotaPlan("a", refill="slow"), "refill"),  # type: ignore[arg-type]
        (lambda: QuotaPlan("a", rpm=5, request_burst=5, refill="sliding"), "request_burst"),
        (lambda: QuotaPlan("a", window=0), "window"),
        (lambda: QuotaPlan("a", rpm=30, window=1), "rpm"),
        (lambda: QuotaPlan("a", rpm=60, window=1, changes_at=5), "rpm"),
        (lambda: QuotaPlan("a", changes_at=-1), "changes_at"),
        (lambda: QuotaPlan("a", changes_to=0), "changes_to"),
        (lambda: KeyPlan("", "a"), "secret"),
        (lambda: KeyPlan("with space", "a"), "secret"),
        (lambda: KeyPlan("line\n", "a"), "secret"),
        (lambda: KeyPlan("same", "a", name="same"), "secret"),
        (lambda: KeyPlan("s", "a b"), "quota"),
        (lambda: KeyPlan("s", "a", dies_after=-1), "dies_after"),
        (lambda: KeyPlan("s", "a", concurrency=0), "concurrency"),
        (lambda: KeyPlan("s", "a", slowness=0.5), "slowness"),
        (lambda: KeyPlan("s", "a", slowness=math.inf), "slowness"),
        (lambda: KeyPlan("s", "a", dead="no"), "dead"),  # type: ignore[arg-type]
        (lambda: Latency(-1), "median"),
        (lambda: Latency(1, math.inf), "sigma"),
        (lambda: Latency(1, 1, -1), "least"),
        (lambda: Scripted(500), "call"),
        (lambda: Scripted(500, call=1, at=1.0), "call"),
        (lambda: Scripted(500, call=0), "call"),
        (lambda: Scripted(100, call=1), "status"),
        (lambda: Scripted(204, call=1), "status"),
        (lambda: Scripted("melt", call=1), "status"),  # type: ignore[arg-type]
        (lambda: Scripted(500, at=-1.0), "at"),
        (lambda: Scripted(500, at=2.0, until=2.0), "until"),
        (lambda: Scripted(500, call=2, until=2.0), "until"),
        (lambda: Scripted(500, call=1, key="a b"), "key"),
        (lambda: Scripted(500, call=1, headers={"a b": "c"}), "headers"),
        (lambda: Scripted(500, call=1, headers={"a": "c\r\nd: e"}), "headers"),
        (lambda: Scripted(500, call=1, headers={"Content-Length": "1"}), "headers"),
        (lambda: Scripted(500, call=1, headers=5), "headers"),  # type: ignore[arg-type]
        (lambda: plan(keys=()), "keys"),
        (lambda: plan(keys=(KEY, KeyPlan("a-planted-secret", "acme"))), "keys"),
        (lambda: plan(keys=(KEY, KeyPlan("b", "other"))), "keys"),
        (lambda: plan(keys=(KEY, KeyPlan("b", "acme", name="key-1"))), "keys"),
        (lambda: plan(keys=(KEY, KeyPlan("key-1", "acme", name="x"))), "keys"),
        (lambda: plan(keys=5), "keys"),
        (lambda: plan(quotas=(QUOTA, QUOTA)), "quotas"),
        (lambda: plan(quotas=("acme",)), "quotas"),
        (lambda: plan(latency=0.3), "latency"),
        (lambda: plan(style="other"), "style"),
        (lambda: plan(dialect="loud"), "dialect"),
        (lambda: plan(retry_after="date"), "retry_after"),
        (lambda: plan(error_rate=0.5, overload_rate=0.5), "error_rate"),
        (lambda: plan(overload_rate=-0.1), "overload_rate"),
        (lambda: plan(rejection_latency=-1), "rejection_latency"),
        (lambda: plan(output_tokens=-1), "output_tokens"),
        (lambda: plan(seed="x"), "seed"),
        (lambda: plan(count_rejections=1), "count_rejections"),
        (lambda: plan(script=(Scripted(500, call=1, key="key-9"),)), "script"),
        (lambda: equal_keys(0), "n"),
        (lambda: organisations({}), "keys_of"),
        (lambda: organisations({"acme": 0}), "keys_of"),
        (lambda: ProviderPlan.from_dict({}), "keys"),
        (lambda: ProviderPlan.from_dict({"quotas": [], "keys": [], "colour": 1}), "colour"),
        (lambda: ProviderPlan.from_dict({"quotas": 5, "keys": []}), "quotas"),
        (lambda: ProviderPlan.from_dict({"quotas": [5], "keys": []}), "quotas"),
        (lambda: ProviderPlan.from_dict({"quotas": [{"rpm": 5}], "keys": []}), "quotas"),
        (lambda: ProviderPlan.from_dict({"quotas": [{"name": "a"}], "keys": [{"quota": "a"}]}), "secret"),
    ],
)
def test_a_bad_plan_is_a_value_error_that_names_the_argument(make: Callable[[], object], argument: str) -> None:
    with pytest.raises(ValueError, match=argument.replace("[", ".")) as caught:
        make()
    assert "planted" not in str(caught.value)


def test_a_plan_travels_as_json() -> None:
    whole = ProviderPlan(
        quotas=(QuotaPlan("acme", rpm=60, tpm=1000, token_burst=500, concurrency=3, daily_requests=9, money=4),),
        keys=(KeyPlan("s1", "acme", dies_after=3), KeyPlan("s2", "acme", dead=True, concurrency=1, name="second")),
        latency=Latency(1.0, 0.5, 0.1),
        style="anthropic",
        dialect="none",
        retry_after="exact",
        error_rate=0.1,
        script=(
            Scripted(429, at=3.0, until=5.0, key="second", headers={"retry-after": "7"}, body={"error": "x"}),
            Scripted("cut", call=17),
            Scripted("hang", call=18),
        ),
    )

    assert ProviderPlan.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    assert pickle.loads(pickle.dumps(whole)) == whole


def test_keys_without_a_name_are_named_by_their_position() -> None:
    made = plan(keys=(KeyPlan("s1", "acme"), KeyPlan("s2", "acme", name="mine"), KeyPlan("s3", "acme")))

    assert [key.name for key in made.keys] == ["key-1", "mine", "key-3"]


def test_a_secret_is_in_no_repr() -> None:
    assert "planted" not in repr(plan())


def test_equal_keys_have_a_quota_each() -> None:
    made = equal_keys(3, rpm=500, tpm=1000, style="anthropic")

    assert [(key.name, key.quota) for key in made.keys] == [
        ("key-1", "quota-1"),
        ("key-2", "quota-2"),
        ("key-3", "quota-3"),
    ]
    assert {(quota.rpm, quota.tpm) for quota in made.quotas} == {(500, 1000)}
    assert len(set(made.secrets)) == 3
    assert made.style == "anthropic"


def test_equal_plans_have_equal_keys_of_the_form_of_real_ones() -> None:
    made, again = (organisations({"acme": 4, "beta": 2}).secrets for _ in range(2))

    assert made == again
    assert simulated_key("acme-1") == made[0]
    for secret in (*made, *equal_keys(3).secrets):
        assert re.fullmatch(r"sk-proj-[A-Za-z0-9]{40}", secret)


def test_no_two_keys_share_eight_characters_of_either_case() -> None:
    # Redaction would take a piece of the one for a piece of the other.
    secrets = [*equal_keys(500).secrets, *organisations({"acme": 250, "beta": 250}).secrets]
    pieces = [
        private[start : start + 8]
        for private in (secret.removeprefix("sk-proj-").lower() for secret in secrets)
        for start in range(len(private) - 7)
    ]

    assert len(set(pieces)) == len(pieces)


def test_the_keys_of_an_organisation_share_its_quota() -> None:
    made = organisations({"acme": 2, "beta": 1}, rpm=10, error_rate=0.25)

    assert [(key.name, key.quota) for key in made.keys] == [("acme-1", "acme"), ("acme-2", "acme"), ("beta-1", "beta")]
    assert [quota.name for quota in made.quotas] == ["acme", "beta"]
    assert made.failure_rate == 0.25


@pytest.mark.parametrize("latency", [Latency(), Latency(1.0, 0.8), Latency(0.3, 0.5, 0.4), Latency(0.3, 0.0, 0.5)])
def test_the_mean_latency_is_that_of_many_draws(latency: Latency) -> None:
    chance = random.Random(1)
    draws = [latency.of(chance.gauss(0.0, 1.0)) for _ in range(40_000)]

    assert sum(draws) / len(draws) == pytest.approx(latency.mean, rel=0.02)
    assert min(draws) >= latency.shortest


def test_a_latency_of_zero_is_none() -> None:
    assert (Latency(0, 0).mean, Latency(0).of(3.0), Latency(0, 0.5, 0.2).mean) == (0, 0, 0.2)
