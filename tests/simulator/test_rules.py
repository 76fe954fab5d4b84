"""The provider's rules, with a clock that the test drives."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.simulator import (
    Admitted,
    KeyPlan,
    Latency,
    Provider,
    ProviderPlan,
    QuotaPlan,
    Refused,
    Scripted,
    Statistics,
    equal_keys,
    organisations,
)

SECRET = equal_keys(1).secrets[0]


def one_key(**options: Any) -> Provider:
    return Provider(equal_keys(1, **options))


def admitted(provider: Provider, tokens: int = 1, now: float = 0.0, secret: str = SECRET, **more: Any) -> Admitted:
    answer = provider.arrive(secret, tokens, now, **more)
    assert isinstance(answer, Admitted), answer
    return answer


def refused(provider: Provider, tokens: int = 1, now: float = 0.0, secret: str = SECRET, **more: Any) -> Refused:
    answer = provider.arrive(secret, tokens, now, **more)
    assert isinstance(answer, Refused), answer
    return answer


def error_of(answer: Refused | Admitted) -> dict[str, Any]:
    assert answer.body is not None
    error: dict[str, Any] = json.loads(answer.body)["error"]
    return error


# Reasons.


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_an_unknown_or_missing_secret_is_unauthorized(style: Any) -> None:
    provider = one_key(style=style)

    for secret in ("another-secret", "", None):
        answer = provider.arrive(secret, 1, 0.0)
        assert isinstance(answer, Refused)
        assert (answer.status, answer.reason, answer.key) == (401, "unknown_key", None)
        assert "another" not in answer.body
    kind = {"openai": ("code", "invalid_api_key"), "anthropic": ("type", "authentication_error")}[style]
    assert error_of(refused(provider, secret="x"))[kind[0]] == kind[1]
    assert provider.statistics().total.rejected == {"unknown_key": 4}


def test_a_dead_key_is_refused_and_the_others_of_its_quota_are_not() -> None:
    plan = ProviderPlan((QuotaPlan("acme"),), (KeyPlan("s1", "acme", dead=True), KeyPlan("s2", "acme")))
    provider = Provider(plan)

    assert (refused(provider, secret="s1").status, refused(provider, secret="s1").reason) == (401, "dead_key")
    admitted(provider, secret="s2")


def test_a_key_dies_after_so_many_calls_were_let_in() -> None:
    plan = ProviderPlan((QuotaPlan("acme", rpm=2),), (KeyPlan("s1", "acme", dies_after=3),))
    provider = Provider(plan)
    admitted(provider, secret="s1")
    admitted(provider, secret="s1")
    assert refused(provider, secret="s1").reason == "requests"
    admitted(provider, secret="s1", now=30.0)

    assert refused(provider, secret="s1", now=90.0).reason == "dead_key"


def test_a_slow_key_answers_late_and_the_others_of_its_quota_do_not() -> None:
    keys = (KeyPlan("s1", "acme", slowness=8), KeyPlan("s2", "acme"))
    provider = Provider(ProviderPlan((QuotaPlan("acme"),), keys, latency=Latency(0.3, 0.0)))

    assert admitted(provider, secret="s1").latency == pytest.approx(2.4)
    assert admitted(provider, secret="s2").latency == pytest.approx(0.3)


def test_a_quota_without_money_says_so_in_its_style() -> None:
    openai = refused(one_key(spent=True))
    anthropic = refused(one_key(spent=True, style="anthropic"))

    assert (openai.status, openai.reason, openai.retry_after) == (429, "money", None)
    assert (error_of(openai)["type"], error_of(openai)["code"]) == ("insufficient_quota", "insufficient_quota")
    assert anthropic.status == 400
    assert error_of(anthropic)["type"] == "invalid_request_error"
    assert "credit balance" in error_of(anthropic)["message"]


def test_money_pays_for_so_many_calls() -> None:
    provider = Provider(organisations({"acme": 2}, money=2))
    first, second = provider.plan.secrets
    admitted(provider, secret=first)
    admitted(provider, secret=second)

    assert refused(provider, secret=first, now=1e6).reason == "money"


def test_the_day_is_new_after_24_hours() -> None:
    provider = one_key(daily_requests=2)
    admitted(provider, now=10.0)
    admitted(provider, now=20.0)

    answer = refused(provider, now=400.0)

    assert (answer.reason, answer.status, answer.retry_after) == ("day", 429, 86_000.0)
    assert dict(answer.headers)["retry-after"] == "86000"
    admitted(provider, now=86_400.0)


def test_more_calls_at_once_than_the_cap_are_refused_until_one_ends() -> None:
    provider = one_key(concurrency=2)
    first = admitted(provider)
    admitted(provider)

    answer = refused(provider)
    assert (answer.reason, answer.status, answer.retry_after) == ("concurrency", 429, None)
    assert "concurrent" in error_of(answer)["message"]
    provider.finish(first, 1.0)
    admitted(provider, now=1.0)
    assert provider.statistics().total.most_in_flight == 2


def test_the_anthropic_style_speaks_of_concurrent_connections() -> None:
    provider = one_key(concurrency=1, style="anthropic")
    admitted(provider)

    assert "umber of concurrent connections" in error_of(refused(provider))["message"]


def test_a_key_may_have_a_cap_of_its_own() -> None:
    plan = ProviderPlan((QuotaPlan("acme"),), (KeyPlan("s1", "acme", concurrency=1), KeyPlan("s2", "acme")))
    provider = Provider(plan)
    admitted(provider, secret="s1")

    assert refused(provider, secret="s1").reason == "concurrency"
    admitted(provider, secret="s2")


def test_a_call_larger_than_the_bucket_never_fits() -> None:
    provider = one_key(tpm=1000, token_burst=300)

    answer = refused(provider, tokens=301)

    assert (answer.reason, answer.status, answer.retry_after) == ("too_large", 429, None)
    assert "Limit 1000, Requested 301" in error_of(answer)["message"]
    assert "retry-after" not in dict(answer.headers)
    admitted(provider, tokens=300)


def test_the_reasons_are_looked_at_in_order() -> None:
    """Everything is wrong at once; as each is put right, the next one speaks."""
    wrong: dict[str, Any] = {"spent": True, "daily_requests": 1, "concurrency": 1, "rpm": 1, "tpm": 10}
    key: dict[str, Any] = {"dead": True}
    told = []
    for better in (None, "dead", "spent", "daily_requests", "concurrency", "rpm", "tpm"):
        wrong.pop(better or "", None)
        key.pop(better or "", None)
        provider = Provider(ProviderPlan((QuotaPlan("acme", **wrong),), (KeyPlan("s1", "acme", **key),)))
        provider.arrive("s1", 10, 0.0)
        second = provider.arrive("s1", 10, 0.0)
        told.append(second.reason if isinstance(second, Refused) else "admitted")

    assert told == ["dead_key", "money", "day", "concurrency", "requests", "tokens", "admitted"]


# Refill.


def test_a_bucket_starts_full_and_refills_continuously() -> None:
    provider = one_key(rpm=60, request_burst=3)
    for _ in range(3):
        admitted(provider)

    answer = refused(provider, now=0.25)
    assert answer.retry_after == pytest.approx(0.75)
    assert refused(provider, now=0.999).reason == "requests"
    admitted(provider, now=1.0)
    admitted(provider, now=2.0)
    for _ in range(3):
        admitted(provider, now=1000.0)
    assert refused(provider, now=1000.0).retry_after == pytest.approx(1.0)


def test_without_a_burst_a_bucket_holds_a_minute() -> None:
    provider = one_key(rpm=5)

    assert [isinstance(provider.arrive(SECRET, 1, 0.0), Admitted) for _ in range(6)] == [True] * 5 + [False]


def test_the_published_arithmetic_of_a_token_limit_holds() -> None:
    """Limit 30,000, used 14,567, asked 24,754: 18.642 seconds, as the provider's own message had it."""
    provider = one_key(tpm=30_000)
    admitted(provider, tokens=14_567)

    answer = refused(provider, tokens=24_754)

    assert answer.retry_after == pytest.approx(18.642)
    assert "Limit 30000, Used 14567, Requested 24754. Please try again in 18.642s" in error_of(answer)["message"]
    assert refused(provider, tokens=24_754, now=18.641).reason == "tokens"
    admitted(provider, tokens=24_754, now=18.642)


