"""The real clients, against a server on the loopback: what they raise is understood, though none is ever imported."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentos.providers import Event, Signal, from_exception, read_signal

from . import real_clients as clients
from .real_clients import CLIENTS, SECRET, Client, failure, outcome
from .real_server import Answer, Provider, nobody, running

NOW = 1_800_000_000.0

# google-genai subclasses a class of aiohttp's that would rather not be.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

each_client = pytest.mark.parametrize("client", CLIENTS, ids=str)


@pytest.fixture(autouse=True)
def no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client reads all certificates of the machine when it is made. None of these calls needs one."""
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *args, **options: None)


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with running() as provider:
        yield provider


def error(kind: str, message: str = f"no, not with {SECRET}", **more: object) -> dict[str, Any]:
    """An error's body that all dialects understand, with a secret in its words."""
    return {"error": {"message": message, "type": kind, "code": kind, "param": None, **more}}


def signal_from(exc: BaseException) -> Signal:
    signal = from_exception(exc, now=NOW)
    assert signal is not None
    assert SECRET not in repr(signal)
    return signal


@each_client
@pytest.mark.parametrize(
    ("answer", "event"),
    [
        (Answer(429, error("rate_limit_exceeded"), {"Retry-After": "7"}), Event.LIMITED),
        (Answer(401, error("invalid_api_key")), Event.KEY_DEAD),
        (Answer(402, error("payment_required")), Event.MONEY_GONE),
        (Answer(400, error("invalid_request_error")), Event.CALLER),
        (Answer(500, error("server_error")), Event.BUSY),
        (Answer(529, error("overloaded_error")), Event.BUSY),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else value.name,
)
def test_a_refusal_is_understood(server: Provider, client: Client, answer: Answer, event: Event) -> None:
    server.will(answer)

    signal = signal_from(failure(client.ask, server.url))

    assert (signal.event, signal.status, signal.retried) == (event, answer.status, 0)
    assert signal.delay == (7.0 if "Retry-After" in answer.headers else None)
    assert signal.provider == client.provider or client.provider is None
    assert server.asked == 1


@each_client
def test_money_that_is_gone_is_told_from_a_limit_by_the_body(server: Provider, client: Client) -> None:
    """aiohttp and urllib do not keep the body of what they raise for: with them it stays a limit."""
    body = {"message": "no", "type": "insufficient_quota", "code": "insufficient_quota"}
    server.will(Answer(429, body if client.provider == "bedrock" else {"error": body}))

    signal = signal_from(failure(client.ask, server.url))

    assert signal.event is (Event.MONEY_GONE if client.keeps_body else Event.LIMITED)


@each_client
def test_a_refused_connection_is_the_network(client: Client) -> None:
    with nobody() as url:
        signal = signal_from(failure(client.ask, url))

    assert (signal.event, signal.status, signal.delay) == (Event.NETWORK, None, None)
    assert signal.evidence[0].startswith("exception ")


@each_client
def test_an_answer_cut_in_the_middle_is_the_network(server: Provider, client: Client) -> None:
    server.will(Answer(200, "{", cut=True))

    assert signal_from(failure(client.ask, server.url)).event is Event.NETWORK


# -- streams -------------------------------------------------------------------------------------------------------


def stream(*events: str) -> Answer:
    return Answer(200, "".join(f"{event}\n\n" for event in events), kind="text/event-stream")


OPENAI_CHUNK = (
    'data: {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "a-model", "choices": '
    '[{"index": 0, "delta": {"content": "hi"}, "finish_reason": null}]}'
)
ANTHROPIC_PING = 'event: ping\ndata: {"type": "ping"}'


@pytest.mark.parametrize("ask", [clients.openai_stream, clients.openai_async_stream])
def test_an_error_in_the_middle_of_openais_stream_is_understood(server: Provider, ask: Any) -> None:
    limited = '{"error": {"message": "Rate limit reached", "type": "tokens", "code": "rate_limit_exceeded"}}'
    server.will(stream(OPENAI_CHUNK, f"data: {limited}"))

    signal = signal_from(failure(ask, server.url))

    assert (signal.event, signal.provider) == (Event.LIMITED, "openai")


@pytest.mark.parametrize("ask", [clients.anthropic_stream, clients.anthropic_async_stream])
def test_an_error_in_the_middle_of_anthropics_stream_is_understood(server: Provider, ask: Any) -> None:
    overloaded = '{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    server.will(stream(ANTHROPIC_PING, f"event: error\ndata: {overloaded}"))

    signal = signal_from(failure(ask, server.url))

    assert (signal.event, signal.provider) == (Event.BUSY, "anthropic")


@pytest.mark.parametrize(
    "ask",
    [
        clients.openai_stream,
        clients.openai_async_stream,
        clients.anthropic_stream,
        clients.anthropic_async_stream,
    ],
)
def test_a_stream_that_is_cut_is_the_network(server: Provider, ask: Any) -> None:
    server.will(Answer(200, f"{ANTHROPIC_PING}\n\n", kind="text/event-stream", cut=True))

    assert signal_from(failure(ask, server.url)).event is Event.NETWORK


@pytest.mark.parametrize("library", [clients.httpx, clients.httpx2], ids=["httpx", "httpx2"])
def test_a_body_that_was_not_read_is_left_alone(server: Provider, library: Any) -> None:
    server.will(Answer(429, error("insufficient_quota"), {"Retry-After": "7"}))

    with library.Client(trust_env=False) as client, client.stream("POST", server.url) as response:
        raised = failure(response.raise_for_status)
        before = signal_from(raised)
        assert not response.is_stream_consumed
        response.read()
        after = signal_from(raised)

    assert (before.event, before.delay) == (Event.LIMITED, 7.0)
    assert after.event is Event.MONEY_GONE


def test_requests_is_not_made_to_download(server: Provider) -> None:
    server.will(Answer(429, error("insufficient_quota"), {"Retry-After": "7"}))

    with clients.requests.post(server.url, stream=True, timeout=60) as response:
        signal = read_signal(response, now=NOW)
        assert response._content is False

    assert signal is not None
    assert (signal.event, signal.delay) == (Event.LIMITED, 7.0)


# -- the client's own retries --------------------------------------------------------------------------------------


AGAIN = Answer(429, error("rate_limit_exceeded"), {"Retry-After": "0.001", "retry-after-ms": "1"})


@pytest.mark.parametrize(
    "ask",
    [
        clients.openai_sync,
        clients.openai_async,
        clients.anthropic_sync,
        clients.anthropic_async,
        clients.requests_sync,
        clients.botocore_sync,
    ],
)
def test_the_clients_own_retries_are_counted(server: Provider, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: None))
    server.will(AGAIN)

    signal = signal_from(failure(ask, server.url, retries=2))

    assert (signal.event, signal.retried, server.asked) == (Event.LIMITED, 2, 3)


