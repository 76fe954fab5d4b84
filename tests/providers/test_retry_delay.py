"""How long: whom to believe of those that name a delay, and when a limit is one of hours or days."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from agentos.providers import Event, Signal, classify
from agentos.providers.answers.calendar_reset import load_zone, until_midnight, until_next_month

NOW = 1_800_014_400.0  # 2027-01-15 12:00:00 UTC, 04:00 in California
HOUR = 3600.0


def refused(headers: object = None, body: object = None, status: int = 429, **known: Any) -> Signal:
    return classify(status, headers, body, now=NOW, **known)


def error(message: str = "", **fields: object) -> dict[str, object]:
    return {"error": {"message": message, **fields}}


def resets(**dimensions: tuple[str, str]) -> dict[str, str]:
    headers = {}
    for dimension, (remaining, reset) in dimensions.items():
        headers[f"x-ratelimit-remaining-{dimension}"] = remaining
        headers[f"x-ratelimit-reset-{dimension}"] = reset
    return headers


LADDER: list[tuple[dict[str, str], dict[str, object] | None, float]] = [
    ({"retry-after-ms": "1500", "retry-after": "2"}, error("try again in 9s"), 1.5),
    ({"x-ms-retry-after-ms": "1500", "retry-after": "2"}, None, 1.5),
    ({"retry-after": "2", **resets(requests=("0", "30s"))}, error("try again in 9s"), 2.0),
    (resets(requests=("0", "30s")), error("try again in 9s"), 9.0),
    (resets(requests=("0", "30s"), tokens=("5", "50s")), None, 30.0),
    (resets(requests=("0", "30s"), tokens=("0", "50s")), None, 50.0),
    (resets(requests=("5", "30s"), tokens=("5", "50s")), None, 50.0),
]


@pytest.mark.parametrize(("headers", "body", "delay"), LADDER)
def test_the_order_of_trust(headers: dict[str, str], body: object, delay: float) -> None:
    assert refused(headers, body).delay == delay


@pytest.mark.parametrize("junk", ["", "soon", "-5", "nan", "inf", "1m2h", "9999999"])
def test_junk_is_passed_over_for_the_next_that_tells(junk: str) -> None:
    headers = {"retry-after-ms": "junk", "retry-after": junk}

    assert refused(headers, error("Please try again in 9s")).delay == 9.0
    assert refused(headers).delay is None


def test_a_refusal_to_retry_takes_the_longest_delay_that_is_told() -> None:
    headers = {"x-should-retry": "false", "retry-after-ms": "1500", "retry-after": "2"}

    signal = refused(headers, error("try again in 9s"))

    assert signal.delay == 9.0
    assert "header x-should-retry: false" in signal.evidence
    assert refused({"x-should-retry": "false"}).delay is None
    assert refused({**headers, "x-should-retry": "true"}).delay == 1.5


def test_a_zero_means_that_it_may_go_now() -> None:
    assert refused({"retry-after": "0"}, error("try again in 9s")).delay == 0.0


@pytest.mark.parametrize("value", ["277403", "601", "3.2d", "Mon, 18 Jan 2027 12:00:00 GMT"])
def test_longer_than_ten_minutes_is_parked_and_never_a_pause(value: str) -> None:
    assert refused({"retry-after": value}).event is Event.PARKED


@pytest.mark.parametrize("value", ["600", "0.5", "9m"])
def test_up_to_ten_minutes_is_a_pause(value: str) -> None:
    assert refused({"retry-after": value}).event is Event.LIMITED


def test_beyond_35_days_is_unknown() -> None:
    signal = refused({"retry-after": str(36 * 86_400)})

    assert (signal.event, signal.delay) == (Event.LIMITED, None)


@pytest.mark.parametrize(
    ("message", "delay"),
    [
        ("Please try again in 2.05s. Visit the site.", 2.05),
        ("Please try again in 6m0s.", 360.0),
        ("Please try again in 1h2m3.5s.", 3723.5),
        ("Please try again in 12ms.", 0.012),
        ("Please retry in 58.934310785s.", 58.934310785),
        ("Please retry after 37 seconds.", 37.0),
        ("Please retry after 1 second", 1.0),
        ("Please wait 5 minutes before retrying", 300.0),
        ("Please wait 250 milliseconds", 0.25),
        ("Please wait 250 ms", 0.25),
        ("try again in about 2 hours", 7200.0),
        ("wait for 1 day", 86_400.0),
        ("Please try again later.", None),
        ("Please try again in 5 moons.", None),
        ("Please try again in a while", None),
        ("retry 3 times", None),
    ],
)
def test_a_delay_in_the_words_of_a_message(message: str, delay: float | None) -> None:
    assert refused(body=error(message)).delay == (None if delay is None else pytest.approx(delay))


@pytest.mark.parametrize(
    ("used", "requested", "delay"),
    [(14_567, 24_754, 18.642), (29_204, 1_821, 2.05), (0, 100, 0.0)],
)
def test_openai_s_own_arithmetic_where_it_names_no_delay(used: int, requested: int, delay: float) -> None:
    message = f"Rate limit reached on tokens per min (TPM): Limit 30000, Used {used}, Requested {requested}."

    assert refused(body=error(message, code="rate_limit_exceeded")).delay == pytest.approx(delay)
    assert refused(body=error(message + " Please try again in 3s.")).delay == 3.0


def test_the_arithmetic_of_a_day() -> None:
    message = "Rate limit reached on requests per day (RPD): Limit 200, Used 200, Requested 1."

    signal = refused(body=error(message, type="requests"), provider="openai")

    assert (signal.event, signal.delay, signal.dimensions) == (Event.LIMITED, 432.0, ("requests",))


def gemini(quota_id: str = "", retry_delay: object = None, text: str = "") -> dict[str, object]:
    details: list[object] = []
    if quota_id:
        details.append(
            {"@type": "x/google.rpc.QuotaFailure", "violations": [{"quotaId": quota_id, "quotaValue": "10"}]}
        )
    if retry_delay is not None:
        details.append({"@type": "x/google.rpc.RetryInfo", "retryDelay": retry_delay})
    return error(text, status="RESOURCE_EXHAUSTED", details=details)


@pytest.mark.parametrize(
    ("structured", "text", "delay"),
    [
        ("58s", "Please retry in 58.93s.", 58.93),
        ("59s", "Please retry in 58.93s.", 59.0),
        ("58s", "", 58.0),
        (None, "Please retry in 58.93s.", 58.93),
        ({"seconds": 58}, "", 58.0),
        ({"seconds": "58"}, "", 58.0),
    ],
)
def test_of_the_structured_delay_and_the_words_the_longer_counts(structured: object, text: str, delay: float) -> None:
    assert refused(body=gemini("GenerateRequestsPerMinute", structured, text)).delay == pytest.approx(delay)


def test_a_short_delay_is_misleading_where_gemini_s_day_is_used_up() -> None:
    signal = refused(body=gemini("GenerateRequestsPerDayPerProjectPerModel-FreeTier", "5s"))

    assert (signal.event, signal.delay) == (Event.PARKED, 20 * HOUR)  # midnight in California
    assert "rule: PerDay" in signal.evidence


def test_a_long_delay_is_believed_where_gemini_s_day_is_used_up() -> None:
    assert refused(body=gemini("GenerateRequestsPerDay", "43200s")).delay == 12 * HOUR


def test_a_day_and_a_minute_used_up_are_a_day() -> None:
    body = gemini("GenerateRequestsPerMinute", "5s")
    body["error"]["details"] += gemini("GenerateInputTokensPerDay")["error"]["details"]  # type: ignore[index]

    signal = refused(body=body)

    assert (signal.event, signal.dimensions) == (Event.PARKED, ("requests", "input_tokens"))


def test_the_provider_s_day_is_measured_by_its_own_date() -> None:
    headers = {"Date": "Fri, 15 Jan 2027 13:00:00 GMT"}

    assert refused(headers, gemini("GenerateRequestsPerDay", "5s")).delay == 19 * HOUR


def test_where_the_zone_is_unknown_the_day_is_that_of_utc() -> None:
    assert load_zone("Nowhere/At_All") is datetime.UTC
    assert until_midnight(NOW, "Nowhere/At_All") == 12 * HOUR


@pytest.mark.parametrize(
    ("here", "hours"),
    [
        ("2027-03-14T00:30:00-08:00", 22.5),  # the clocks go forward
        ("2027-11-07T00:30:00-07:00", 24.5),  # and back
        ("2027-01-15T00:00:00-08:00", 24.0),
    ],
)
def test_a_day_has_the_hours_it_has_there(here: str, hours: float) -> None:
    wall = datetime.datetime.fromisoformat(here).timestamp()

    assert until_midnight(wall, "America/Los_Angeles") == hours * HOUR


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ("Rate limit exceeded: free-models-per-day", Event.PARKED),
        ("requests per day exceeded", Event.PARKED),
        ("Your daily quota is used up", Event.PARKED),
        ("weekly limit reached", Event.PARKED),
        ("monthly limit reached", Event.PARKED),
        ("requests per minute exceeded", Event.LIMITED),
        ("come back another day", Event.LIMITED),
    ],
)
def test_a_long_window_is_known_by_its_name(message: str, event: Event) -> None:
    assert refused(body=error(message)).event is event


def test_openrouter_s_day_ends_at_midnight_utc() -> None:
    signal = refused(body=error("free-models-per-day"), provider="openrouter")

    assert (signal.event, signal.delay) == (Event.PARKED, 12 * HOUR)


@pytest.mark.parametrize("reset", ["1800057600000", 1_800_057_600_000, "1800057600"])
def test_openrouter_hands_headers_on_inside_the_body(reset: object) -> None:
    body = error(
        "free-models-per-day", metadata={"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}}
    )

    signal = refused(body=body)

    assert (signal.provider, signal.event, signal.delay) == ("openrouter", Event.PARKED, 12 * HOUR)
    assert signal.dimensions == ("requests",)


@pytest.mark.parametrize(
    ("provider", "event"), [("openai", Event.LIMITED), ("groq", Event.LIMITED), ("default", Event.PARKED)]
)
def test_a_day_that_refills_all_day_long_is_worth_a_short_wait(provider: str, event: Event) -> None:
    signal = refused({"retry-after": "30"}, error("on requests per day (RPD)"), provider=provider)

    assert (signal.event, signal.delay) == (event, 30.0)


UNIFIED = "anthropic-ratelimit-unified-"


def unified(**fields: str) -> dict[str, str]:
    return {UNIFIED + name.replace("__", "-"): value for name, value in fields.items()}


AT = {hours: str(int(NOW + hours * HOUR)) for hours in (2, 50, 60)}


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        (
            unified(
                reset=AT[60],
                **{"5h__reset": AT[2], "5h__utilization": "1.0", "7d__reset": AT[50], "7d__utilization": "0.5"},
            ),
            2,
        ),
        (
            unified(
                reset=AT[60],
                **{"5h__reset": AT[2], "5h__utilization": "1.0", "7d__reset": AT[50], "7d__utilization": "1.1"},
            ),
            50,
        ),
        (unified(**{"5h__reset": AT[2], "7d__reset": AT[50], "representative-claim": "seven_day"}), 50),
        (unified(**{"7d__reset": AT[50], "7d_opus__reset": AT[60], "representative-claim": "seven_day_opus"}), 60),
        (unified(**{"5h__reset": AT[2], "5h__status": "rejected", "7d__reset": AT[50]}), 2),
        (unified(reset=AT[60]), 60),
    ],
)
def test_a_subscription_that_is_rejected_waits_for_the_window_that_is_spent(
    headers: dict[str, str], delay: float
) -> None:
    headers = {**headers, UNIFIED + "status": "rejected", "retry-after": "5"}

    signal = refused(headers)

    assert (signal.event, signal.delay) == (Event.PARKED, delay * HOUR)
    assert signal.evidence[0] == f"header {UNIFIED}status: rejected"


def test_a_subscription_that_is_rejected_without_a_reset_waits_as_told() -> None:
    assert refused({UNIFIED + "status": "rejected", "retry-after": "277403"}).delay == 277_403.0
    assert refused({UNIFIED + "status": "rejected"}).delay is None


@pytest.mark.parametrize(("claim", "scoped"), [("", False), ("five_hour", False), ("seven_day_opus", True)])
def test_a_window_of_a_subscription_is_for_all_models_unless_it_names_one(claim: str, scoped: bool) -> None:
    headers = {UNIFIED + "status": "rejected", UNIFIED + "representative-claim": claim}

    assert refused(headers, model="some-model").scoped is scoped


def test_a_subscription_that_is_allowed_is_limited_for_a_moment() -> None:
    signal = refused({UNIFIED + "status": "allowed", "retry-after": "5"})

    assert (signal.event, signal.delay) == (Event.LIMITED, 5.0)


def test_a_spend_limit_lasts_until_the_first_of_the_month() -> None:
    body = {
        "type": "error",
        "error": {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
    }

    signal = refused(body=body)

    assert (signal.event, signal.delay) == (Event.MONEY_GONE, (16 * 24 + 12) * HOUR)
    assert until_next_month(datetime.datetime(2027, 12, 31, 23, tzinfo=datetime.UTC).timestamp()) == HOUR


def test_the_date_on_which_access_comes_back_is_read() -> None:
    message = "You have reached your specified API usage limits. You will regain access on 2027-01-16 at 00:00 UTC."

    assert refused(body=error(message), status=400).delay == 12 * HOUR


@pytest.mark.parametrize(("told", "delay"), [("20", None), ("3599", None), ("7200", 7200.0)])
def test_money_does_not_come_back_within_the_hour(told: str, delay: float | None) -> None:
    assert refused({"retry-after": told}, error(code="insufficient_quota")).delay == delay


@pytest.mark.parametrize("status", [401, 403, 404, 413, 422])
def test_where_waiting_does_not_help_no_delay_is_given(status: int) -> None:
    signal = refused({"retry-after": "20"}, error("x"), status=status, provider="openai")

    assert signal.delay is None


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 504, 529])
def test_a_busy_provider_is_waited_for_as_told_and_never_until_a_reset(status: int) -> None:
    headers = resets(requests=("0", "30s"))

    assert refused(headers, status=status).delay is None
    assert refused({**headers, "retry-after": "4"}, status=status).delay == 4.0


def test_a_guess_is_never_for_hours() -> None:
    """Something remains of all: a reset in seconds may be the one, a day's reset would be a guess that costs a day."""
    signal = refused(resets(requests=("500", "33011.38"), tokens=("10", "41.5")))

    assert (signal.event, signal.delay) == (Event.LIMITED, 41.5)
    assert refused(resets(requests=("500", "33011.38"))).delay is None


