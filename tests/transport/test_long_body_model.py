"""The model of a body too long to be parsed: found near its ends as exactly as a parser would, or not at all."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentos import CredentialCoordinator, Limit, NoCredentialAvailable
from agentos.testing import FakeClock
from agentos.transport.estimate import Estimator, find_model_near_ends

from .fakes import URL, Provider, credential
from .sdks import anthropic, genai, mistral, openai

at_any_pace = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

PICTURE = bytes(4 * 1024 * 1024)
BASE64 = base64.b64encode(PICTURE).decode()
DATA_URL = f"data:image/png;base64,{BASE64}"
TEXT = {"type": "text", "text": 'Write {"model": "not-me"}, "model": "nor-me".'}
TOOL = {"name": "order", "description": "x", "input_schema": {"properties": {"model": "nor-me"}, "type": "object"}}


def with_openai(http: Any) -> None:
    picture = {"type": "image_url", "image_url": {"url": DATA_URL}}
    openai.OpenAI(api_key="pool", http_client=http, max_retries=0).chat.completions.create(
        model="gpt-5",
        messages=[{"role": "user", "content": [TEXT, picture]}],
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": {"model": "nor-me"}}}}],
        temperature=0,
    )


def with_openais_responses(http: Any) -> None:
    openai.OpenAI(api_key="pool", http_client=http, max_retries=0).responses.create(
        model="gpt-5", input=[{"role": "user", "content": [{"type": "input_image", "image_url": DATA_URL}]}]
    )


def with_anthropic(http: Any) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": BASE64}
    anthropic.Anthropic(api_key="pool", http_client=http, max_retries=0).messages.create(
        model="gpt-5",
        max_tokens=50,
        messages=[{"role": "user", "content": [{"type": "image", "source": source}, TEXT]}],
        system='Be brief. Never say "model": "x" \\',
        tools=[TOOL],
    )


def with_mistral(http: Any) -> None:
    content = [TEXT, {"type": "image_url", "image_url": DATA_URL}]
    mistral.Mistral(api_key="pool", client=http).chat.complete(
        model="gpt-5", messages=[{"role": "user", "content": content}]
    )


def with_gemini(http: Any) -> None:
    types = import_module("google.genai.types")
    client = genai.Client(api_key="pool", http_options=types.HttpOptions(httpx_client=http))
    client.models.generate_content(model="gpt-5", contents=[types.Part.from_bytes(data=PICTURE, mime_type="image/png")])


@pytest.mark.parametrize(
    "ask",
    [with_openai, with_openais_responses, with_anthropic, with_mistral, with_gemini],
    ids=lambda ask: ask.__name__[5:],
)
def test_an_sdks_request_with_a_large_picture_has_its_model(ask: Callable[[Any], None]) -> None:
    seen: list[httpx2.Request] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(418, json={})

    with pytest.raises(Exception):  # noqa: B017 - each has its own
        ask(httpx2.Client(transport=httpx2.MockTransport(refuse)))

    (request,) = seen
    assert len(request.content) > 4 * 1024 * 1024
    assert Estimator().estimate(request.content, request.url.raw_path).model == "gpt-5"


def test_a_limit_of_one_model_is_kept_for_requests_with_large_pictures() -> None:
    limit = Limit("requests", 1, per=60, model="a-model")
    pool = CredentialCoordinator([credential("one", limits=[limit])], clock=FakeClock())
    http = httpx2.Client(transport=pool.transport(Provider(), max_wait=0))
    asked = {"messages": [{"content": DATA_URL}], "model": "a-model"}

    assert http.post(URL, json=asked).status_code == 200
    with pytest.raises(NoCredentialAvailable):
        http.post(URL, json=asked)
    assert http.post(URL, json={**asked, "model": "another"}).status_code == 200


# -- as exactly as a parser would ------------------------------------------------------------------------------------

tricky = st.text(st.sampled_from('model"\\:{}[], é'), max_size=12)
keys = st.one_of(st.just("model"), tricky)
values = st.recursive(
    st.one_of(st.none(), st.integers(), st.just("model"), tricky),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=12,
)


@at_any_pace
@given(st.dictionaries(keys, values, max_size=6), st.integers(1, 200), st.booleans())
@example({"a": '\\"', "model": "\\"}, 20, True)
@example({"a": {"model": "no"}, "b": "}"}, 26, True)
@example({'"model': "no"}, 18, True)
def test_what_is_found_is_what_a_parser_finds(document: dict[str, Any], near: int, plain: bool) -> None:
    body = json.dumps(document, ensure_ascii=plain, separators=None if plain else (",", ":")).encode()
    model = document.get("model")
    wanted = model if isinstance(model, str) else None

    assert find_model_near_ends(body, near) in (wanted, None)
    assert find_model_near_ends(body, len(body)) == wanted


@at_any_pace
@given(st.binary(max_size=200), st.integers(1, 100))
@example(b'{"model":"\xff"}', 100)
@example(b'{"model":"\n"}', 100)
@example(b'{"model":"\\', 100)
def test_no_junk_fails(junk: bytes, near: int) -> None:
    find_model_near_ends(junk, near)
    find_model_near_ends(b"{" + junk + b"}", near)


@pytest.mark.parametrize("text", ["A" * 300, "\\" * 300, '"' * 300, "}" * 300, '\\"' * 150, '"model":"no",' * 30])
def test_a_model_behind_any_text_is_found(text: str) -> None:
    body = json.dumps({"messages": [{"content": text}], "model": "gpt-5", "stream": True}).encode()

    assert {find_model_near_ends(body, near) for near in range(40, len(body))} == {"gpt-5"}


def test_a_model_in_the_midst_of_much_else_is_not_looked_for() -> None:
    body = json.dumps({"a": "x" * 300, "model": "gpt-5", "b": "x" * 300}).encode()

    assert find_model_near_ends(body, 250) is None
