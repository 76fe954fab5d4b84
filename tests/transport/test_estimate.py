"""What is read from a request before it is sent: its model, and about how many tokens it will take."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentos.pool.core.cost import INPUT, OUTPUT, REQUESTS, TOKENS
from agentos.transport.estimate import Estimator, RequestEstimate

at_any_pace = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is not a fault

CHAT = b"/v1/chat/completions"


def asked(body: object = None, path: bytes = CHAT, estimator: Estimator | None = None) -> RequestEstimate:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    return (estimator or Estimator()).estimate(data, path)


# -- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "path", "model"),
    [
        ({"model": "gpt-5"}, CHAT, "gpt-5"),
        ({"messages": [{"model": "not-me"}], "model": "gpt-5"}, CHAT, "gpt-5"),
        ({"metadata": {"model": "not-me"}}, CHAT, None),
        ({"messages": [{"content": '"model": "not-me"'}]}, CHAT, None),
        ({"model": "models/gemini-2.5-pro"}, b"/v1beta/openai/chat/completions", "models/gemini-2.5-pro"),
        ({"model": "gpt-5"}, b"/openai/deployments/mine/chat/completions", "gpt-5"),
        ({}, b"/openai/deployments/mine/chat/completions?api-version=1", "mine"),
        ({}, b"/v1beta/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro"),
        ({}, b"/v1beta/models/gemini-2.5-pro%3AstreamGenerateContent?alt=sse", "gemini-2.5-pro"),
        ({}, b"/v1/projects/p/locations/l/publishers/google/models/gemini-2.5-pro:predict", "gemini-2.5-pro"),
        ({}, b"/model/anthropic.claude-sonnet-4-v1%3A0/converse", "anthropic.claude-sonnet-4-v1"),
        ({}, b"/model/eu.amazon.nova-pro-v1:0/converse-stream", "eu.amazon.nova-pro-v1"),
        (None, b"/model/eu.amazon.nova-pro/invoke", "eu.amazon.nova-pro"),
        (b"no JSON", b"/v1beta/models/gemini-2.5-pro:countTokens", "gemini-2.5-pro"),
        (None, b"/v1/models", None),
        (None, b"/v1/models/", None),
        (None, b"/v1/files/model", None),
        (None, CHAT, None),
    ],
)
def test_the_model_is_that_of_the_body_else_that_of_the_address(body: object, path: bytes, model: str | None) -> None:
    assert asked(body, path).model == model


@pytest.mark.parametrize("model", ["", "x" * 201, None, 5, ["gpt-5"], {"name": "gpt-5"}, "two\nlines", "\ud800"])
def test_what_cannot_be_the_name_of_a_model_is_not_taken_for_one(model: object) -> None:
    assert asked({"model": model}).model is None


# -- how many tokens -------------------------------------------------------------------------------------------------

PROSE = "The quick brown fox jumps over the lazy dog. " * 1000


def test_four_bytes_of_text_are_taken_for_a_token() -> None:
    body = json.dumps({"messages": [{"content": PROSE}]}).encode()

    assert asked(body).cost[INPUT] == len(body) / 4


@pytest.mark.parametrize(
    ("facts", "output"),
    [
        ({"max_tokens": 100}, 100),
        ({"max_completion_tokens": 100, "max_tokens": 5}, 100),
        ({"max_output_tokens": 100}, 100),
        ({"generationConfig": {"maxOutputTokens": 100}}, 100),
        ({"generationConfig": {}, "max_tokens": 5}, None),
        ({"generationConfig": None}, None),
        ({"generationConfig": [100]}, None),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": None}, None),
        ({"max_tokens": "100"}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 10**400}, None),
        ({"max_tokens": float("inf")}, None),
        ({}, None),
    ],
)
def test_what_may_come_out_is_as_the_request_says(facts: dict[str, object], output: float | None) -> None:
    cost = asked(facts).cost

    assert cost[OUTPUT] == output
    given = cost[INPUT]
    assert given is not None
    assert cost[TOKENS] == (None if output is None else given + output)


@pytest.mark.parametrize(
    "body", [None, b"[]", b'[{"model": "m"}]', b"not JSON", b'{"a": ', b'"text"', b"\xff\xfe{", b"{}}"]
)
def test_of_what_is_no_json_object_only_that_it_is_a_request_is_known(body: bytes | None) -> None:
    assert asked(body).cost == (1.0, None, None, None)


def test_a_request_without_a_body_takes_no_tokens() -> None:
    assert asked(b"", b"/v1/models").cost == (1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("body", [{}, {"max_tokens": 100}, None])
def test_a_request_is_one_request(body: object) -> None:
    assert asked(body).cost[REQUESTS] == 1.0


def test_a_picture_counts_a_thousand_tokens_however_long_it_is() -> None:
    pictures = [base64.b64encode(bytes(range(256)) * 1000 * times).decode() for times in (1, 4)]
    around = len(json.dumps({"image": ""})) / 4

    costs = [asked({"image": picture}).cost[INPUT] for picture in pictures]

    assert costs == [around + 1000, around + 1000]


@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_text_in_a_script_without_blanks_is_not_taken_for_a_picture(ensure_ascii: bool) -> None:
    body = json.dumps({"content": "你好吗" * 5000}, ensure_ascii=ensure_ascii).encode()

    assert asked(body).cost[INPUT] == len(body) / 4


def test_a_body_too_long_to_be_looked_at_has_no_estimate() -> None:
    assert asked({"model": "m", "content": "a b " * 2_000_000}).cost == (1.0, None, None, None)


# -- what was really taken -------------------------------------------------------------------------------------------


def test_answers_correct_the_estimate_step_by_step() -> None:
    estimator, body = Estimator(), {"model": "m", "content": "word " * 400}
    size = len(json.dumps(body))
    real = size / 8.0

    gaps = []
    for _ in range(20):
        estimate = asked(body, estimator=estimator)
        gaps.append((estimate.cost[INPUT] or 0.0) - real)
        estimator.record_usage(estimate, {"input_tokens": real})

    assert gaps[0] == size / 4 - real
    assert gaps == sorted(gaps, reverse=True)
    assert 0 <= gaps[-1] < 0.1 * real


def test_what_comes_out_is_taken_to_be_what_usually_does() -> None:
    estimator, body = Estimator(), {"model": "m", "max_tokens": 4000}
    for made in [*range(10, 110, 10), *([50] * 10)]:
        estimator.record_usage(asked(body, estimator=estimator), {"output_tokens": float(made)})

    assert asked(body, estimator=estimator).cost[OUTPUT] in (90.0, 100.0)
    assert asked({**body, "max_tokens": 30}, estimator=estimator).cost[OUTPUT] == 30.0
    assert asked({"model": "m"}, estimator=estimator).cost[OUTPUT] in (90.0, 100.0)


def test_what_one_model_takes_says_nothing_of_another() -> None:
    estimator = Estimator()
    estimator.record_usage(asked({"model": "a"}, estimator=estimator), {"input_tokens": 1.0, "output_tokens": 7.0})

    assert asked({"model": "b"}, estimator=estimator).cost == asked({"model": "b"}).cost


def test_a_request_with_a_picture_does_not_teach_how_long_a_token_is() -> None:
    estimator, text = Estimator(), {"model": "m", "content": "word " * 400}
    picture = {"model": "m", "image": base64.b64encode(bytes(100_000)).decode()}

    estimator.record_usage(asked(picture, estimator=estimator), {"input_tokens": 765.0})

    assert asked(text, estimator=estimator).cost[INPUT] == asked(text).cost[INPUT]


@pytest.mark.parametrize("real", [1.0, 1e12])
def test_an_absurd_answer_does_not_make_an_absurd_estimate(real: float) -> None:
    estimator, body = Estimator(), {"model": "m", "content": "word " * 400}
    size = len(json.dumps(body))
    for _ in range(100):
        estimator.record_usage(asked(body, estimator=estimator), {"input_tokens": real})

    given = asked(body, estimator=estimator).cost[INPUT]
    assert given is not None
    assert size / 41 < given < size * 1.01


def test_the_models_that_are_remembered_are_not_without_end() -> None:
    estimator = Estimator()
    for number in range(1500):
        estimator.record_usage(asked({"model": f"m-{number}"}, estimator=estimator), {"output_tokens": 5.0})

    assert asked({"model": "m-0"}, estimator=estimator).cost[OUTPUT] == 5.0
    assert asked({"model": "m-1499"}, estimator=estimator).cost[OUTPUT] is None


# -- whatever comes --------------------------------------------------------------------------------------------------

KEYS = ("model", "max_tokens", "max_output_tokens", "generationConfig", "maxOutputTokens", "messages", "content")
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
bodies = st.none() | st.binary(max_size=200) | anything.map(lambda value: json.dumps(value).encode())


@at_any_pace
@given(bodies, st.binary(max_size=60) | st.text("/models:%3A@.deployments?", max_size=40).map(str.encode))
@example(b"{" * 100_000, CHAT)
@example(b'{"a":' * 100_000, CHAT)
@example(b'{"max_tokens": ' + b"9" * 5000 + b"}", CHAT)
@example(b"{\x00", CHAT)
def test_whatever_is_asked_it_is_read_without_complaint(body: bytes | None, path: bytes) -> None:
    estimator = Estimator()

    first = estimator.estimate(body, path)
    estimator.record_usage(first, {"input_tokens": 3.0, "output_tokens": 2.0})
    second = estimator.estimate(body, path)

    for found in (first, second):
        assert found.cost[REQUESTS] == 1.0
        assert all(amount is None or 0 <= amount < 1e12 for amount in found.cost)
        assert found.model is None or 0 < len(found.model) <= 200