def test_a_fixed_window_is_whole_at_its_start() -> None:
    provider = one_key(rpm=2, refill="fixed")
    admitted(provider, now=59.0)
    admitted(provider, now=59.0)

    assert refused(provider, now=59.5).retry_after == pytest.approx(0.5)
    admitted(provider, now=60.0)
    admitted(provider, now=60.0)
    assert refused(provider, now=60.0).retry_after == pytest.approx(60.0)
    assert provider.statistics().violations == ()


def test_whoever_waits_exactly_as_long_as_told_is_let_in() -> None:
    chance = random.Random(5)
    provider = one_key(rpm=77, tpm=12_345, request_burst=3, token_burst=2_000)
    now = 0.1
    for _ in range(3_000):
        tokens = chance.randrange(1, 2_000)
        answer = provider.arrive(SECRET, tokens, now)
        while isinstance(answer, Refused):  # for requests, and then it may be for tokens
            assert answer.retry_after is not None
            now += answer.retry_after
            reasons = {answer.reason}
            answer = provider.arrive(SECRET, tokens, now)
            assert isinstance(answer, Admitted) or answer.reason not in reasons
        now += chance.random()


def test_tokens_set_aside_and_not_used_are_kept_unless_the_plan_refunds_them() -> None:
    for refund, left in ((False, 0), (True, 600)):
        provider = one_key(tpm=1000, output_tokens=200, refund_tokens=refund)
        call = admitted(provider, tokens=1000, max_output=800)
        assert call.usage == (200, 200)
        provider.finish(call, 0.0)
        answer = provider.arrive(SECRET, 600, 0.0)
        assert isinstance(answer, Admitted) is (left == 600)


