"""Requests are parsed from their address and body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentos.simulator.parsed_request import NotUnderstood, RequestTarget, parse_target, read_request

GENERATE = "/v1beta/models/gemini-2.5-flash:generateContent"


def at(path: str, query: str = "") -> RequestTarget:
    place = parse_target(path, query)
    assert place is not None
    return place


@pytest.mark.parametrize(
    ("path", "style"),
    [
        ("/v1/chat/completions", "openai"),
        ("/openai/v1/chat/completions", "openai"),
        ("/mistral/v1/chat/completions", "openai"),
        ("/v1/messages", "anthropic"),
        (GENERATE, "gemini"),
        ("/v1/models/gemini-2.5-flash:generateContent", "gemini"),
        ("/v1alpha/models/gemini-2.5-flash:streamGenerateContent", "gemini"),
        ("/proxy/v1beta/models/gemini-2.5-flash%3AgenerateContent", "gemini"),
    ],
)
def test_the_style_follows_the_address(path: str, style: str) -> None:
    assert at(path).style == style


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/nothing",
        "/chat/completions",
        "/mistral/v1/messages",
        "/v1beta/models",
        "/v1beta/models/gemini-2.5-flash",
        "/v1beta/models/gemini-2.5-flash:countTokens",
        "/v1beta/models/:generateContent",
        "/v2/models/gemini-2.5-flash:generateContent",
        GENERATE + "/more",
    ],
)
def test_other_addresses_lead_nowhere(path: str) -> None:
    assert parse_target(path) is None


@pytest.mark.parametrize(
    ("verb", "query", "streams"),
    [
        ("generateContent", "", (False, False)),
        ("generateContent", "alt=sse", (False, False)),
        ("streamGenerateContent", "alt=sse", (True, False)),
        ("streamGenerateContent", "key=a&alt=sse", (True, False)),
        ("streamGenerateContent", "", (True, True)),
        ("streamGenerateContent", "alt=json", (True, True)),
    ],
)
def test_a_gemini_address_says_which_model_and_how_the_answer_comes(
    verb: str, query: str, streams: tuple[bool, bool]
) -> None:
    place = at(f"/v1beta/models/gemini-2.5-flash:{verb}", query)

    assert (place.model, (place.stream, place.as_list)) == ("gemini-2.5-flash", streams)


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        (
            {
                "contents": [{"role": "user", "parts": [{"text": "x" * 400}]}],
                "generationConfig": {"maxOutputTokens": 5},
            },
            105,
        ),
        (
            {
                "contents": [
                    {"parts": [{"text": "xxxx"}, {"inlineData": {"data": "x" * 99}}]},
                    {"parts": [{"text": "xxxx"}]},
                ]
            },
            2,
        ),
        ({"contents": [], "systemInstruction": {"parts": [{"text": "x" * 9}]}, "generationConfig": {}}, 3),
        ({"system_instruction": {"parts": {"text": "xxxx"}}, "generationConfig": None}, 1),
        ({}, 0),
    ],
)
def test_a_gemini_call_is_reckoned_like_the_others(told: dict[str, Any], tokens: int) -> None:
    asked = read_request(at(GENERATE), json.dumps(told).encode())

    assert (asked.tokens, asked.model) == (tokens, "gemini-2.5-flash")


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"generationConfig": 5}', b'{"generationConfig": {"maxOutputTokens": "5"}}'],
)
def test_a_body_that_is_no_gemini_request_is_not_understood(body: bytes) -> None:
    with pytest.raises(NotUnderstood):
        read_request(at(GENERATE), body)


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        ({"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 50}, 150),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 40}]}]}, 10),
        ({"messages": [{"content": "xxxx"}, {"content": "xxxx"}], "system": "xxxx"}, 3),
        ({"input": "x" * 9, "instructions": "xx", "max_output_tokens": 7}, 10),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "xxxx"}]}]}, 1),
        ({"prompt": ["xxxx", "xxxx"], "max_completion_tokens": 5}, 7),
        ({"max_tokens": None}, 0),
        ({}, 0),
        ({"messages": [[[[[[[[[[[["too deep to be text"]]]]]]]]]]]]}, 0),
    ],
)
def test_a_call_is_reckoned_at_a_quarter_of_its_characters_and_what_it_allows_for_the_answer(
    told: dict[str, Any], tokens: int
) -> None:
    assert read_request(at("/v1/chat/completions"), json.dumps(told).encode()).tokens == tokens


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"model": 5}',
        b'{"max_tokens": -1}',
        b'{"max_tokens": 1.5}',
        b'{"max_tokens": true}',
        b'{"max_tokens": 1' + b"0" * 400 + b"}",
        b'{"stream": "yes"}',
        b'{"model": "' + b"x" * 201 + b'"}',
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_body_that_is_no_request_is_not_understood(path: str, body: bytes) -> None:
    with pytest.raises(NotUnderstood):
        read_request(at(path), body)
