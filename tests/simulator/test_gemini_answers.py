"""Gemini's answers and errors: in their real shapes, and as the pool's own reader understands them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentos.providers import Event, Signal, classify
from agentos.simulator import Admitted, KeyPlan, Provider, ProviderPlan, QuotaPlan, Refused, Scripted, equal_keys
from agentos.simulator.parsed_request import ParsedRequest, parse_target, read_request
from agentos.simulator.success_answers import streamed_answer, whole_answer

SECRET = equal_keys(1).secrets[0]
MODEL = "gemini-2.5-flash"


def asked(verb: str = "generateContent", query: str = "", max_output: int = 100) -> tuple[ParsedRequest, Admitted]:
    place = parse_target(f"/v1beta/models/{MODEL}:{verb}", query)
    assert place is not None
    told = {"contents": [{"parts": [{"text": "x" * 40}]}], "generationConfig": {"maxOutputTokens": max_output}}
    request = read_request(place, json.dumps(told).encode())
    answer = Provider(equal_keys(1)).arrive(
        SECRET, request.tokens, 0.0, max_output=max_output, model=request.model, style="gemini"
    )
    assert isinstance(answer, Admitted)
    return request, answer


def usage(output: int) -> dict[str, int]:
    return {"promptTokenCount": 10, "candidatesTokenCount": output, "totalTokenCount": 10 + output}


def refused(times: int = 2, tokens: int = 100, **options: Any) -> Refused:
    """The last of so many answers at the same instant, which is a refusal."""
    provider = Provider(equal_keys(1, style="gemini", **options))
    answers = [provider.arrive(SECRET, tokens, 10.0, model=MODEL) for _ in range(times)]
    assert isinstance(answers[-1], Refused)
    return answers[-1]


def read(answer: Admitted | Refused) -> Signal:
    """What our reader makes of it."""
    return classify(answer.status, answer.headers, answer.body, now=0.0, provider="gemini", model=MODEL)


# Answers.


def test_a_whole_answer_has_the_real_shape() -> None:
    assert json.loads(whole_answer(*asked())) == {
        "candidates": [
            {
                "content": {"parts": [{"text": "Simulated answer 1."}], "role": "model"},
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": usage(16),
        "modelVersion": MODEL,
        "responseId": "req_000000000001",
    }


def test_an_answer_shorter_than_it_would_be_says_so() -> None:
    told = json.loads(whole_answer(*asked(max_output=3)))

    assert (told["candidates"][0]["finishReason"], told["usageMetadata"]) == ("MAX_TOKENS", usage(3))


def test_a_stream_of_events_tells_in_each_what_was_used_so_far() -> None:
    pieces = [piece.decode() for piece in streamed_answer(*asked("streamGenerateContent", "alt=sse"))]

    assert all(piece.startswith("data: ") and piece.endswith("\r\n\r\n") for piece in pieces)
    chunks = [json.loads(piece.removeprefix("data: ")) for piece in pieces]
    said = [chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks]
    assert "".join(said) == "Simulated answer 1."
    assert [chunk["candidates"][0].get("finishReason") for chunk in chunks] == [None, None, "STOP"]
    assert [chunk["usageMetadata"] for chunk in chunks] == [usage(5), usage(10), usage(16)]


def test_a_stream_that_is_no_event_stream_is_one_json_list_in_pieces() -> None:
    pieces = streamed_answer(*asked("streamGenerateContent"))

    assert len(pieces) == 3
    assert [chunk["usageMetadata"] for chunk in json.loads(b"".join(pieces))] == [usage(5), usage(10), usage(16)]


# Errors.


def test_a_limit_is_told_in_the_body_and_in_no_header() -> None:
    answer = refused(rpm=60, request_burst=1)

    assert (answer.status, answer.headers) == (429, ())
    assert json.loads(answer.body)["error"] == {
        "code": 429,
        "message": "Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_requests, limit: 60, "
        "model: gemini-2.5-flash. Please retry in 1s.",
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [
                    {
                        "quotaMetric": "generativelanguage.googleapis.com/generate_content_requests",
                        "quotaId": "GenerateRequestsPerMinutePerProjectPerModel",
                        "quotaDimensions": {"location": "global", "model": "gemini-2.5-flash"},
                        "quotaValue": "60",
                    }
                ],
            },
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"},
        ],
    }


@pytest.mark.parametrize(
    ("limits", "dimension", "limit", "window", "delay"),
    [
        ({"rpm": 40, "request_burst": 1}, "requests", 40, 60, 1.5),
        ({"tpm": 1_200, "token_burst": 150}, "tokens", 1_200, 60, 2.5),
        ({"daily_requests": 1}, "requests", 1, 86_400, 86_390.0),
    ],
)
def test_our_reader_finds_the_limit_its_window_and_the_delay(
    limits: dict[str, Any], dimension: str, limit: int, window: int, delay: float
) -> None:
    signal = read(refused(retry_after="exact", **limits))

    assert signal.event is (Event.PARKED if window > 60 else Event.LIMITED)
    assert signal.delay == delay
    (reading,) = signal.readings
    assert (reading.dimension, reading.limit, reading.window) == (dimension, limit, window)


@pytest.mark.parametrize(
    ("dialect", "delay", "details"), [("full", 2.0, 2), ("retry-after", 2.0, 1), ("none", None, 0)]
)
def test_a_smaller_dialect_tells_the_delay_alone_or_nothing(dialect: Any, delay: float | None, details: int) -> None:
    answer = refused(rpm=40, request_burst=1, dialect=dialect)

    assert len(json.loads(answer.body)["error"].get("details", ())) == details
    assert (read(answer).event, read(answer).delay) == (Event.LIMITED, delay)


def test_too_many_calls_at_once_and_a_call_too_large_name_no_delay() -> None:
    for answer in (refused(concurrency=1), refused(times=1, tokens=500, tpm=100)):
        assert (read(answer).event, read(answer).delay) == (Event.LIMITED, None)


def test_a_key_that_is_not_known_is_a_bad_argument() -> None:
    answer = Provider(equal_keys(1, style="gemini")).arrive("planted", 1, 0.0)

    assert (answer.status, read(answer).event) == (400, Event.KEY_DEAD)
    assert json.loads(answer.body or "")["error"]["details"][0]["reason"] == "API_KEY_INVALID"


def test_a_dead_key_money_gone_and_an_overloaded_model_are_understood() -> None:
    plan = ProviderPlan(
        (QuotaPlan("acme"), QuotaPlan("poor", spent=True)),
        (KeyPlan("s1", "acme", dead=True), KeyPlan("s2", "poor"), KeyPlan("s3", "acme")),
        style="gemini",
        script=(Scripted(503, call=3), Scripted(500, call=4)),
    )
    provider = Provider(plan)

    signals = [read(provider.arrive(secret, 1, 0.0, model=MODEL)) for secret in ("s1", "s2", "s3", "s3")]

    assert [signal.event for signal in signals] == [Event.KEY_DEAD, Event.MONEY_GONE, Event.BUSY, Event.BUSY]