@pytest.mark.parametrize("ask", [clients.openai_sync, clients.openai_async, clients.anthropic_sync])
def test_retries_are_counted_where_no_answer_ever_came(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *args: 0.0)
    monkeypatch.setattr("anthropic._base_client.BaseClient._calculate_retry_timeout", lambda *args: 0.0)
    with nobody() as url:
        signal = signal_from(failure(ask, url, retries=1))

    assert (signal.event, signal.retried) == (Event.NETWORK, 1)


@pytest.mark.parametrize("ask", [clients.genai_sync, clients.genai_async, clients.mistral_sync, clients.mistral_async])
def test_some_clients_do_not_tell_of_their_retries(server: Provider, ask: Any) -> None:
    """Not a wish but a fact: should one of them begin to tell, this says so."""
    server.will(AGAIN, Answer(401, error("invalid_api_key")))

    signal = signal_from(failure(ask, server.url, retries=1))

    assert (signal.event, signal.retried, server.asked) == (Event.KEY_DEAD, 0, 2)


def test_the_status_is_known_though_urllib3_kept_only_words(server: Provider) -> None:
    server.will(AGAIN)

    raised = failure(clients.requests_sync, server.url, retries=1, raises=True)

    assert type(raised).__name__ == "RetryError"
    assert (signal_from(raised).event, signal_from(raised).status) == (Event.LIMITED, 429)


