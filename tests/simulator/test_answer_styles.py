"""Answers in each style and dialect, header by header."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentos.simulator import Provider, Refused, equal_keys
from agentos.simulator.answer_facts import Facts
from agentos.simulator.answer_styles import plain_error

SECRET = equal_keys(1).secrets[0]
NOON = 1_750_000_000.0  # 2025-06-15T15:06:40Z


def answers(tokens: int = 400, **options: Any) -> tuple[Any, Any]:
    """An answer that was let in, and one that was refused, of a provider with a limit of each kind."""
    plan = equal_keys(1, rpm=60, tpm=30_000, request_burst=1, **options)
    provider = Provider(plan, epoch=NOON)
    return provider.arrive(SECRET, tokens, 10.0), provider.arrive(SECRET, tokens, 10.25)


def of_limits(answer: Any) -> list[tuple[str, str]]:
    """The headers that are about limits."""
    return [(name, value) for name, value in answer.headers if not name.endswith("request-id")]


def test_openai_tells_everything() -> None:
    ok, limited = answers()

    assert dict(ok.headers) == {
        "x-request-id": "req_000000000001",
        "openai-organization": "quota-1",
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "30000",
        "x-ratelimit-remaining-tokens": "29600",
        "x-ratelimit-reset-tokens": "800ms",
    }
    assert dict(limited.headers) == {
        "x-request-id": "req_000000000002",
        "openai-organization": "quota-1",
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "750ms",
        "x-ratelimit-limit-tokens": "30000",
        "x-ratelimit-remaining-tokens": "29725",
        "x-ratelimit-reset-tokens": "550ms",
        "retry-after": "1",
        "retry-after-ms": "750",
    }
    assert json.loads(limited.body) == {
        "error": {
            "message": "Rate limit reached for this model in organization quota-1 on requests per min (RPM): "
            "Limit 60, Used 60, Requested 1. Please try again in 750ms.",
            "type": "requests",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }


def test_anthropic_tells_everything() -> None:
    ok, limited = answers(style="anthropic")

    assert dict(ok.headers) == {
        "request-id": "req_000000000001",
        "anthropic-organization-id": "quota-1",
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2025-06-15T15:06:51Z",
        "anthropic-ratelimit-tokens-limit": "30000",
        "anthropic-ratelimit-tokens-remaining": "30000",  # told by the thousand
        "anthropic-ratelimit-tokens-reset": "2025-06-15T15:06:51Z",
    }
    assert dict(limited.headers)["retry-after"] == "1"
    assert "retry-after-ms" not in dict(limited.headers)
    assert json.loads(limited.body) == {
        "type": "error",
        "error": {
            "type": "rate_limit_error",
            "message": "This request would exceed the limit of your organization of 60 requests per minute.",
        },
        "request_id": "req_000000000002",
    }


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_the_smaller_dialects_tell_when_to_come_back_or_nothing_at_all(style: Any) -> None:
    ok, limited = answers(style=style, dialect="retry-after")
    assert (of_limits(ok), of_limits(limited)) == ([], [("retry-after", "1")])
    assert "60" not in limited.body

    ok, limited = answers(style=style, dialect="none")
    assert (of_limits(ok), of_limits(limited)) == ([], [])
    assert "60" not in limited.body


@pytest.mark.parametrize("dialect", ["full", "retry-after", "none"])
@pytest.mark.parametrize(("style", "name"), [("openai", "x-request-id"), ("anthropic", "request-id")])
def test_every_answer_has_the_id_of_its_request(style: Any, name: str, dialect: Any) -> None:
    ids = [dict(answer.headers)[name] for answer in answers(style=style, dialect=dialect)]

    assert ids == ["req_000000000001", "req_000000000002"]


def test_a_style_may_be_chosen_for_one_call() -> None:
    provider = Provider(equal_keys(1, spent=True))

    openai, anthropic = provider.arrive(SECRET, 1, 0.0), provider.arrive(SECRET, 1, 0.0, style="anthropic")

    assert (openai.status, anthropic.status) == (429, 400)
    assert dict(anthropic.headers)["anthropic-organization-id"] == "quota-1"


@pytest.mark.parametrize(
    ("options", "stated", "refused"),
    [
        (
            {"rpm": 600, "window": 1},
            {"x-ratelimit-limit-requests": "10", "x-ratelimit-remaining-requests": "9"}
            | {"x-ratelimit-reset-requests": "100ms", "openai-organization": "quota-1"},
            {"retry-after": "1", "retry-after-ms": "100"},
        ),
        (
            {"rpm": 600, "window": 1, "dialect": "compatible"},
            {"x-ratelimit-limit-requests": "10", "x-ratelimit-remaining-requests": "9"}
            | {"x-ratelimit-reset-requests": "100ms"},
            {"retry-after": "1"},
        ),
        (
            {"rpm": 120, "window": 5, "refill": "fixed", "dialect": "x-ratelimit"},
            {"x-ratelimit-limit": "10", "x-ratelimit-remaining": "9", "x-ratelimit-reset": "5"},
            {"retry-after": "5"},
        ),
        (
            {"rpm": 150, "window": 4, "refill": "fixed", "dialect": "ietf"},
            {"ratelimit-policy": '"requests";q=10;w=4', "ratelimit": '"requests";r=9;t=4'},
            {"retry-after": "4"},
        ),
        (
            {"rpm": 600, "window": 1, "refill": "gcra", "dialect": "ietf"},
            {"ratelimit-policy": '"requests";q=10;w=1', "ratelimit": '"requests";r=9;t=1'},
            {"retry-after": "1"},
        ),
        (
            {"daily_requests": 10, "dialect": "ietf"},
            {"ratelimit-policy": '"requests";q=10;w=86400', "ratelimit": '"requests";r=9;t=86400'},
            {"retry-after": "86400"},
        ),
    ],
)
def test_a_limit_is_stated_in_its_own_window(
    options: dict[str, Any], stated: dict[str, str], refused: dict[str, str]
) -> None:
    provider = Provider(equal_keys(1, **options))

    first, *_, last = (provider.arrive(SECRET, 1, 0.0) for _ in range(11))

    assert dict(of_limits(first)) == stated
    assert isinstance(last, Refused)
    assert dict(of_limits(last)).items() >= refused.items()
    assert "per min" not in last.body


def test_a_day_limit_alone_stands_in_the_place_of_the_requests() -> None:
    provider = Provider(equal_keys(1, daily_requests=2))
    headers = dict(provider.arrive(SECRET, 1, 3600.0).headers)

    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert headers["x-ratelimit-reset-requests"] == "23h0m0s"
    provider.arrive(SECRET, 1, 3600.0)
    limited = provider.arrive(SECRET, 1, 3600.0)
    assert isinstance(limited, Refused)
    assert "requests per day (RPD): Limit 2, Used 2, Requested 1. Please try again in 23h0m0s" in limited.body


def test_an_unauthorized_answer_tells_nothing_of_limits() -> None:
    provider = Provider(equal_keys(1, rpm=60))

    assert dict(provider.arrive("nobody", 1, 0.0).headers) == {"x-request-id": "req_000000000001"}


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 418, 422, 429, 500, 502, 503, 504, 529])
def test_every_status_has_a_body_in_each_style(status: int) -> None:
    openai = json.loads(plain_error(Facts("openai", "none", False, 1, 0.0), status))
    anthropic = json.loads(plain_error(Facts("anthropic", "none", False, 1, 0.0), status))
    gemini = json.loads(plain_error(Facts("gemini", "none", False, 1, 0.0), status))

    assert set(openai["error"]) == {"message", "type", "param", "code"}
    assert (anthropic["type"], set(anthropic["error"])) == ("error", {"type", "message"})
    assert (gemini["error"]["code"], set(gemini["error"])) == (status, {"code", "message", "status"})
    assert (openai["error"]["type"] == "server_error") is (status >= 500)
