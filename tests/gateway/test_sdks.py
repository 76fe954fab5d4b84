"""The real SDKs of Python, curl and Node's own client work with the gateway unchanged, streaming and not."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from google import genai

from agentos import Credential, CredentialCoordinator
from agentos.simulator import Latency, Running, Simulator, equal_keys

from .running import Served, serving, wait_until

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def simulator() -> Iterator[Running]:
    with Simulator(equal_keys(3, rpm=600, latency=Latency(0.004, 0.0))) as running:
        yield running


@pytest.fixture
def served(simulator: Running) -> Iterator[Served]:
    """A gateway whose keys are valid for all providers: the simulator speaks their dialects at one address."""
    keys = [
        Credential(key.secret, name=f"{provider}-{number}", provider=provider, base_url=simulator.url, slots=2)
        for provider, key, number in zip(
            ("openai", "anthropic", "gemini"), equal_keys(3, rpm=600).keys, range(1, 4), strict=True
        )
    ]
    with CredentialCoordinator(keys) as pool, serving(pool) as made:
        yield made


def test_the_openai_sdk_works_unchanged(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.token) as client:
        whole = client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        streamed = list(client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True))
        response = client.responses.create(model="gpt-4o", input="hi")
        events = list(client.responses.create(model="gpt-4o", input="hi", stream=True))
        embedded = client.embeddings.create(model="text-embedding-3-small", input="hi")
        models = client.models.list()

    assert whole.choices[0].message.content == "Simulated answer 1."
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == "Simulated answer 2."
    assert response.output_text == "Simulated answer 3."
    assert events[-1].type == "response.completed"
    assert embedded.data[0].embedding
    assert models.data


def test_the_anthropic_sdk_works_unchanged(served: Served) -> None:
    with anthropic.Anthropic(base_url=served.url, api_key=served.token) as client:
        whole = client.messages.create(model="claude-sonnet-5", max_tokens=20, messages=MESSAGES)
        with client.messages.stream(model="claude-sonnet-5", max_tokens=20, messages=MESSAGES) as stream:
            text = stream.get_final_text()

    assert (whole.content[0].text, text) == ("Simulated answer 1.", "Simulated answer 2.")  # type: ignore[union-attr]


def test_the_asynchronous_sdks_work_unchanged(served: Served) -> None:
    async def both() -> tuple[str | None, str]:
        async with (
            openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=served.token) as one,
            anthropic.AsyncAnthropic(base_url=served.url, auth_token=served.token, api_key=None) as other,
        ):
            answers = await asyncio.gather(
                one.chat.completions.create(model="gpt-4o", messages=MESSAGES),
                other.messages.create(model="claude-sonnet-5", max_tokens=20, messages=MESSAGES),
            )
            return answers[0].choices[0].message.content, answers[1].content[0].text  # type: ignore[union-attr]

    assert {word.split()[0] for word in asyncio.run(both()) if word} == {"Simulated"}


def test_the_gemini_sdk_works_unchanged(served: Served) -> None:
    client = genai.Client(api_key=served.token, http_options={"base_url": served.url})
    whole = client.models.generate_content(model="gemini-2.5-flash", contents="hi")
    streamed = [each.text for each in client.models.generate_content_stream(model="gemini-2.5-flash", contents="hi")]
    client.close()

    assert whole.text == "Simulated answer 1."
    assert "".join(filter(None, streamed)) == "Simulated answer 2."


def test_an_error_reaches_the_sdk_as_its_own_exception(served: Served) -> None:
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with (
        anthropic.Anthropic(base_url=served.url, api_key="wrong") as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.create(model="m", max_tokens=1, messages=MESSAGES)


@pytest.mark.parametrize(
    "more", [[], ["--http1.0"], ["-H", "expect: 100-continue"], ["-H", "transfer-encoding: chunked"]]
)
@pytest.mark.parametrize("stream", [True, False])
def test_curl_works(served: Served, more: list[str], stream: bool) -> None:
    if "transfer-encoding: chunked" in more and "--http1.0" in more:
        return
    curl = shutil.which("curl")
    assert curl is not None, "this test needs curl"
    body = json.dumps({"model": "gpt-4o", "stream": stream, "messages": MESSAGES})
    words = [curl, "-sS", "--fail-with-body", "-m", "60", "-N", *more, "-d", "@-"]
    headers = ["-H", f"authorization: Bearer {served.token}", "-H", "content-type: application/json"]
    ended = subprocess.run(
        [*words, *headers, f"{served.url}/v1/chat/completions"], input=body, capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Simulated" in ended.stdout
    assert ("[DONE]" in ended.stdout) == stream
    wait_until(lambda: len(served.records) == 1)
    assert served.records[0].outcome == "done"