def test_the_retries_of_a_call_that_went_well_are_counted(server: Provider) -> None:
    server.will(AGAIN, Answer(200, CHAT))

    with clients.openai.OpenAI(api_key=SECRET, base_url=server.url, max_retries=1) as client:
        raw = client.chat.completions.with_raw_response.create(model="a-model", messages=clients.MESSAGES)

    signal = read_signal(raw, now=NOW)
    assert signal is not None
    assert (signal.event, signal.retried) == (Event.OK, 1)


# -- which provider ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://resource.openai.azure.com/openai/v1", "azure"),
        ("http://gateway.example/v1", "openai"),
    ],
)
@pytest.mark.parametrize("answered", [True, False])
def test_the_address_of_openais_client_decides_whom_it_asked(url: str, provider: str, answered: bool) -> None:
    def answer(request: Any) -> Any:
        if answered:
            return clients.httpx2.Response(429, json={})
        raise clients.httpx2.ConnectError("refused")

    transport = clients.httpx2.Client(transport=clients.httpx2.MockTransport(answer))
    with clients.openai.OpenAI(api_key=SECRET, base_url=url, max_retries=0, http_client=transport) as client:
        raised = failure(client.chat.completions.create, model="a-model", messages=clients.MESSAGES)

    signal = signal_from(raised)
    assert signal.provider == provider
    assert signal.event is (Event.LIMITED if answered else Event.NETWORK)


# -- answers that went well ----------------------------------------------------------------------------------------


CHAT = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "a-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
}
MESSAGE = {
    "id": "1",
    "type": "message",
    "role": "assistant",
    "model": "a-model",
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 9, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 99, "output_tokens": 7},
}
GENERATED = {
    "candidates": [{"content": {"parts": [{"text": "hi"}], "role": "model"}, "finishReason": "STOP"}],
    "modelVersion": "a-model",
    "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 4, "thoughtsTokenCount": 3},
}
USED = {"input_tokens": 11.0, "output_tokens": 7.0}


@pytest.mark.parametrize(
    ("ask", "body", "provider"),
    [
        (clients.openai_sync, CHAT, "openai"),
        (clients.openai_async, CHAT, "openai"),
        (clients.anthropic_sync, MESSAGE, "anthropic"),
        (clients.anthropic_async, MESSAGE, "anthropic"),
        (clients.genai_sync, GENERATED, "gemini"),
        (clients.genai_async, GENERATED, "gemini"),
        (clients.mistral_sync, CHAT, "mistral"),
        (clients.mistral_async, CHAT, "mistral"),
    ],
)
def test_a_parsed_answer_tells_its_usage(server: Provider, ask: Any, body: object, provider: str) -> None:
    server.will(Answer(200, body))

    signal = read_signal(outcome(ask, server.url), now=NOW)

    assert signal is not None
    assert (signal.event, signal.provider, signal.model) == (Event.OK, provider, "a-model")
    assert signal.usage == USED


LIMITS = {"x-ratelimit-limit-requests": "500", "x-ratelimit-remaining-requests": "499"}


@pytest.mark.parametrize(
    "ask",
    [
        clients.httpx_sync,
        clients.httpx_async,
        clients.httpx2_sync,
        clients.httpx2_async,
        clients.requests_sync,
        clients.aiohttp_async,
    ],
)
def test_a_response_tells_its_limits_and_its_usage(server: Provider, ask: Any) -> None:
    server.will(Answer(200, CHAT, LIMITS))

    signal = read_signal(outcome(ask, server.url), now=NOW)

    assert signal is not None
    assert (signal.event, signal.usage) == (Event.OK, USED)
    assert [(reading.limit, reading.remaining) for reading in signal.readings] == [(500.0, 499.0)]


def test_urllibs_response_tells_its_limits(server: Provider) -> None:
    server.will(Answer(200, CHAT, LIMITS))

    signal = read_signal(outcome(clients.urllib_sync, server.url), now=NOW)

    assert signal is not None
    assert [reading.remaining for reading in signal.readings] == [499.0]


