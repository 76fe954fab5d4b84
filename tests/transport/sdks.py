"""The four SDKs: how each is given an HTTP client, how it asks whole and streamed, and how it says no."""

from __future__ import annotations

import ssl
from functools import cache
from importlib import import_module
from typing import Any

from agentos.simulator import Running

# By name, so that the type checker does not read the whole of every SDK.
anthropic = import_module("anthropic")
genai = import_module("google.genai")
genai_errors = import_module("google.genai.errors")
httpx = import_module("httpx")
httpx2 = import_module("httpx2")
mistral = import_module("mistralai.client")
mistral_errors = import_module("mistralai.client.errors")
mistral_retries = import_module("mistralai.client.utils")
openai = import_module("openai")

MODEL = "a-model"
PLACEHOLDER = "pool"  # what the SDKs are given for a key
MESSAGES = [{"role": "user", "content": "hello"}]


@cache
def tls() -> ssl.SSLContext:
    """One for all: making it takes longer than most calls here."""
    return ssl.create_default_context()


@cache
def unused_client() -> Any:
    """For an SDK that wants clients of both kinds where the test uses one."""
    return httpx2.Client(transport=httpx2.MockTransport(_never))


@cache
def unused_async_client() -> Any:
    return httpx2.AsyncClient(transport=httpx2.MockTransport(_never))


def _never(request: Any) -> Any:
    raise AssertionError(f"{request.url} was asked by the wrong client")