def test_time_that_goes_back_counts_as_standing_still() -> None:
    provider = one_key(rpm=60, request_burst=1)
    admitted(provider, now=10.0)

    assert refused(provider, now=5.0).retry_after == pytest.approx(1.0)


def test_a_call_without_tokens_spends_a_request() -> None:
    provider = one_key(rpm=1, tpm=10)
    admitted(provider, tokens=0)

    assert refused(provider, tokens=0).reason == "requests"


# Rejections.


def test_a_refused_call_spends_nothing() -> None:
    provider = one_key(rpm=60, request_burst=2, tpm=600, token_burst=100)
    admitted(provider, tokens=100)
    for _ in range(50):
        assert refused(provider, tokens=100).reason == "tokens"

    admitted(provider, tokens=0)


def test_with_count_rejections_a_refused_call_spends_one_request() -> None:
    provider = one_key(rpm=60, request_burst=3, tpm=600, token_burst=100, count_rejections=True)
    admitted(provider, tokens=100)
    assert [refused(provider, tokens=100).reason for _ in range(3)] == ["tokens", "tokens", "requests"]

    # Hammering an empty bucket keeps it empty, and makes no debt.
    for tenths in range(1, 20):
        assert refused(provider, now=tenths / 10).reason == "requests"
    admitted(provider, now=2.9)


def test_with_count_rejections_a_refusal_for_the_key_spends_nothing() -> None:
    plan = ProviderPlan(
        (QuotaPlan("acme", rpm=60, request_burst=1),),
        (KeyPlan("s1", "acme", dead=True), KeyPlan("s2", "acme")),
        count_rejections=True,
    )
    provider = Provider(plan)
    refused(provider, secret="s1")

    admitted(provider, secret="s2")


# Organisations.


def test_keys_of_one_organisation_share_its_limits_and_others_do_not() -> None:
    provider = Provider(organisations({"acme": 2, "beta": 1}, rpm=2, concurrency=9))
    first, second, other = provider.plan.secrets
    admitted(provider, secret=first)
    admitted(provider, secret=second)

    assert refused(provider, secret=first).reason == "requests"
    assert refused(provider, secret=second).quota == "acme"
    admitted(provider, secret=other)


# Chance.