def test_a_reset_of_which_nothing_else_is_told_may_be_for_hours() -> None:
    signal = refused({"ratelimit-reset": "3000"}, provider="default")

    assert (signal.event, signal.delay) == (Event.PARKED, 3000.0)


def test_the_dimension_that_the_body_names_is_waited_for() -> None:
    headers = resets(requests=("50", "55s"), tokens=("10", "20s"))

    signal = refused(headers, error("x", type="tokens"))

    assert (signal.delay, signal.dimensions) == (20.0, ("tokens",))


def test_what_nothing_is_left_of_is_what_there_was_too_much_of() -> None:
    assert refused(resets(requests=("5", "1s"), tokens=("0", "9s"))).dimensions == ("tokens",)
    assert refused({"retry-after": "5"}).dimensions == ()


def test_the_policies_that_were_violated_are_waited_for() -> None:
    headers = {"RateLimit": '"burst";r=3;t=30, "slow";r=2;t=500'}
    body = {"type": "about:blank#quota-exceeded", "violated-policies": ["burst", "unknown", 5]}

    assert refused(headers, body).delay == 30.0


def test_retry_after_beats_the_reset_of_an_ietf_field() -> None:
    assert refused({"RateLimit": '"x";r=0;t=30', "Retry-After": "5"}).delay == 5.0


