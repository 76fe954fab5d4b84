"""Successful answers have the real shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentos.simulator import Admitted, Provider, equal_keys
from agentos.simulator.parsed_request import ParsedRequest, parse_target, read_request
from agentos.simulator.success_answers import streamed_answer, whole_answer

ROUTES = ("chat/completions", "completions", "responses", "messages")


def asked(route: str, prefix: str = "", **told: Any) -> tuple[ParsedRequest, Admitted]:
    place = parse_target(f"{prefix}/v1/{route}")
    assert place is not None
    request = read_request(place, json.dumps({"model": 'a "model"', "max_tokens": 100, **told}).encode())
    plan = equal_keys(1)
    answer = Provider(plan).arrive(plan.secrets[0], request.tokens, 0.0, max_output=request.max_output)
    assert isinstance(answer, Admitted)
    return request, answer


def events(pieces: list[bytes]) -> list[tuple[str | None, Any]]:
    """The events of a stream: their names and data."""
    found = []
    for block in b"".join(pieces).decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        data = lines["data"]
        found.append((lines.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found


def test_a_chat_completion_has_the_real_shape() -> None:
    answer = json.loads(whole_answer(*asked("chat/completions", messages=[{"content": "x" * 40}])))

    assert (answer["id"], answer["object"], answer["model"]) == ("chatcmpl-1", "chat.completion", 'a "model"')
    (choice,) = answer["choices"]
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", "Simulated answer 1.")
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 16, "total_tokens": 26}


def test_a_completion_a_response_and_a_message_have_theirs() -> None:
    completion = json.loads(whole_answer(*asked("completions", prompt="xxxx")))
    response = json.loads(whole_answer(*asked("responses", input="xxxx")))
    message = json.loads(whole_answer(*asked("messages", messages=[{"content": "xxxx"}])))

    assert completion["choices"][0]["text"] == "Simulated answer 1."
    assert response["output"][0]["content"][0]["text"] == "Simulated answer 1."
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (1, 16)
    assert (message["type"], message["stop_reason"]) == ("message", "end_turn")
    assert message["content"] == [{"type": "text", "text": "Simulated answer 1."}]
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (1, 16)


def test_an_answer_shorter_than_it_would_be_says_that_it_was_cut_short() -> None:
    chat = json.loads(whole_answer(*asked("chat/completions", max_tokens=3)))
    message = json.loads(whole_answer(*asked("messages", max_tokens=3)))

    assert (chat["choices"][0]["finish_reason"], chat["usage"]["completion_tokens"]) == ("length", 3)
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 3)


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_chat_stream_ends_with_usage_if_asked_and_then_is_done(include_usage: bool) -> None:
    told = events(streamed_answer(*asked("chat/completions", stream_options={"include_usage": include_usage})))

    assert told[-1] == (None, "[DONE]")
    chunks = [data for _, data in told[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    said = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(said) == "Simulated answer 1."
    if include_usage:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 16
        assert chunks.pop(-2)["usage"] is None
    else:
        assert not any("usage" in chunk for chunk in chunks)
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_mistral_stream_tells_its_usage_unasked_with_the_last_of_its_choices() -> None:
    told = events(streamed_answer(*asked("chat/completions", prefix="/mistral")))

    *others, last = [data for _, data in told[:-1]]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["usage"] == {"prompt_tokens": 0, "completion_tokens": 16, "total_tokens": 16}
    assert not any("usage" in chunk for chunk in others)


def test_a_completion_stream_says_its_text() -> None:
    told = events(streamed_answer(*asked("completions")))

    assert "".join(data["choices"][0]["text"] for _, data in told[:-1]) == "Simulated answer 1."


def test_a_message_stream_goes_from_start_to_stop_with_usage() -> None:
    told = events(streamed_answer(*asked("messages", messages=[{"content": "xxxx"}])))

    assert all(name == data["type"] for name, data in told)
    assert [name for name, _ in told] == [
        "message_start",
        "content_block_start",
        "ping",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    by_name = dict(told)
    assert by_name["message_start"]["message"]["usage"]["input_tokens"] == 1
    assert by_name["message_delta"]["usage"]["output_tokens"] == 16
    said = [data["delta"]["text"] for name, data in told if name == "content_block_delta"]
    assert "".join(said) == "Simulated answer 1."


def test_a_response_stream_numbers_its_events_and_ends_completed() -> None:
    told = events(streamed_answer(*asked("responses", input="xxxx")))

    assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
    assert all(name == data["type"] for name, data in told)
    assert (
        "".join(data["delta"] for name, data in told if name == "response.output_text.delta") == "Simulated answer 1."
    )
    name, last = told[-1]
    assert (name, last["response"]["status"]) == ("response.completed", "completed")
    assert last["response"]["usage"]["output_tokens"] == 16


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_comes_in_several_pieces(route: str) -> None:
    assert len(streamed_answer(*asked(route))) >= 3
