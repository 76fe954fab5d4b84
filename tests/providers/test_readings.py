"""Every header of the table of headers: what it tells of which limit."""

from __future__ import annotations

import pytest

from agentos.providers import Event, Reading, classify

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC


def readings(headers: object, provider: str | None = None) -> tuple[Reading, ...]:
    signal = classify(200, headers, None, now=NOW, provider=provider)
    assert signal.event is Event.OK
    return signal.readings


def reading(headers: object, provider: str | None = None) -> Reading:
    (only,) = readings(headers, provider)
    return only


def test_openai_resets_are_durations_until_full() -> None:
    told = reading(
        {
            "x-ratelimit-limit-requests": "5000",
            "x-ratelimit-remaining-requests": "4999",
            "x-ratelimit-reset-requests": "12ms",
        },
        "openai",
    )

    assert told == Reading("requests", 5000.0, 4999.0, 0.012, None, "x-ratelimit-*-requests")


@pytest.mark.parametrize(
    ("remaining", "reset", "seconds"),
    [("4999", "12ms", 0.012), ("0", "1m0s", 60.0), ("5000", "0s", 0.0), ("4999", "17.28s", 17.28)],
)
def test_openai_does_not_say_if_requests_are_by_minute_or_day(remaining: str, reset: str, seconds: float) -> None:
    """The window is left open here: the pool reads it from the numbers of the answers."""
    headers = {
        "x-ratelimit-limit-requests": "5000",
        "x-ratelimit-remaining-requests": remaining,
        "x-ratelimit-reset-requests": reset,
    }

    told = reading(headers, "openai")
    assert (told.window, told.resets_in, told.dated) == (None, seconds, False)


def test_without_a_reset_nobody_knows_whether_openai_counts_by_minute_or_day() -> None:
    assert reading({"x-ratelimit-limit-requests": "5000"}, "openai").window is None


@pytest.mark.parametrize("extra", ["tokens_usage_based", "project-tokens", "tokens-something-new"])
def test_a_dimension_of_openai_that_we_have_not_seen_is_known_by_its_words(extra: str) -> None:
    told = readings({"x-ratelimit-limit-tokens": "10", f"x-ratelimit-remaining-{extra}": "159976"}, "openai")

    assert [(each.dimension, each.remaining) for each in told] == [("tokens", None), ("tokens", 159976.0)]


@pytest.mark.parametrize(
    ("middle", "dimension"),
    [
        ("anthropic-ratelimit-requests", "requests"),
        ("anthropic-ratelimit-tokens", "tokens"),
        ("anthropic-ratelimit-input-tokens", "input_tokens"),
        ("anthropic-ratelimit-output-tokens", "output_tokens"),
        ("anthropic-priority-input-tokens", "input_tokens"),
        ("anthropic-priority-output-tokens", "output_tokens"),
    ],
)
def test_anthropic_resets_are_instants(middle: str, dimension: str) -> None:
    told = reading({f"{middle}-limit": "1000", f"{middle}-remaining": "999", f"{middle}-reset": "2027-01-15T08:00:59Z"})

    assert told == Reading(dimension, 1000.0, 999.0, 59.0, 60.0, f"{middle}-*", assumed=True, dated=True)


def test_a_reset_that_is_past_says_since_when() -> None:
    headers = {
        "anthropic-ratelimit-requests-limit": "10",
        "anthropic-ratelimit-requests-remaining": "9",
        "anthropic-ratelimit-requests-reset": "2027-01-15T07:59:50Z",
    }

    assert (reading(headers).resets_in, reading(headers).overdue) == (0.0, 10.0)


def test_a_reset_of_anthropic_that_is_past_is_now() -> None:
    assert (
        reading(
            {"anthropic-ratelimit-requests-reset": "2025-08-21T12:40:59Z", "anthropic-ratelimit-requests-limit": "1"}
        ).resets_in
        == 0.0
    )