class Sdk:
    """One SDK. *timeout* is in seconds, here as everywhere."""

    name: str
    request_id_header: str | None = "x-request-id"  # where its provider says how it calls a call
    limited: type[Exception]  # what it raises for 429
    key_refused: type[Exception]
    server_error: type[Exception]
    no_answer: type[Exception]  # the connection ended before the answer

    def __str__(self) -> str:
        return self.name

    def url(self, provider: Running) -> str:
        """The simulator's address for this SDK."""
        raise NotImplementedError

    def client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        raise NotImplementedError

    def async_client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        raise NotImplementedError

    def ask(self, client: Any, timeout: float | None = None) -> Any:
        raise NotImplementedError

    async def ask_async(self, client: Any, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def stream(self, client: Any, timeout: float | None = None) -> Any:
        """The pieces of a streamed answer, to be iterated."""
        raise NotImplementedError

    async def stream_async(self, client: Any, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def close(self, stream: Any) -> None:
        """End a stream before its end, in this SDK's own way."""
        stream.close()

    async def close_async(self, stream: Any) -> None:
        await stream.close()

    def status(self, error: Any) -> int:
        """The HTTP status that *error* is about."""
        return int(error.status_code)


class OpenAI(Sdk):
    name = "openai"
    limited = openai.RateLimitError
    key_refused = openai.AuthenticationError
    server_error = openai.InternalServerError
    no_answer = openai.APIConnectionError

    def url(self, provider: Running) -> str:
        return provider.base_url

    def client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        return openai.OpenAI(api_key=key, base_url=url, http_client=http, max_retries=retries)

    def async_client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        return openai.AsyncOpenAI(api_key=key, base_url=url, http_client=http, max_retries=retries)

    def ask(self, client: Any, timeout: float | None = None) -> Any:
        return client.chat.completions.create(model=MODEL, messages=MESSAGES, timeout=timeout)

    async def ask_async(self, client: Any, timeout: float | None = None) -> Any:
        return await self.ask(client, timeout)

    def stream(self, client: Any, timeout: float | None = None) -> Any:
        usage = {"include_usage": True}
        return client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options=usage, timeout=timeout
        )

    async def stream_async(self, client: Any, timeout: float | None = None) -> Any:
        return await self.stream(client, timeout)


class Anthropic(Sdk):
    name = "anthropic"
    request_id_header = "request-id"
    limited = anthropic.RateLimitError
    key_refused = anthropic.AuthenticationError
    server_error = anthropic.InternalServerError
    no_answer = anthropic.APIConnectionError

    def url(self, provider: Running) -> str:
        return provider.anthropic_url

    def client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        return anthropic.Anthropic(api_key=key, base_url=url, http_client=http, max_retries=retries)

    def async_client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        return anthropic.AsyncAnthropic(api_key=key, base_url=url, http_client=http, max_retries=retries)

    def ask(self, client: Any, timeout: float | None = None) -> Any:
        return client.messages.create(model=MODEL, max_tokens=50, messages=MESSAGES, timeout=timeout)

    async def ask_async(self, client: Any, timeout: float | None = None) -> Any:
        return await self.ask(client, timeout)

    def stream(self, client: Any, timeout: float | None = None) -> Any:
        return client.messages.create(model=MODEL, max_tokens=50, messages=MESSAGES, stream=True, timeout=timeout)

    async def stream_async(self, client: Any, timeout: float | None = None) -> Any:
        return await self.stream(client, timeout)


class Gemini(Sdk):
    name = "google-genai"
    request_id_header = None
    limited = genai_errors.ClientError
    key_refused = genai_errors.ClientError
    server_error = genai_errors.ServerError
    no_answer = httpx2.TransportError

    def url(self, provider: Running) -> str:
        return provider.gemini_url

    def client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        return self._client(url, retries, key, httpx_client=http)

    def async_client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        return self._client(url, retries, key, httpx_async_client=http)

    def _client(self, url: str, retries: int, key: str, **http: Any) -> Any:
        given = {"httpx_client": unused_client(), "httpx_async_client": unused_async_client(), **http}
        again = genai.types.HttpRetryOptions(attempts=retries + 1, initial_delay=0.001, max_delay=0.001, jitter=0.0)
        options = genai.types.HttpOptions(
            base_url=url,
            retry_options=again if retries else None,
            async_client_args={"ssl": tls()},  # else it makes one for web sockets, each time
            **given,
        )
        return genai.Client(api_key=key, http_options=options)

    def _config(self, timeout: float | None) -> Any:
        return {"http_options": {"timeout": int(timeout * 1000)}} if timeout is not None else None

    def ask(self, client: Any, timeout: float | None = None) -> Any:
        return client.models.generate_content(model=MODEL, contents="hello", config=self._config(timeout))

    async def ask_async(self, client: Any, timeout: float | None = None) -> Any:
        return await client.aio.models.generate_content(model=MODEL, contents="hello", config=self._config(timeout))

    def stream(self, client: Any, timeout: float | None = None) -> Any:
        return client.models.generate_content_stream(model=MODEL, contents="hello", config=self._config(timeout))

    async def stream_async(self, client: Any, timeout: float | None = None) -> Any:
        ask = client.aio.models.generate_content_stream
        return await ask(model=MODEL, contents="hello", config=self._config(timeout))

    async def close_async(self, stream: Any) -> None:
        await stream.aclose()  # which ends the outermost of its generators: the others are left to the collector

    def status(self, error: Any) -> int:
        return int(error.code)


class Mistral(Sdk):
    name = "mistralai"
    limited = mistral_errors.SDKError
    key_refused = mistral_errors.SDKError
    server_error = mistral_errors.SDKError
    no_answer = httpx2.TransportError

    def url(self, provider: Running) -> str:
        return provider.mistral_url

    def client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        return self._client(url, retries, key, client=http)

    def async_client(self, http: Any, url: str, *, retries: int = 0, key: str = PLACEHOLDER) -> Any:
        return self._client(url, retries, key, async_client=http)

    def _client(self, url: str, retries: int, key: str, **http: Any) -> Any:
        given = {"client": unused_client(), "async_client": unused_async_client(), **http}
        backoff = mistral_retries.BackoffStrategy(1, 1, 1.0, 60_000, jitter_ms=0)
        again = mistral_retries.RetryConfig("backoff", backoff, retry_connection_errors=False)
        return mistral.Mistral(api_key=key, server_url=url, retry_config=again if retries else None, **given)

    def _options(self, timeout: float | None) -> dict[str, Any]:
        return {"model": MODEL, "messages": MESSAGES, "timeout_ms": None if timeout is None else int(timeout * 1000)}

    def ask(self, client: Any, timeout: float | None = None) -> Any:
        return client.chat.complete(**self._options(timeout))

    async def ask_async(self, client: Any, timeout: float | None = None) -> Any:
        return await client.chat.complete_async(**self._options(timeout))

    def stream(self, client: Any, timeout: float | None = None) -> Any:
        return client.chat.stream(**self._options(timeout))

    async def stream_async(self, client: Any, timeout: float | None = None) -> Any:
        return await client.chat.stream_async(**self._options(timeout))


SDKS = (OpenAI(), Anthropic(), Gemini(), Mistral())