def story(provider: Provider, keys: list[str], seed: int = 1) -> None:
    """Many calls at seeded instants: some end, some are refused."""
    chance = random.Random(seed)
    now, under_way = 0.0, []
    for _ in range(400):
        now += chance.expovariate(5.0)
        answer = provider.arrive(chance.choice(keys), chance.randrange(500), now)
        if isinstance(answer, Admitted):
            under_way.append(answer)
        if under_way and chance.random() < 0.6:
            provider.finish(under_way.pop(0), now)


def test_the_same_seed_gives_the_same_log() -> None:
    logs: list[list[tuple[Any, ...]]] = [[], [], []]
    for log, seed in zip(logs, (7, 7, 8), strict=True):
        plan = equal_keys(3, rpm=60, tpm=30_000, concurrency=5, error_rate=0.1, overload_rate=0.1, seed=seed)
        story(Provider(plan, log=log), list(plan.secrets))

    assert logs[0] == logs[1] != logs[2]
    assert {entry[1] for entry in logs[0]} == {"admitted", "refused", "finished"}


def test_what_one_key_does_never_changes_the_chance_of_another() -> None:
    def latencies(noise: int) -> list[tuple[float, str]]:
        provider = Provider(equal_keys(2, error_rate=0.3))
        found: list[tuple[float, str]] = []
        for _ in range(50):
            for _ in range(noise):
                admitted(provider, secret=provider.plan.secrets[1])
            call = admitted(provider)
            found.append((call.latency, call.fate))
        return found

    assert latencies(0) == latencies(3)


def test_each_key_has_chance_of_its_own() -> None:
    provider = Provider(equal_keys(2))
    first, second = ([admitted(provider, secret=secret).latency for _ in range(5)] for secret in provider.plan.secrets)

    assert not set(first) & set(second)


def test_another_error_rate_leaves_the_latencies_as_they_are() -> None:
    def latencies(rate: float) -> list[float]:
        provider = one_key(error_rate=rate)
        return [admitted(provider).latency for _ in range(50)]

    assert latencies(0.0) == latencies(0.5)


@pytest.mark.parametrize(("style", "overloaded"), [("openai", 503), ("anthropic", 529)])
def test_failures_come_at_the_planned_rate_and_have_spent_what_they_cost(style: Any, overloaded: int) -> None:
    provider = one_key(error_rate=0.2, overload_rate=0.1, style=style, rpm=10_000, latency=Latency(1.0, 0.0))
    for _ in range(5_000):
        provider.finish(admitted(provider), 0.0)

    total = provider.statistics().total
    assert total.failed / 5_000 == pytest.approx(0.3, abs=0.02)
    assert total.ok + total.failed == 5_000
    left = admitted(provider).facts.requests
    assert left is not None
    assert left.remaining == 4_999
    statuses = {admitted(provider).status for _ in range(100)}
    assert statuses == {200, 500, overloaded}


def test_latencies_are_log_normal_around_the_median() -> None:
    provider = one_key(latency=Latency(2.0, 0.5, 0.7))
    found = sorted(admitted(provider).latency for _ in range(4_001))

    assert found[2_000] == pytest.approx(2.0, rel=0.05)
    assert math.log(found[int(0.8413 * 4_001)] / 2.0) == pytest.approx(0.5, rel=0.1)
    assert found[0] == 0.7


def test_a_refusal_is_answered_after_the_rejection_latency() -> None:
    assert refused(one_key(spent=True)).latency == 0.005
    assert refused(one_key(spent=True, rejection_latency=0.15)).latency == 0.15


# The script.


def test_a_scripted_call_is_counted_over_all_or_for_its_key() -> None:
    plan = equal_keys(2, script=(Scripted(500, call=3), Scripted("drop", call=2, key="key-2")))
    provider = Provider(plan)
    first, second = plan.secrets

    fates = [admitted(provider, secret=secret).fate for secret in (second, first, first, second, first)]

    assert fates == ["ok", "ok", "error", "drop", "ok"]


def test_a_scripted_stretch_of_time_befalls_every_call_in_it() -> None:
    provider = one_key(script=(Scripted(529, at=3.0, until=5.0),))

    fates = [admitted(provider, now=now).fate for now in (2.9, 3.0, 4.9, 5.0)]

    assert fates == ["ok", "overloaded", "overloaded", "ok"]


