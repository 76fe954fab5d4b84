"""The real packages of Google and Mistral take the simulator for the provider: whole, streamed, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from agentos.simulator import Latency, Running, Scripted, Simulator, equal_keys

# By name, so that the type checker does not read the whole of every SDK.
anthropic = import_module("anthropic")
genai = import_module("google.genai")
openai = import_module("openai")
mistral = import_module("mistralai.client")

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

MODEL = "gemini-2.5-flash"
PROMPT = "x" * 40
MESSAGES = [{"role": "user", "content": PROMPT}]
AT_ONCE = Latency(0, 0)


@pytest.fixture
def provider() -> Iterator[Running]:
    with Simulator(equal_keys(2, latency=AT_ONCE, rejection_latency=0.0)) as simulator:
        yield simulator
        simulator.wait_idle()
        assert simulator.statistics().violations == ()


def gemini_client(provider: Running, key: int = 0) -> Any:
    options = genai.types.HttpOptions(base_url=provider.gemini_url)
    return genai.Client(api_key=provider.keys[key], http_options=options)


def mistral_client(provider: Running, key: int = 0) -> Any:
    return mistral.Mistral(api_key=provider.keys[key], server_url=provider.mistral_url)


def test_genai_has_its_answer_and_is_known_by_its_key(provider: Running) -> None:
    config = genai.types.GenerateContentConfig(max_output_tokens=9, system_instruction="x" * 8)
    with gemini_client(provider, key=1) as client:
        answer = client.models.generate_content(model=MODEL, contents=PROMPT, config=config)

    assert (answer.text, answer.model_version) == ("Simulated answer 1.", MODEL)
    used = answer.usage_metadata
    assert (used.prompt_token_count, used.candidates_token_count, used.total_token_count) == (12, 9, 21)
    assert answer.candidates[0].finish_reason is genai.types.FinishReason.MAX_TOKENS
    assert {name: tally.ok for name, tally in provider.statistics().keys.items()} == {"key-1": 0, "key-2": 1}


def test_genai_has_its_stream(provider: Running) -> None:
    with gemini_client(provider) as client:
        chunks = list(client.models.generate_content_stream(model=MODEL, contents=PROMPT))

    assert [chunk.text for chunk in chunks] == ["Simulated", " answer", " 1."]
    assert chunks[-1].usage_metadata.total_token_count == 26


def test_genai_has_both_without_a_thread(provider: Running) -> None:
    async def ask() -> list[str]:
        with gemini_client(provider) as client:
            async with client.aio as aio:
                whole = await aio.models.generate_content(model=MODEL, contents=PROMPT)
                stream = await aio.models.generate_content_stream(model=MODEL, contents=PROMPT)
                return [whole.text, *[chunk.text async for chunk in stream]]

    assert asyncio.run(ask()) == ["Simulated answer 1.", "Simulated", " answer", " 2."]


@pytest.mark.parametrize("method", ["generate_content", "generate_content_stream"])
def test_genai_knows_a_refusal_for_what_it_is(method: str) -> None:
    plan = equal_keys(1, rpm=1, latency=AT_ONCE, rejection_latency=0.0)
    with Simulator(plan) as provider, gemini_client(provider) as client:
        client.models.generate_content(model=MODEL, contents=PROMPT)
        with pytest.raises(genai.errors.ClientError) as caught:
            list(getattr(client.models, method)(model=MODEL, contents=PROMPT))

    assert (caught.value.code, caught.value.status) == (429, "RESOURCE_EXHAUSTED")
    assert caught.value.details["error"]["details"][-1]["retryDelay"] == "60s"


def test_genai_sees_a_stream_that_is_cut() -> None:
    plan = equal_keys(1, latency=AT_ONCE, script=(Scripted("cut", call=1),))
    with Simulator(plan) as provider, gemini_client(provider) as client, pytest.raises(Exception, match="incomplete"):
        list(client.models.generate_content_stream(model=MODEL, contents=PROMPT))

    assert provider.statistics().total.failed == 1


def test_genai_may_leave_a_stream_that_hangs() -> None:
    with Simulator(equal_keys(1, latency=AT_ONCE, script=(Scripted("hang", call=1),))) as provider:
        with gemini_client(provider) as client:
            stream = client.models.generate_content_stream(model=MODEL, contents=PROMPT)
            assert next(stream).text == "Simulated"
            assert provider.statistics().total.in_flight == 1
            stream.close()
        provider.wait_idle()

    assert provider.statistics().total.left == 1


def test_mistral_has_its_answer_and_its_stream(provider: Running) -> None:
    with mistral_client(provider) as client:
        whole = client.chat.complete(model="mistral-small", messages=MESSAGES)
        with client.chat.stream(model="mistral-small", messages=MESSAGES) as stream:
            chunks = [event.data for event in stream]

    assert (whole.choices[0].message.content, whole.usage.total_tokens) == ("Simulated answer 1.", 26)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Simulated answer 2."
    assert (chunks[-1].choices[0].finish_reason, chunks[-1].usage.total_tokens) == ("stop", 26)


def test_mistral_has_both_without_a_thread(provider: Running) -> None:
    async def ask() -> tuple[str, int]:
        async with mistral_client(provider) as client:
            whole = await client.chat.complete_async(model="mistral-small", messages=MESSAGES)
            async with await client.chat.stream_async(model="mistral-small", messages=MESSAGES) as stream:
                chunks = [event.data async for event in stream]
        return whole.choices[0].message.content, chunks[-1].usage.total_tokens

    assert asyncio.run(ask()) == ("Simulated answer 1.", 26)


def test_mistral_knows_a_refusal_for_what_it_is() -> None:
    plan = equal_keys(1, spent=True, rejection_latency=0.0)
    refused = pytest.raises(mistral.errors.SDKError)
    with Simulator(plan) as provider, mistral_client(provider) as client, refused as caught:
        client.chat.complete(model="mistral-small", messages=MESSAGES)

    assert caught.value.status_code == 429
    assert caught.value.headers["x-request-id"] == "req_000000000001"


# -- models and embeddings ------------------------------------------------------------------------------------------


def test_every_sdk_lists_the_models(provider: Running) -> None:
    with (
        openai.OpenAI(api_key=provider.keys[0], base_url=provider.base_url) as client,
        anthropic.Anthropic(api_key=provider.keys[0], base_url=provider.anthropic_url) as other,
        gemini_client(provider) as third,
    ):
        assert "gpt-4o" in [model.id for model in client.models.list()]
        assert client.models.retrieve("gpt-4o").id == "gpt-4o"
        assert "claude-sonnet-4" in [model.id for model in other.models.list()]
        assert "models/gemini-2.5-flash" in [model.name for model in third.models.list()]
    assert provider.statistics().total.calls == 0


def test_the_models_are_not_listed_to_a_key_that_is_not_valid(provider: Running) -> None:
    with (
        openai.OpenAI(api_key="wrong", base_url=provider.base_url) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}])
def test_openai_has_its_embeddings(provider: Running, options: dict[str, str]) -> None:
    with openai.OpenAI(api_key=provider.keys[0], base_url=provider.base_url) as client:
        answer = client.embeddings.create(model="text-embedding-3-small", input=[PROMPT, "y"], dimensions=4, **options)

    assert [(each.index, len(each.embedding)) for each in answer.data] == [(0, 4), (1, 4)]
    assert answer.data[0].embedding != answer.data[1].embedding
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (11, 11)
    assert provider.statistics().total.ok == 1