@pytest.mark.parametrize("reset", ["1800005000", "2027-01-15T09:23:20Z"])
def test_a_subscription_tells_the_share_that_is_spent_and_not_what_remains(reset: str) -> None:
    told = reading(
        {
            "anthropic-ratelimit-unified-status": "allowed_warning",
            "anthropic-ratelimit-unified-5h-utilization": "0.0426",
            "anthropic-ratelimit-unified-5h-reset": reset,
        }
    )

    assert told == Reading("tokens", None, None, 5000.0, 18_000.0, "anthropic-ratelimit-unified-5h-*", spent=0.0426)


def test_a_window_of_a_subscription_that_is_spent_has_nothing_left() -> None:
    told = reading({"anthropic-ratelimit-unified-7d_opus-utilization": "1.0"})

    assert (told.remaining, told.window, told.spent) == (0.0, 604_800.0, 1.0)


@pytest.mark.parametrize("status", ["allowed", "Allowed_Warning "])
@pytest.mark.parametrize("window", [{}, {"anthropic-ratelimit-unified-5h-status": "rejected"}])
def test_a_subscription_that_goes_on_beyond_its_share_has_something_left(status: str, window: dict[str, str]) -> None:
    told = reading(
        {
            "anthropic-ratelimit-unified-status": status,
            "anthropic-ratelimit-unified-5h-utilization": "1.07",
            "anthropic-ratelimit-unified-5h-reset": "1800005000",
            **window,
        }
    )

    assert (told.remaining, told.spent) == (None, 1.07)


def test_a_subscription_that_is_not_allowed_any_more_has_nothing_left() -> None:
    told = reading(
        {
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-5h-utilization": "1.07",
            "anthropic-ratelimit-unified-5h-reset": "1800005000",
        }
    )

    assert (told.remaining, told.resets_in) == (0.0, 5000.0)


def test_azure_says_minus_one_and_zero_for_not_told() -> None:
    assert (
        readings(
            {"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0"},
            "azure",
        )
        == ()
    )
    assert reading({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "0"}, "azure").resets_in is None
    assert reading({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "7"}, "azure").resets_in == 7.0


def test_elsewhere_a_reset_of_zero_is_now() -> None:
    assert reading({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "0"}, "openai").resets_in == 0.0


def test_a_reset_of_zero_alone_tells_nothing() -> None:
    assert readings({"x-ratelimit-reset-tokens": "0"}) == ()


def test_groq_counts_requests_by_day_and_tokens_by_minute() -> None:
    told = readings(
        {
            "x-ratelimit-limit-requests": "14400",
            "x-ratelimit-limit-tokens": "18000",
            "x-ratelimit-reset-requests": "2m59.56s",
            "x-ratelimit-reset-tokens": "7.66s",
        },
        "groq",
    )

    assert [(each.dimension, each.window, each.resets_in) for each in told] == [
        ("requests", 86_400.0, 179.56),
        ("tokens", 60.0, 7.66),
    ]


def test_mistral_names_the_window_and_calls_requests_req() -> None:
    told = reading({"x-ratelimit-limit-req-minute": "720", "x-ratelimit-remaining-req-minute": "717"})

    assert told == Reading("requests", 720.0, 717.0, None, 60.0, "x-ratelimit-*-req-minute")


def test_mistral_tells_what_the_call_has_cost() -> None:
    signal = classify(200, {"x-ratelimit-tokens-query-cost": "52"}, None, now=NOW)

    assert (signal.provider, signal.usage) == ("mistral", {"tokens": 52.0})


@pytest.mark.parametrize(
    ("word", "window"), [("minute", 60.0), ("hour", 3600.0), ("day", 86_400.0), ("month", 2_592_000.0), ("1m", 60.0)]
)
def test_a_window_in_the_name_of_a_header_counts(word: str, window: float) -> None:
    assert reading({f"x-ratelimit-remaining-tokens-{word}": "5"}, "openai").window == window