def test_a_scripted_instant_befalls_the_next_call_and_no_other() -> None:
    plan = equal_keys(2, script=(Scripted("cut", at=3.0, key="key-1"),))
    provider = Provider(plan)

    assert admitted(provider, now=2.0).fate == "ok"
    assert admitted(provider, now=3.5, secret=plan.secrets[1]).fate == "ok"
    assert [admitted(provider, now=4.0).fate for _ in range(2)] == ["cut", "ok"]


def test_a_scripted_refusal_spends_nothing_and_has_the_given_headers_and_body() -> None:
    entry = Scripted(429, call=1, headers={"Retry-After": "7", "x-extra": "1"}, body={"error": {"code": "slow_down"}})
    provider = one_key(rpm=1, script=(entry,))

    answer = refused(provider)

    assert (answer.status, answer.reason) == (429, "scripted")
    assert error_of(answer) == {"code": "slow_down"}
    headers = dict(answer.headers)
    assert (headers["Retry-After"], headers["x-extra"], headers["x-ratelimit-remaining-requests"]) == ("7", "1", "1")
    admitted(provider)


@pytest.mark.parametrize("status", [400, 403, 404, 418, 429])
def test_a_scripted_refusal_without_a_body_has_one_in_the_style(status: int) -> None:
    answer = refused(one_key(script=(Scripted(status, call=1),)))

    assert answer.status == status
    assert error_of(answer)["type"]


def test_a_scripted_failure_has_spent_its_request_and_may_have_its_own_body() -> None:
    provider = one_key(rpm=1, script=(Scripted(502, call=1, body="<html>"),))

    answer = admitted(provider)

    assert (answer.status, answer.fate, answer.body) == (502, "error", "<html>")
    assert refused(provider).reason == "requests"


def test_a_stalled_call_has_no_end() -> None:
    provider = one_key(concurrency=1, script=(Scripted("stall", call=1),))

    call = admitted(provider)

    assert (call.fate, call.latency) == ("stall", math.inf)
    assert refused(provider, now=1e6).reason == "concurrency"
    provider.finish(call, 1e6, left=True)
    assert provider.statistics().total.left == 1


def test_a_hanging_call_begins_at_its_usual_pace() -> None:
    provider = one_key(latency=Latency(2.0, 0.0), script=(Scripted("hang", call=1),))

    call = admitted(provider)

    assert (call.fate, call.latency, call.status) == ("hang", 2.0, 200)


def test_a_scripted_200_saves_a_call_from_chance() -> None:
    script = tuple(Scripted(200, call=number) for number in range(1, 51))
    provider = one_key(error_rate=0.9, script=script)

    assert {admitted(provider).fate for _ in range(50)} == {"ok"}


def test_a_dead_key_and_an_unknown_one_use_up_no_script() -> None:
    plan = ProviderPlan(
        (QuotaPlan("acme"),),
        (KeyPlan("s1", "acme", dead=True), KeyPlan("s2", "acme")),
        script=(Scripted(500, at=0.0),),
    )
    provider = Provider(plan)

    assert refused(provider, secret="s1").status == 401
    assert refused(provider, secret="nobody").status == 401
    assert admitted(provider, secret="s2").status == 500


# Endings and statistics.


def test_a_call_ends_once() -> None:
    provider = one_key()
    call = admitted(provider)
    provider.finish(call, 1.0)

    with pytest.raises(ValueError, match="call 1 is not in flight"):
        provider.finish(call, 2.0)


def test_the_statistics_count_keys_quotas_and_all() -> None:
    provider = Provider(organisations({"acme": 2, "beta": 1}, rpm=2))
    first, second, other = provider.plan.secrets
    call = admitted(provider, tokens=5, secret=first, now=1.0)
    admitted(provider, tokens=7, secret=second, now=2.0)
    refused(provider, secret=first, now=3.0)
    admitted(provider, secret=other, now=4.0)
    provider.finish(call, 9.0)

    told = provider.statistics()
    acme = told.quotas["acme"]
    assert (acme.calls, acme.admitted, acme.ok, acme.in_flight, acme.rejected) == (3, 2, 1, 1, {"requests": 1})
    assert (acme.tokens, acme.most_in_flight, acme.first_at, acme.last_at, acme.refused) == (12, 2, 1.0, 9.0, 1)
    assert (told.keys["acme-1"].calls, told.keys["acme-2"].calls, told.keys["beta-1"].calls) == (2, 1, 1)
    assert (told.total.calls, told.total.most_in_flight, told.violations) == (4, 3, ())
    assert Statistics.from_dict(json.loads(json.dumps(told.to_dict()))) == told


