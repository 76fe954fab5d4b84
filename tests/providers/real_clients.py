"""Each real client, asking once: what it is called, whom it takes itself to ask, and how."""

from __future__ import annotations

import asyncio
import inspect
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

# By name, so that the type checker does not read the whole of every SDK.
aiohttp = import_module("aiohttp")
anthropic = import_module("anthropic")
botocore_config = import_module("botocore.config")
botocore_session = import_module("botocore.session")
genai = import_module("google.genai")
httpx = import_module("httpx")
httpx2 = import_module("httpx2")
mistral = import_module("mistralai.client")
mistral_retries = import_module("mistralai.client.utils")
openai = import_module("openai")
requests = import_module("requests")
retry = import_module("urllib3.util.retry")

SECRET = "sk-planted-0123456789"  # looks like one, so that a leak is seen
MESSAGES = [{"role": "user", "content": "hello"}]


def openai_sync(url: str, retries: int = 0) -> Any:
    with openai.OpenAI(api_key=SECRET, base_url=url, max_retries=retries) as client:
        return client.chat.completions.create(model="a-model", messages=MESSAGES)


async def openai_async(url: str, retries: int = 0) -> Any:
    async with openai.AsyncOpenAI(api_key=SECRET, base_url=url, max_retries=retries) as client:
        return await client.chat.completions.create(model="a-model", messages=MESSAGES)


def openai_stream(url: str) -> None:
    with openai.OpenAI(api_key=SECRET, base_url=url, max_retries=0) as client:
        for _ in client.chat.completions.create(model="a-model", messages=MESSAGES, stream=True):
            pass


async def openai_async_stream(url: str) -> None:
    async with openai.AsyncOpenAI(api_key=SECRET, base_url=url, max_retries=0) as client:
        async for _ in await client.chat.completions.create(model="a-model", messages=MESSAGES, stream=True):
            pass


def anthropic_sync(url: str, retries: int = 0) -> Any:
    with anthropic.Anthropic(api_key=SECRET, base_url=url, max_retries=retries) as client:
        return client.messages.create(model="a-model", max_tokens=5, messages=MESSAGES)


async def anthropic_async(url: str, retries: int = 0) -> Any:
    async with anthropic.AsyncAnthropic(api_key=SECRET, base_url=url, max_retries=retries) as client:
        return await client.messages.create(model="a-model", max_tokens=5, messages=MESSAGES)


def anthropic_stream(url: str) -> None:
    with anthropic.Anthropic(api_key=SECRET, base_url=url, max_retries=0) as client:
        for _ in client.messages.create(model="a-model", max_tokens=5, messages=MESSAGES, stream=True):
            pass


async def anthropic_async_stream(url: str) -> None:
    async with anthropic.AsyncAnthropic(api_key=SECRET, base_url=url, max_retries=0) as client:
        async for _ in await client.messages.create(model="a-model", max_tokens=5, messages=MESSAGES, stream=True):
            pass


def _genai(url: str, retries: int) -> Any:
    # Without options for retries it sleeps for seconds after a refused connection.
    again = genai.types.HttpRetryOptions(attempts=retries + 1, initial_delay=0.001, max_delay=0.001, jitter=0.0)
    return genai.Client(api_key=SECRET, http_options=genai.types.HttpOptions(base_url=url, retry_options=again))


def genai_sync(url: str, retries: int = 0) -> Any:
    with _genai(url, retries) as client:
        return client.models.generate_content(model="a-model", contents="hello")


async def genai_async(url: str, retries: int = 0) -> Any:
    with _genai(url, retries) as client:
        async with client.aio as asynchronous:
            return await asynchronous.models.generate_content(model="a-model", contents="hello")


def _mistral_retries(retries: int) -> Any:
    strategy = "backoff" if retries else "none"
    backoff = mistral_retries.BackoffStrategy(1, 1, 1.0, 60_000, jitter_ms=0)
    return mistral_retries.RetryConfig(strategy, backoff, retry_connection_errors=False)


def mistral_sync(url: str, retries: int = 0) -> Any:
    with mistral.Mistral(api_key=SECRET, server_url=url, retry_config=_mistral_retries(retries)) as client:
        return client.chat.complete(model="a-model", messages=MESSAGES)


async def mistral_async(url: str, retries: int = 0) -> Any:
    async with mistral.Mistral(api_key=SECRET, server_url=url, retry_config=_mistral_retries(retries)) as client:
        return await client.chat.complete_async(model="a-model", messages=MESSAGES)


@cache  # it reads megabytes of descriptions, and keeps them
def _botocore() -> Any:
    return botocore_session.Session()


def botocore_sync(url: str, retries: int = 0) -> Any:
    client = _botocore().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="planted",
        aws_secret_access_key=SECRET,
        config=botocore_config.Config(retries={"total_max_attempts": retries + 1, "mode": "standard"}),
    )
    try:
        answer = client.invoke_model(modelId="a-model", body=b"{}")
        answer["body"].read()
        return answer
    finally:
        client.close()


def httpx_sync(url: str) -> Any:
    return httpx.post(url, trust_env=False).raise_for_status()


async def httpx_async(url: str) -> Any:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.post(url)).raise_for_status()


def httpx2_sync(url: str) -> Any:
    return httpx2.post(url, trust_env=False).raise_for_status()


async def httpx2_async(url: str) -> Any:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return (await client.post(url)).raise_for_status()


def requests_sync(url: str, retries: int = 0, *, raises: bool = False) -> Any:
    again = retry.Retry(
        total=retries,
        status_forcelist=[429] if retries else [],
        allowed_methods=None,
        raise_on_status=raises,
        respect_retry_after_header=False,
    )
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=again))
        answer = session.post(url, timeout=60)
        answer.raise_for_status()
        return answer


async def aiohttp_async(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.post(url) as answer:
        answer.raise_for_status()
        await answer.read()
        return answer


def urllib_sync(url: str) -> Any:
    with urllib.request.urlopen(url, data=b"{}", timeout=60) as answer:
        answer.read()
        return answer


@dataclass(frozen=True)
class Client:
    """A client that asks once, and the provider it takes itself to ask where the address does not tell."""

    ask: Callable[..., Any]
    provider: str | None = None
    keeps_body: bool = True  # of an answer that it raises for

    def __str__(self) -> str:
        return self.ask.__name__


CLIENTS = (
    Client(openai_sync, "openai"),
    Client(openai_async, "openai"),
    Client(anthropic_sync, "anthropic"),
    Client(anthropic_async, "anthropic"),
    Client(genai_sync, "gemini"),
    Client(genai_async, "gemini"),
    Client(mistral_sync, "mistral"),
    Client(mistral_async, "mistral"),
    Client(botocore_sync, "bedrock"),
    Client(httpx_sync),
    Client(httpx_async),
    Client(httpx2_sync),
    Client(httpx2_async),
    Client(requests_sync),
    Client(aiohttp_async, keeps_body=False),
    Client(urllib_sync, keeps_body=False),
)


def outcome(ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What *ask* returns, whether or not it has to be awaited."""
    asked = ask(*args, **options)
    return asyncio.run(asked) if inspect.iscoroutine(asked) else asked


def failure(ask: Callable[..., Any], *args: Any, **options: Any) -> Exception:
    """What *ask* raises, its files closed."""
    try:
        outcome(ask, *args, **options)
    except Exception as exc:
        close = getattr(exc, "close", None)  # urllib's is the open answer itself
        if callable(close):
            close()
        return exc
    raise AssertionError("the client raised nothing")
