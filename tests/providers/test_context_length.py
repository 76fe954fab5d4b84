"""The refusal of a request that is longer than the model's context is told from other wrong requests."""

from __future__ import annotations

import json

import pytest

from agentos.providers.answers.context_length import exceeds_context


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}),
        (400, {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}),
        (400, {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000."}),
        (
            400,
            {"code": 400, "message": "The input token count (1200000) exceeds the maximum number of tokens allowed."},
        ),
        (413, {"code": "context_length_exceeded"}),
    ],
)
def test_a_context_that_is_too_long_is_recognised(status: int, error: dict[str, object]) -> None:
    assert exceeds_context(status, json.dumps({"error": error}).encode())


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "max_tokens is too large"}}),
        (400, {"error": {"message": "no tool is named 'prompt is too long'"}}),
        (429, {"error": {"message": "prompt is too long"}}),
        (500, {"error": {"code": "context_length_exceeded"}}),
        (400, "prompt is too long"),
    ],
)
def test_another_refusal_is_not(status: int, body: object) -> None:
    assert not exceeds_context(status, body if isinstance(body, str) else json.dumps(body))