def test_a_snapshot_does_not_change_afterwards() -> None:
    provider = one_key(rpm=1)
    admitted(provider)
    before = provider.statistics()
    refused(provider)

    assert before.total.rejected == {}


def test_no_secret_is_in_the_statistics_the_log_or_any_answer() -> None:
    log: list[tuple[Any, ...]] = []
    plan = ProviderPlan(
        (QuotaPlan("acme", rpm=60, tpm=600, concurrency=2),),
        (KeyPlan("planted-1", "acme"), KeyPlan("planted-2", "acme", dead=True)),
        error_rate=0.3,
    )
    provider = Provider(plan, log=log)
    answers = [provider.arrive(s, 100, 0.0) for s in ("planted-1", "planted-2", "planted-3") for _ in range(20)]

    shown = [repr(provider.statistics()), repr(log), json.dumps(provider.statistics().to_dict())]
    shown += [f"{answer!r} {answer.headers} {answer.body}" for answer in answers]
    assert not [text for text in shown if "planted" in text]


def test_ready_in_tells_when_and_spends_nothing() -> None:
    provider = one_key(rpm=60, request_burst=1, tpm=600, token_burst=100, concurrency=1)
    assert provider.ready_in(SECRET, 100, 0.0) == 0
    call = admitted(provider, tokens=100)
    assert provider.ready_in(SECRET, 1, 0.0) == math.inf
    provider.finish(call, 0.0)

    assert provider.ready_in(SECRET, 1, 0.0) == pytest.approx(1.0)
    assert provider.ready_in(SECRET, 50, 0.0) == pytest.approx(5.0)
    assert provider.ready_in(SECRET, 101, 0.0) == math.inf
    assert provider.ready_in("nobody", 1, 0.0) == math.inf
    assert provider.statistics().total.calls == 1


def test_a_limit_changes_at_its_time_and_a_lowered_one_is_no_violation() -> None:
    provider = one_key(rpm=600, window=1, changes_at=6.0, changes_to=0.5)

    def admitted_at(now: float) -> int:
        return sum(isinstance(provider.arrive(SECRET, 1, now), Admitted) for _ in range(20))

    assert [admitted_at(now) for now in (0.0, 1.0, 5.9, 6.0, 6.5, 7.5)] == [10, 10, 10, 1, 2, 5]
    assert provider.statistics().violations == ()


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(0, 400), st.booleans()), max_size=60),
    st.sampled_from(["continuous", "fixed"]),
    st.booleans(),
)
def test_in_no_stretch_of_time_more_is_let_in_than_the_limits_allow(
    calls: list[tuple[float, int, bool]], refill: Any, count_rejections: bool
) -> None:
    """Checked from outside: in any stretch of w seconds at most burst + rate x w, or the windows it touches."""
    provider = one_key(rpm=30, tpm=6_000, concurrency=4, refill=refill, count_rejections=count_rejections)
    now, let_in = 0.0, []
    for gap, tokens, ends in calls:
        now += gap
        answer = provider.arrive(SECRET, tokens, now)
        if isinstance(answer, Admitted):
            let_in.append((now, tokens))
            if ends:
                provider.finish(answer, now)

    for start in range(len(let_in)):
        for end in range(start, len(let_in)):
            stretch = let_in[end][0] - let_in[start][0]
            factor = 1 + stretch / 60 if refill == "continuous" else 2 + stretch // 60
            assert end - start + 1 <= 30 * factor + 1e-3
            assert sum(tokens for _, tokens in let_in[start : end + 1]) <= 6_000 * factor + 1e-3
    told = provider.statistics()
    assert told.violations == ()
    assert told.total.most_in_flight <= 4
    assert told.total.calls == told.total.admitted + told.total.refused
    assert told.total.admitted == told.total.ok + told.total.in_flight