@pytest.mark.parametrize("kind", ["with_raw_response", "with_streaming_response"])
def test_a_raw_response_of_openai_tells_its_limits(server: Provider, kind: str) -> None:
    server.will(Answer(200, CHAT, LIMITS))

    with clients.openai.OpenAI(api_key=SECRET, base_url=server.url, max_retries=0) as client:
        asked = getattr(client.chat.completions, kind).create(model="a-model", messages=clients.MESSAGES)
        if kind == "with_raw_response":
            signal = read_signal(asked, now=NOW)
        else:
            with asked as response:
                signal = read_signal(response, now=NOW)

    assert signal is not None
    assert (signal.event, signal.provider) == (Event.OK, "openai")
    assert [reading.remaining for reading in signal.readings] == [499.0]
    assert signal.usage == (USED if kind == "with_raw_response" else {})


def test_a_raw_response_of_anthropic_tells_its_limits(server: Provider) -> None:
    limits = {"anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "49"}
    server.will(Answer(200, MESSAGE, limits))

    with clients.anthropic.Anthropic(api_key=SECRET, base_url=server.url, max_retries=0) as client:
        raw = client.messages.with_raw_response.create(model="a-model", max_tokens=5, messages=clients.MESSAGES)

    signal = read_signal(raw, now=NOW)
    assert signal is not None
    assert (signal.provider, signal.usage) == ("anthropic", USED)
    assert [reading.remaining for reading in signal.readings] == [49.0]


def test_a_stream_of_openai_tells_its_limits_before_it_is_read(server: Provider) -> None:
    server.will(Answer(200, f"{OPENAI_CHUNK}\n\ndata: [DONE]\n\n", LIMITS, kind="text/event-stream"))

    with (
        clients.openai.OpenAI(api_key=SECRET, base_url=server.url, max_retries=0) as client,
        client.chat.completions.create(model="a-model", messages=clients.MESSAGES, stream=True) as chunks,
    ):
        signal = read_signal(chunks, now=NOW)
        read = list(chunks)

    assert signal is not None
    assert [reading.remaining for reading in signal.readings] == [499.0]
    assert len(read) == 1


def test_a_gemini_answer_keeps_its_headers(server: Provider) -> None:
    server.will(Answer(200, GENERATED, LIMITS))

    signal = read_signal(outcome(clients.genai_sync, server.url), now=NOW)

    assert signal is not None
    assert [reading.remaining for reading in signal.readings] == [499.0]


def test_an_answer_of_bedrock_tells_its_usage_in_headers(server: Provider) -> None:
    used = {"X-Amzn-Bedrock-Input-Token-Count": "11", "X-Amzn-Bedrock-Output-Token-Count": "7"}
    server.will(Answer(200, {}, used))

    signal = read_signal(outcome(clients.botocore_sync, server.url), now=NOW)

    assert signal is not None
    assert (signal.event, signal.provider, signal.usage) == (Event.OK, "bedrock", USED)


def test_bedrocks_own_code_decides(server: Provider) -> None:
    server.will(Answer(400, {"message": "slower"}, {"x-amzn-errortype": "ThrottlingException:http://internal/"}))

    signal = signal_from(failure(clients.botocore_sync, server.url))

    assert (signal.event, signal.status) == (Event.LIMITED, 400)


@pytest.mark.parametrize("ask", [clients.openai_sync, clients.mistral_sync, clients.aiohttp_async])
def test_a_good_answer_that_the_client_cannot_use_is_not_a_signal(server: Provider, ask: Any) -> None:
    server.will(Answer(200, "<html>", kind="text/html"))

    async def parsed(url: str) -> None:
        async with clients.aiohttp.ClientSession() as session, session.post(url) as answer:
            await answer.json()

    if ask is clients.openai_sync:
        with clients.openai.OpenAI(
            api_key=SECRET, base_url=server.url, max_retries=0, _strict_response_validation=True
        ) as client:
            raised = failure(client.chat.completions.create, model="a-model", messages=clients.MESSAGES)
    else:
        raised = failure(parsed if ask is clients.aiohttp_async else ask, server.url)

    assert from_exception(raised, now=NOW) is None


def test_none_of_the_clients_is_imported() -> None:
    script = (
        "import sys, agentos.providers\n"
        "agentos.providers.from_exception(ConnectionError(), now=0.0)\n"
        "known = {'aiohttp', 'anthropic', 'botocore', 'google', 'httpx', 'httpx2', 'mistralai', 'openai', 'requests'}\n"
        "print(sorted(known & set(sys.modules)))"
    )

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150, check=False)

    assert (ended.stdout, ended.stderr) == ("[]\n", "")