def test_cerebras_resets_are_float_seconds() -> None:
    told = reading({"x-ratelimit-limit-requests-day": "1", "x-ratelimit-reset-requests-day": "33011.382867097855"})

    assert (told.resets_in, told.window) == (33011.382867097855, 86_400.0)


def test_fireworks_splits_prompt_and_generated_tokens() -> None:
    told = readings({"x-ratelimit-limit-tokens-prompt": "6", "x-ratelimit-limit-tokens-generated": "5"})

    assert [(each.dimension, each.limit) for each in told] == [("input_tokens", 6.0), ("output_tokens", 5.0)]


def test_together_splits_requests_and_tokens_by_the_beginning_of_the_name() -> None:
    told = readings({"x-ratelimit-remaining": "9", "x-tokenlimit-remaining": "8"})

    assert [(each.dimension, each.remaining) for each in told] == [("requests", 9.0), ("tokens", 8.0)]


def test_digitalocean_resets_are_epochs() -> None:
    assert reading({"x-ratelimit-reset-tokens": "1800000025", "x-ratelimit-limit-tokens": "1"}).resets_in == 25.0


@pytest.mark.parametrize(("resource", "window"), [("core", 3600.0), ("search", 60.0)])
def test_github_has_a_window_for_each_resource(resource: str, window: float) -> None:
    headers = {"x-ratelimit-limit": "30", "x-ratelimit-reset": "1800000060", "x-ratelimit-resource": resource}

    assert reading(headers, "github") == Reading(
        "requests", 30.0, None, 60.0, window, "x-ratelimit-*", assumed=resource == "core", dated=True
    )


def test_ietf_draft_10_gives_quota_window_remaining_and_reset() -> None:
    told = readings(
        {
            "RateLimit-Policy": '"burst";q=100;w=60,"daily";q=1000;w=86400',
            "RateLimit": '"burst";r=50;t=30',
        }
    )

    assert told == (
        Reading("requests", 100.0, 50.0, 30.0, 60.0, "ratelimit"),
        Reading("requests", 1000.0, None, None, 86_400.0, "ratelimit-policy"),
    )


def test_an_ietf_list_over_two_lines_is_one_list() -> None:
    assert len(readings([("RateLimit", '"a";r=1;t=2'), ("RateLimit", '"b";r=3;t=4')])) == 2


def test_unknown_parameters_and_the_partition_are_ignored() -> None:
    told = reading({"RateLimit": '"default";r=50;t=30;acme-x=1;pk=:cHNldWRv:'})

    assert (told.remaining, told.resets_in) == (50.0, 30.0)


@pytest.mark.parametrize("unit", ["content-bytes", "concurrent-requests"])
def test_units_that_are_none_of_our_dimensions_give_no_reading(unit: str) -> None:
    assert readings({"RateLimit-Policy": f'"x";q=10;qu="{unit}";w=60', "RateLimit": '"x";r=0;t=30'}) == ()


def test_a_unit_of_tokens_is_one_of_ours() -> None:
    assert reading({"RateLimit-Policy": '"x";q=10;qu="input-tokens";w=60'}).dimension == "input_tokens"


@pytest.mark.parametrize("value", ['"default";t=30', '"default";r=-1;t=3', '"default";r=50;t=30,', "junk junk", ""])
def test_a_malformed_ietf_field_is_ignored_whole(value: str) -> None:
    assert readings({"RateLimit": value}) == ()


def test_ietf_draft_07_is_a_dictionary() -> None:
    assert reading({"RateLimit": "limit=100, remaining=50, reset=5"}) == Reading(
        "requests", 100.0, 50.0, 5.0, None, "ratelimit"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"RateLimit": "limit=100, remaining=50, reset=5"},
        {"RateLimit-Limit": "100", "RateLimit-Remaining": "50", "RateLimit-Reset": "5"},
    ],
    ids=["draft 07", "draft 06"],
)
def test_an_older_draft_names_the_window_of_each_limit_in_its_policy(fields: dict[str, str]) -> None:
    told = reading({**fields, "RateLimit-Policy": "10;w=1, 100;w=60, 5000;w=3600"})

    assert (told.limit, told.remaining, told.resets_in, told.window) == (100.0, 50.0, 5.0, 60.0)