def test_nothing_left_of_a_month_without_a_reset_is_parked() -> None:
    signal = refused({"x-ratelimit-remaining-tokens-month": "0"})

    assert (signal.event, signal.delay) == (Event.PARKED, None)


@pytest.mark.parametrize(
    ("message", "dimensions"),
    [
        ("on tokens per min (TPM)", ("tokens",)),
        ("on requests per min (RPM)", ("requests",)),
        ("rate limit of 40,000 input tokens per minute", ("input_tokens",)),
        ("rate limit of 8,000 output tokens per minute", ("output_tokens",)),
        ("exceeded token rate limit of your tier", ("tokens",)),
        ("exceeded call rate limit of your tier", ("requests",)),
        ("Too many tokens, please wait", ("tokens",)),
        ("Number of concurrent connections has exceeded your rate limit", ()),
        ("Something else", ()),
    ],
)
def test_the_words_name_the_dimension(message: str, dimensions: tuple[str, ...]) -> None:
    assert refused(body=error(message)).dimensions == dimensions


def test_an_answer_means_the_same_whatever_came_before() -> None:
    """That the later deadline of two counts, and that an old success clears nothing, is for the pool to see to."""
    first, second = refused({"retry-after": "30"}), refused({"retry-after": "5"})

    assert (first.delay, second.delay, refused({"retry-after": "30"})) == (30.0, 5.0, first)


def test_the_evidence_names_header_field_rule_and_status() -> None:
    body = error("Limit 30000, Used 29204, Requested 1821", type="tokens", code="rate_limit_exceeded")

    assert refused({"retry-after": "20"}, body).evidence == (
        "body error.code: rate_limit_exceeded",
        "header retry-after: 20",
        "status 429",
    )
    assert refused({"retry-after": "20"}).why == "header retry-after: 20; status 429"
