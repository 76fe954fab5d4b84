"""The usage that answers state: the same value whatever the provider counts as input."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from agentos.costs import Usage
from agentos.providers.answers.body_sniffer import BodySniffer
from agentos.providers.classify import classify
from agentos.providers.clients.exceptions import read_signal

OPENAI_CHAT = {
    "choices": [{"message": {"content": "42"}}],
    "usage": {
        "prompt_tokens": 2_100,
        "completion_tokens": 350,
        "total_tokens": 2_450,
        "prompt_tokens_details": {"cached_tokens": 1_920, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 320, "accepted_prediction_tokens": 0},
    },
}
OPENAI_RESPONSE = {
    "object": "response",
    "usage": {
        "input_tokens": 2_100,
        "input_tokens_details": {"cached_tokens": 1_920},
        "output_tokens": 350,
        "output_tokens_details": {"reasoning_tokens": 320},
        "total_tokens": 2_450,
    },
}
ANTHROPIC = {
    "type": "message",
    "usage": {
        "input_tokens": 180,
        "cache_creation_input_tokens": 450,
        "cache_read_input_tokens": 1_920,
        "cache_creation": {"ephemeral_5m_input_tokens": 450, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 350,
        "server_tool_use": {"web_search_requests": 2},
        "service_tier": "standard",
    },
}
GEMINI = {
    "candidates": [{}],
    "usageMetadata": {
        "promptTokenCount": 2_100,
        "cachedContentTokenCount": 1_920,
        "candidatesTokenCount": 30,
        "thoughtsTokenCount": 320,
        "totalTokenCount": 2_450,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 2_100}],
    },
}
XAI = {
    "usage": {
        "prompt_tokens": 2_100,
        "completion_tokens": 30,
        "total_tokens": 2_450,
        "prompt_tokens_details": {"cached_tokens": 1_920},
        "completion_tokens_details": {"reasoning_tokens": 320},
    },
}
BEDROCK = {
    "usage": {"inputTokens": 180, "outputTokens": 350, "cacheReadInputTokens": 1_920, "cacheWriteInputTokens": 450}
}
DEEPSEEK = {
    "usage": {
        "prompt_tokens": 2_100,
        "completion_tokens": 350,
        "prompt_cache_hit_tokens": 1_920,
        "prompt_cache_miss_tokens": 180,
    }
}
OPENROUTER = {
    "usage": {
        "prompt_tokens": 2_550,
        "completion_tokens": 350,
        "prompt_tokens_details": {"cached_tokens": 1_920, "cache_write_tokens": 450},
    }
}

SAME = Usage(input=180, output=350, cache_read=1_920, reasoning=320)
WRITTEN = Usage(input=180, output=350, cache_read=1_920, cache_write=450)
ANSWERS: dict[str, tuple[dict[str, Any], Usage, dict[str, float]]] = {
    "openai chat": (OPENAI_CHAT, SAME, {"input_tokens": 2_100, "output_tokens": 350}),
    "openai responses": (OPENAI_RESPONSE, SAME, {"input_tokens": 2_100, "output_tokens": 350}),
    "anthropic": (ANTHROPIC, WRITTEN, {"input_tokens": 630, "output_tokens": 350}),
    "gemini": (GEMINI, SAME, {"input_tokens": 2_100, "output_tokens": 350}),
    "xai": (XAI, SAME, {"input_tokens": 2_100, "output_tokens": 30}),
    "bedrock": (BEDROCK, WRITTEN, {"input_tokens": 180, "output_tokens": 350}),
    "deepseek": (DEEPSEEK, Usage(180, 350, 1_920), {"input_tokens": 2_100, "output_tokens": 350}),
    "openrouter": (OPENROUTER, WRITTEN, {"input_tokens": 2_550, "output_tokens": 350}),
}


@pytest.mark.parametrize(("answer", "billed", "counted"), ANSWERS.values(), ids=ANSWERS.keys())
def test_cached_tokens_are_no_input_whatever_the_provider_counts(
    answer: dict[str, Any], billed: Usage, counted: dict[str, float]
) -> None:
    signal = classify(200, {}, answer, now=0.0)
    sniffer = BodySniffer()
    sniffer.feed(json.dumps(answer).encode())

    assert (signal.billed, signal.usage) == (billed, counted)
    assert (sniffer.usage().billed, sniffer.usage().counted) == (billed, counted)


def stream(*events: dict[str, Any]) -> BodySniffer:
    sniffer = BodySniffer()
    for event in events:
        sniffer.feed(f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n".encode())
    return sniffer


def test_a_stream_of_anthropic_states_the_prompt_first_and_the_answer_last() -> None:
    start = {**ANTHROPIC["usage"], "output_tokens": 1}  # type: ignore[dict-item]

    sniffer = stream(
        {"type": "message_start", "message": {"usage": start}},
        {"type": "content_block_delta", "delta": {"text": "hello"}},
        {"type": "message_delta", "usage": {"output_tokens": 350}},
        {"type": "message_stop"},
    )

    assert sniffer.usage().billed == WRITTEN


def test_a_stream_of_anthropic_may_state_all_figures_again_at_the_end() -> None:
    again = {**ANTHROPIC["usage"], "cache_creation": None}  # type: ignore[dict-item]

    sniffer = stream(
        {"type": "message_start", "message": {"usage": {**again, "output_tokens": 1}}},
        {"type": "message_delta", "usage": again},
    )

    assert sniffer.usage().billed == WRITTEN


def test_a_chat_stream_states_its_usage_in_the_last_chunk() -> None:
    sniffer = stream({"choices": [{"delta": {"content": "4"}}], "usage": None}, {"choices": [], **OPENAI_CHAT})

    assert sniffer.usage().billed == SAME


def test_a_response_stream_states_its_usage_when_it_is_completed() -> None:
    sniffer = stream(
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.completed", "response": OPENAI_RESPONSE},
    )

    assert sniffer.usage().billed == SAME


def test_a_stream_of_gemini_states_its_usage_in_every_chunk_and_the_last_one_counts() -> None:
    early = {"promptTokenCount": 2_100, "cachedContentTokenCount": 1_920, "thoughtsTokenCount": 320}

    assert stream({"usageMetadata": early}, GEMINI).usage().billed == SAME


def as_object(value: Any) -> Any:
    return SimpleNamespace(**{k: as_object(v) for k, v in value.items()}) if isinstance(value, dict) else value


class Answered(SimpleNamespace):
    """An answer as an SDK parses it."""


@pytest.mark.parametrize(("answer", "billed"), [(OPENAI_CHAT, SAME), (OPENAI_RESPONSE, SAME), (ANTHROPIC, WRITTEN)])
def test_the_parsed_answer_of_an_sdk_states_the_same(
    answer: dict[str, Any], billed: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answered, "__module__", "openai.types")

    signal = read_signal(Answered(usage=as_object(answer["usage"])), now=0.0)

    assert signal is not None
    assert signal.billed == billed


@pytest.mark.parametrize("odd", ["many", None, -5, True, [1], {"a": 1}, float("nan"), 10**40])
def test_a_figure_that_is_no_number_of_tokens_is_ignored(odd: object) -> None:
    usage = {"prompt_tokens": odd, "completion_tokens": 7, "prompt_tokens_details": odd}

    assert classify(200, {}, {"usage": usage}, now=0.0).billed == Usage(output=7)


def test_more_cached_tokens_than_input_leave_no_input() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}}

    assert classify(200, {}, {"usage": usage}, now=0.0).billed == Usage(output=1, cache_read=9)
