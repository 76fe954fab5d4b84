"""Which event an answer is: every status, code and wording of the tables of bodies and events."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.providers import Event, Signal, classify

NOW = 1_800_000_000.0

A, B, C, D, E = Event.LIMITED, Event.PARKED, Event.NOT_ENTITLED, Event.NEVER_FITS, Event.MONEY_GONE
F, G, H, I, J = Event.KEY_DEAD, Event.BUSY, Event.RAMP, Event.NETWORK, Event.CALLER  # noqa: E741 - as the table calls them


def read(status: int | None, body: object = None, headers: object = None, **known: Any) -> Signal:
    return classify(status, headers, body, now=NOW, **known)


def error(message: str = "", **fields: object) -> dict[str, object]:
    return {"error": {"message": message, **fields}}


@pytest.mark.parametrize(
    ("status", "event"),
    [
        *((status, Event.OK) for status in (100, 200, 201, 204, 206, 299, 304)),
        *((status, J) for status in (301, 302, 307, 400, 404, 405, 406, 410, 412, 415, 418, 422, 424, 451, 501, 505)),
        *((status, G) for status in (408, 409, 425, 498, 499, 500, 502, 503, 504, 520, 524, 529, 599)),
        *((status, I) for status in (None, 407, 511, 0, -1, 99, 600, 10**30)),
        (401, F),
        (402, E),
        (403, J),
        (413, D),
        (429, A),
    ],
)
def test_a_status_with_nothing_else(status: int | None, event: Event) -> None:
    signal = read(status)

    assert (signal.event, signal.delay, signal.dimensions) == (event, None, ())


@pytest.mark.parametrize(("status", "event"), [("429", A), (True, I), ("200 OK", I), (4.29, I), (None, I), ("٤٢٩", I)])
def test_a_status_of_another_type(status: Any, event: Event) -> None:
    assert read(status).event is event


@pytest.mark.parametrize(
    ("status", "code", "event"),
    [
        (401, "mismatched_organization", J),
        (401, "mismatched_project", J),
        (401, "invalid_organization", J),
        (401, "invalid_project", J),
        (401, "no_organization", F),
        (429, "rate_limit_exceeded", A),
        (429, "insufficient_quota", E),
        (429, "credit_balance_exhausted", E),
        (429, "billing_hard_limit_reached", E),
        (400, "billing_hard_limit_reached", E),
        (403, "billing_not_active", E),
        (429, "slow_down", H),
        (503, "slow_down", H),
        (401, "invalid_api_key", F),
        (403, "account_deactivated", F),
        (403, "token_revoked", F),
        (404, "model_not_found", C),
        (403, "model_not_found", C),
        (413, "request_too_large", D),
        (529, "overloaded_error", G),
        (429, "overloaded_error", G),
        (503, "overloaded", G),
        (400, "server_error", J),
        (400, "context_length_exceeded", J),
        (403, "unsupported_country_region_territory", I),
        (401, "ip_not_authorized", I),
        (429, "something_nobody_has_seen", A),
    ],
)
@pytest.mark.parametrize("place", ["code", "type"])
def test_a_code_decides_wherever_it_stands(status: int, code: str, event: Event, place: str) -> None:
    assert read(status, error(**{place: code})).event is event
    assert read(status, error(**{place: code.upper()})).event is event


def test_the_more_special_code_decides() -> None:
    both = error(type="rate_limit_error", details={"error_code": "enforced_spend_limit_reached"})

    assert read(429, both).event is E
    assert read(429, error(type="insufficient_quota", code=None)).event is E


@pytest.mark.parametrize(
    ("status", "message", "event"),
    [
        (400, "Your credit balance is too low to access the Anthropic API.", E),
        (400, "You have reached your specified API usage limits.", E),
        (403, "Your team has either used all available credits or reached its monthly spending limit.", E),
        (429, "Your organization has reached its spend limit.", E),
        (400, "API key not valid. Please pass a valid API key.", F),
        (400, "API key expired. Please renew the API key.", F),
        (403, "Your API key was reported as leaked.", F),
        (403, "This organization has been disabled.", F),
        (403, "Your account has been suspended.", F),
        (403, "OAuth token has been revoked.", F),
        (400, "Unexpected token is invalid at position 3", J),
        (400, "This model does not accept an account field that is expired", J),
        (401, "You didn't provide an API key.", J),
        (401, "x-api-key header is required", J),
        (401, "invalid x-api-key", F),
        (400, "User location is not supported for the API use.", I),
        (403, "Access denied due to Virtual Network/Firewall rules.", I),
        (401, "Your IP is not authorized to access this resource.", I),
        (403, "Input was flagged by moderation.", J),
        (403, "You do not have access to the model.", C),
        (403, "Your API key does not have permission to use the specified resource.", J),
        (404, "models/no-such is not found for API version v1beta", C),
        (404, "model: no-such-model", C),
        (404, "Invalid URL (POST /v1/chat/completion)", J),
        (429, "The engine is currently overloaded, please try again later.", G),
        (429, "Your traffic ran into acceleration limits.", H),
        (429, "This request would exceed your maximum usage increase rate for input tokens per minute.", H),
        (429, "Too many requests, please slow down.", A),
        (422, "credit balance is too low", J),
        (500, "Your API key is invalid", G),
    ],
)
def test_words_decide_where_no_code_does(status: int, message: str, event: Event) -> None:
    assert read(status, error(message)).event is event
    assert read(status, {"message": message}).event is event


@pytest.mark.parametrize(
    ("body", "model", "event"),
    [
        (error("Permission denied.", status="PERMISSION_DENIED"), None, J),
        (error("Permission denied.", status="PERMISSION_DENIED"), "some-model", J),
        (error("No access to this model."), None, C),
        (error("No access to this model."), "some-model", C),
        (error("Not for you.", code="model_not_found"), "some-model", C),
        (b"<html><body>Access denied</body></html>", None, I),
        (b"<html><body>Access denied</body></html>", "some-model", I),
        (b"", None, J),
        (b"", "some-model", J),
        (b"Forbidden", None, J),
        (b"Forbidden", "some-model", J),
    ],
)
def test_a_403_never_kills_a_key_without_being_told_so(body: object, model: str | None, event: Event) -> None:
    assert read(403, body, model=model).event is event


def test_a_page_that_the_provider_itself_has_sent_is_no_proxy() -> None:
    assert read(403, b"<html></html>", {"anthropic-organization-id": "x"}).event is J


def test_a_page_is_known_by_its_type_too() -> None:
    assert read(403, None, {"Content-Type": "text/html; charset=utf-8"}).event is I


@pytest.mark.parametrize(
    ("headers", "message", "event", "delay"),
    [
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000100"}, "API rate limit exceeded", A, 100.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800001800"}, "API rate limit exceeded", B, 1800.0),
        ({"x-ratelimit-remaining": "9", "x-ratelimit-reset": "1800001800"}, "secondary rate limit", A, 60.0),
        ({"x-ratelimit-remaining": "9", "retry-after": "90"}, "something", A, 90.0),
        ({"x-ratelimit-remaining": "9"}, "Resource not accessible by token", J, None),
    ],
)
def test_github_says_403_for_a_limit(headers: dict[str, str], message: str, event: Event, delay: float | None) -> None:
    signal = read(403, {"message": message}, headers, url="https://api.github.com/search/code")

    assert (signal.event, signal.delay) == (event, delay)


def test_elsewhere_a_403_is_no_limit_because_a_minute_happens_to_be_used_up() -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "5s"}

    assert read(403, error("No."), headers, provider="openai").event is J


@pytest.mark.parametrize(
    ("limit", "used", "requested", "event"),
    [
        ("30000", "29204", "1821", A),
        ("30000", "0", "30001", D),
        ("30,000", "0", "31,000", D),
        ("30000", "0", "30000", A),
    ],
)
def test_a_request_larger_than_the_limit_never_fits(limit: str, used: str, requested: str, event: Event) -> None:
    message = f"Rate limit reached: Limit {limit}, Used {used}, Requested {requested}."

    signal = read(429, error(message, code="rate_limit_exceeded"), {"retry-after": "5"})

    assert signal.event is event
    assert (signal.delay is None) == (event is D)
    assert ("rule: Requested > Limit" in signal.evidence) == (event is D)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ("Quota exceeded, limit: 0, model: x", C),
        ("This would exceed your rate limit of 0 input tokens per minute", C),
        ("Limit 0, Used 0, Requested 5", C),
        ("Quota exceeded, limit: 10", A),
        ("Quota exceeded, limit: 0.5", A),
    ],
)
def test_a_limit_of_zero_is_no_entitlement(message: str, event: Event) -> None:
    assert read(429, error(message), {"retry-after": "5"}, model="x").event is event


def test_a_413_never_fits_though_its_code_says_rate_limit() -> None:
    assert read(413, error("Too large.", code="rate_limit_exceeded"), {"retry-after": "5"}).event is D


@pytest.mark.parametrize("status", [413, 429])
def test_groq_says_rate_limit_of_what_never_fits(status: int) -> None:
    body = error("Request too large: Limit 6000, Requested 9000", type="tokens", code="rate_limit_exceeded")

    signal = read(status, body, provider="groq")

    assert (signal.event, signal.dimensions) == (D, ("tokens",))


@pytest.mark.parametrize(
    ("url", "event"),
    [
        ("https://us-central1-aiplatform.googleapis.com/v1/x", G),
        ("https://aiplatform.googleapis.com/v1/x", G),
        ("https://generativelanguage.googleapis.com/v1beta/x", A),
        (None, A),
    ],
)
def test_a_bare_429_of_vertex_is_the_shared_quota(url: str | None, event: Event) -> None:
    body = error("Resource exhausted.", code=429, status="RESOURCE_EXHAUSTED")

    assert read(429, body, url=url).event is event


QUOTA = {"violations": [{"quotaId": "GenerateRequestsPerMinute"}]}


@pytest.mark.parametrize(
    "more", [{"details": [{"retryDelay": "5s"}]}, {"message": "Please retry in 5s."}, {"details": [QUOTA]}]
)
def test_a_429_of_vertex_with_a_detail_is_a_limit(more: dict[str, object]) -> None:
    body = {"error": {"status": "RESOURCE_EXHAUSTED", "message": "x", **more}}

    assert read(429, body, url="https://aiplatform.googleapis.com/v1/x").event is A


@pytest.mark.parametrize(
    ("kind", "event"), [("quota-exceeded", A), ("temporary-reduced-capacity", G), ("abnormal-usage-detected", H)]
)
def test_the_problem_types_of_the_ietf_draft(kind: str, event: Event) -> None:
    body = {"type": f"https://iana.org/assignments/http-problem-types#{kind}", "title": "x"}

    assert read(429, body).event is event


TWINS = [
    (error(code="rate_limit_exceeded"), A),
    (error(type="rate_limit_error"), A),
    (error(type="overloaded_error"), G),
    (error(type="api_error"), G),
    (error(type="authentication_error"), F),
    (error(type="permission_error"), J),
    (error(type="invalid_request_error"), J),
    (error("no such model", type="not_found_error"), C),
    (error(code="insufficient_quota"), E),
    (error(status="RESOURCE_EXHAUSTED"), A),
    (error(status="UNAVAILABLE"), G),
    (error(code=429), A),
    (error(code=402), E),
    (error(code=502), G),
    (error("nobody knows"), G),
    ({"type": "error", "code": "rate_limit_exceeded", "message": "x"}, A),
    ({"object": "error", "type": "rate_limited", "message": "x"}, A),
    ({"object": "error", "type": "rate_limited", "code": "1300", "message": "x"}, A),
    ({"object": "error", "type": "service_tier_capacity_exceeded", "code": "3505", "message": "x"}, G),
    ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}, A),
    ({"choices": [{"error": {"code": 429, "message": "x"}}]}, A),
]


@pytest.mark.parametrize(("body", "event"), TWINS)
def test_an_error_inside_a_200_is_its_twin(body: object, event: Event) -> None:
    signal = read(200, body)

    assert (signal.event, signal.status) == (event, 200)


@pytest.mark.parametrize(
    "body", [{}, {"error": None}, {"error": ""}, {"choices": []}, {"type": "message"}, [], "error", b"ok"]
)
def test_a_200_without_an_error_object_is_fine(body: object) -> None:
    assert read(200, body).event is Event.OK


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "before", ["", 'data: {"choices":[]}\n\n', ": comment\n\n", "x" * 0 + "id: 1\nretry: 5\ndata: 1\n\n"]
)
@pytest.mark.parametrize(
    ("event_text", "event"),
    [
        ('event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}', G),
        ('event:error\ndata:{"error":{"type":"rate_limit_error"}}', A),
        ('event: error\ndata: {"code":"rate_limit_exceeded","message":"x"}', A),
        ('event: error\ndata: {"error":\ndata: {"type":"rate_limit_error"}}', A),
        ('data: {"error":{"code":"insufficient_quota","message":"x"}}', E),
        ("event: error\ndata: not json", Event.OK),
    ],
)
def test_an_error_event_of_a_stream_is_its_twin(newline: str, before: str, event_text: str, event: Event) -> None:
    text = (before + event_text + "\n\n").replace("\n", newline)

    assert read(200, text).event is event
    assert read(200, text.encode()).event is event


def test_talk_of_errors_in_a_stream_is_no_error() -> None:
    talk = 'data: {"choices":[{"delta":{"content":"event: error\\n\\"error\\": {}"}}]}\n\n' * 50

    assert read(200, talk).event is Event.OK


def test_the_error_at_the_end_of_a_long_stream_is_found() -> None:
    long = (
        'data: {"choices":[]}\n\n' * 20_000
        + 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'
    )

    assert read(200, long.encode()).event is G


@pytest.mark.parametrize(
    ("body", "event"), [(error(code="rate_limit_exceeded"), A), ({"code": "slow_down"}, H), ({}, I)]
)
def test_an_error_that_came_without_a_status_is_its_twin(body: object, event: Event) -> None:
    assert read(None, body).event is event


@pytest.mark.parametrize(
    ("body", "provider"),
    [
        ({"type": "error", "error": {"type": "x"}}, "anthropic"),
        (error("x", status="UNKNOWN"), "gemini"),
        (error("x", metadata={}), "openrouter"),
        (error("x", type="y", param=None, code=None), "openai"),
        ({"object": "error", "message": "x", "code": "1300"}, "mistral"),
        ({"__type": "X"}, "bedrock"),
        ({"message": "x", "documentation_url": "y"}, "github"),
        (error("x"), "default"),
        ({}, "default"),
    ],
)
def test_the_shape_of_a_body_gives_the_provider_away(body: object, provider: str) -> None:
    assert read(400, body).provider == provider


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://x.openai.azure.com/openai", "azure"),
        ("https://API.Anthropic.com:443/v1?x=//y", "anthropic"),
        ("https://generativelanguage.googleapis.com", "gemini"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://api.cerebras.ai", "cerebras"),
        ("https://api.x.ai", "xai"),
        ("https://openrouter.ai/api", "openrouter"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com", "bedrock"),
        ("https://api.github.com", "github"),
        ("api.openai.com/v1", "openai"),
        ("https://api.openai.com.example.org/", "default"),
        ("https://user:secret@example.org/api.openai.com", "default"),
        ("", "default"),
    ],
)
def test_the_host_gives_the_provider_away(url: str, provider: str) -> None:
    assert read(200, url=url).provider == provider


@pytest.mark.parametrize(
    ("header", "provider"),
    [
        ("openai-version", "openai"),
        ("apim-request-id", "azure"),
        ("anthropic-ratelimit-requests-limit", "anthropic"),
        ("mistral-correlation-id", "mistral"),
        ("x-ratelimit-limit-req-minute", "mistral"),
        ("x-groq-region", "groq"),
        ("x-ratelimit-limit-requests-day", "cerebras"),
        ("x-amzn-bedrock-input-token-count", "bedrock"),
        ("x-github-request-id", "github"),
        ("x-ratelimit-limit-requests", "default"),
    ],
)
def test_a_header_gives_the_provider_away(header: str, provider: str) -> None:
    assert read(200, headers={header: "1"}).provider == provider


def test_a_name_of_its_own_says_more_than_one_copied_from_openai() -> None:
    assert read(200, headers={"openai-version": "1", "x-groq-region": "x"}).provider == "groq"


def test_what_the_caller_says_goes_first_then_the_host_then_the_answer() -> None:
    headers, url = {"x-groq-region": "x"}, "https://api.x.ai/v1"

    assert read(200, headers=headers, url=url, provider="mistral").provider == "mistral"
    assert read(200, headers=headers, url=url, provider="Mistral").provider == "mistral"
    assert read(200, headers=headers, url=url, provider="default").provider == "default"
    assert read(200, headers=headers, url=url, provider="no such provider").provider == "xai"
    assert read(200, headers=headers, url="http://127.0.0.1:8000").provider == "groq"


@pytest.mark.parametrize(
    ("provider", "event_status", "scoped"),
    [
        *(
            (name, 429, True)
            for name in ("openai", "anthropic", "gemini", "azure", "groq", "cerebras", "xai", "bedrock")
        ),
        *((name, 429, False) for name in ("mistral", "github", "openrouter", "default")),
        ("openai", 401, False),
        ("openai", 402, False),
        ("openai", 500, False),
        ("openai", 200, True),
        ("mistral", 200, False),
    ],
)
def test_a_limit_is_for_the_model_where_the_provider_keeps_it_so(
    provider: str, event_status: int, scoped: bool
) -> None:
    assert read(event_status, provider=provider, model="some-model").scoped is scoped
    assert read(event_status, provider=provider).scoped is False


def test_no_entitlement_is_always_for_the_model() -> None:
    assert read(404, error(code="model_not_found"), provider="mistral", model="some-model").scoped


def test_the_caller_s_model_goes_before_the_answer_s() -> None:
    assert read(200, {"model": "theirs"}, model="ours").model == "ours"
    assert read(200, {"model": "theirs"}).model == "theirs"
    assert read(200, {"model": 5}).model is None


@pytest.mark.parametrize(
    ("header", "value", "organisation"),
    [
        ("openai-organization", "org-example", "org-example"),
        ("anthropic-organization-id", " 00000000-0000 ", "00000000-0000"),
        ("openai-organization", "not an id", None),
        ("openai-organization", "x" * 500, None),
    ],
)
def test_who_pays_is_read_from_the_headers(header: str, value: str, organisation: str | None) -> None:
    assert read(200, headers={header: value}).organisation == organisation
    assert read(429, headers={header: value}).organisation == organisation


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}, {"input_tokens": 3, "output_tokens": 4}),
        ({"usage": {"prompt_tokens": 3}}, {"input_tokens": 3}),
        ({"usage": {"input_tokens": 3, "output_tokens": 4}}, {"input_tokens": 3, "output_tokens": 4}),
        (
            {"usage": {"input_tokens": 3, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 99}},
            {"input_tokens": 8},
        ),
        (
            {"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4}},
            {"input_tokens": 3, "output_tokens": 4},
        ),
        ({"usageMetadata": {"promptTokenCount": 3, "thoughtsTokenCount": 4}}, {"input_tokens": 3, "output_tokens": 4}),
        ({"usage": {"inputTokens": 3, "outputTokens": 4}}, {"input_tokens": 3, "output_tokens": 4}),
        ({"usage": {"prompt_tokens": -3, "completion_tokens": True}}, {}),
        ({"usage": {"prompt_tokens": float("nan"), "completion_tokens": 10**400}}, {}),
        ({"usage": "much"}, {}),
        ({}, {}),
    ],
)
def test_what_a_call_has_used_without_what_came_from_a_cache(body: object, usage: dict[str, float]) -> None:
    assert read(200, body).usage == usage


def test_a_long_body_of_a_success_is_not_parsed() -> None:
    short = b'{"usage": {"prompt_tokens": 3}}'

    assert read(200, short).usage == {"input_tokens": 3.0}
    assert read(200, short + b" " * 70_000).usage == {}


@pytest.mark.parametrize("body", [b'{"error": {"code": "insuff', b"\xff\xfe", "[" * 100_000, '{"a":' * 50_000])
def test_a_body_cut_or_broken_leaves_the_status_to_decide(body: object) -> None:
    assert read(429, body).event is A


def test_a_fastapi_detail_is_read() -> None:
    assert read(403, {"detail": "This organization has been disabled."}).event is F
    assert read(429, {"detail": {"code": "insufficient_quota"}}).event is E


def test_a_boto_answer_is_read() -> None:
    body = {"Error": {"Code": "ThrottlingException", "Message": "Too many requests"}, "ResponseMetadata": {}}

    signal = read(400, body, provider="bedrock")

    assert (signal.event, signal.evidence[0]) == (A, "body Error.Code: ThrottlingException")