def test_a_policy_of_another_limit_names_no_window() -> None:
    headers = {"RateLimit-Policy": "10;w=1", "RateLimit": "limit=100, remaining=50, reset=5"}

    assert reading(headers).window is None


@pytest.mark.parametrize("reset", ["30", "1800000030"])
def test_ietf_draft_03_has_three_headers_and_servers_send_epochs_too(reset: str) -> None:
    told = reading({"RateLimit-Limit": "100, 100;w=60", "RateLimit-Remaining": "50", "RateLimit-Reset": reset})

    dated = reset == "1800000030"  # an instant: it does not depend on when the call arrived
    assert told == Reading("requests", 100.0, 50.0, 30.0, 60.0, "ratelimit-*", dated=dated)


@pytest.mark.parametrize(
    "name", ["x-ratelimit-over-limit", "x-ratelimit-limit-images", "x-ratelimit-used", "x-ratelimit"]
)
def test_what_is_about_something_else_is_left_alone(name: str) -> None:
    assert readings({name: "5"}) == ()


def test_the_date_of_the_answer_cancels_a_clock_that_is_wrong() -> None:
    an_hour_late = "Fri, 15 Jan 2027 09:00:00 GMT"
    headers = {
        "Date": an_hour_late,
        "anthropic-ratelimit-requests-reset": "2027-01-15T09:00:30Z",
        "anthropic-ratelimit-requests-limit": "1",
    }

    assert reading(headers).resets_in == 30.0
    assert (
        classify(429, {"Date": an_hour_late, "Retry-After": "Fri, 15 Jan 2027 09:00:30 GMT"}, None, now=NOW).delay
        == 30.0
    )


def test_a_date_of_whole_seconds_does_not_make_a_reset_later() -> None:
    """Some servers write a Date that is two seconds old; a reset that many seconds too late wastes a short window."""
    headers = {"X-RateLimit-Limit": "40", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000004.5"}

    told = classify(200, {**headers, "Date": "Fri, 15 Jan 2027 08:00:00 GMT"}, None, now=NOW + 1.9).readings[0]

    assert told.resets_in == pytest.approx(2.6)


@pytest.mark.parametrize(
    ("reset", "told"),
    [
        ("1800000004.6", 4.0),  # an instant, half a second after that of Retry-After
        ("1800000005.1", 5.1),  # another instant
        ("1800000003.9", 3.9),
        ("4.6", 4.6),  # the time until a bucket is full, which is later than the next call that it admits
        ("4.6s", 4.6),
    ],
)
def test_an_instant_of_a_reset_gives_way_to_a_retry_after_that_is_a_little_sooner(reset: str, told: float) -> None:
    headers = {"X-RateLimit-Limit": "40", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset, "Retry-After": "4"}

    assert reading(headers).resets_in == pytest.approx(told)


def test_a_date_to_retry_after_counts_from_the_date_of_the_answer() -> None:
    headers = {"Date": "Fri, 15 Jan 2027 08:00:00 GMT", "Retry-After": "Fri, 15 Jan 2027 08:00:04 GMT"}

    assert classify(429, headers, None, now=NOW + 0.9).delay == 4.0


def test_a_date_that_is_junk_leaves_the_clock_as_it_is() -> None:
    headers = {"Date": "yesterday", "Retry-After": "Fri, 15 Jan 2027 08:00:30 GMT"}

    assert classify(429, headers, None, now=NOW).delay == 30.0


def test_nothing_left_after_a_success_is_a_reading_and_no_event() -> None:
    told = reading({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "40s"})

    assert (told.remaining, told.resets_in) == (0.0, 40.0)


def test_something_left_and_a_reset_is_no_cooldown() -> None:
    signal = classify(200, {"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "40s"}, None, now=NOW)

    assert (signal.event, signal.delay) == (Event.OK, None)
