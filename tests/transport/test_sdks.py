"""Calls of each SDK that go well: with which key, in which header, what they cost, and what their caller can see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agentos import CredentialCoordinator
from agentos.simulator import Running, Simulator
from agentos.testing import FakeClock
from agentos.transport import CallRecord

from .calls import Way, every_sdk, every_way, every_whole_way, keeping, leases, plan, pool_of, wire
from .sdks import MESSAGES, MODEL, PLACEHOLDER, Sdk, httpx, httpx2

USED = 2 + 16  # the tokens of "hello", and of every answer here
KEY_HEADERS = {"authorization", "x-api-key", "x-goog-api-key", "api-key"}


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with Simulator(plan(3)) as provider:
        yield provider


@pytest.fixture
def provider(shared: Running) -> Running:
    """Three good keys without limits."""
    shared.reset()
    return shared


@every_sdk
@every_way
def test_three_calls_use_three_keys_and_hold_none_afterwards(provider: Running, sdk: Sdk, way: Way) -> None:
    pool = pool_of(provider)

    way.ask(sdk, pool, sdk.url(provider), times=3)

    assert {name: tally.ok for name, tally in provider.statistics().keys.items()} == {
        "key-1": 1,
        "key-2": 1,
        "key-3": 1,
    }
    assert leases(pool) == 0


@every_sdk
@every_way
def test_a_call_costs_what_its_answer_says(provider: Running, sdk: Sdk, way: Way) -> None:
    pool = pool_of(provider, FakeClock(), tpm=100_000)

    way.ask(sdk, pool, sdk.url(provider), times=3)

    assert [row.limits[0].left for row in pool.snapshot()] == [pytest.approx(100_000 - USED)] * 3


class Recording(httpx2.BaseTransport):  # type: ignore[misc, name-defined]
    """Sends, and keeps what it sent."""

    def __init__(self) -> None:
        self._wire = wire()
        self.sent: list[Any] = []

    def handle_request(self, request: Any) -> Any:
        self.sent.append(request)
        return self._wire.handle_request(request)

    def close(self) -> None:
        self._wire.close()


@every_sdk
def test_the_secret_goes_where_the_sdk_put_its_placeholder_and_nowhere_else(provider: Running, sdk: Sdk) -> None:
    inner = Recording()
    asked: list[Any] = []

    hooks = {"request": [asked.append]}
    with httpx2.Client(transport=pool_of(provider).transport(inner), event_hooks=hooks) as http:
        sdk.ask(sdk.client(http, sdk.url(provider)))

    (own,), (sent,) = asked, inner.sent
    (placed,) = [(name, value) for name, value in own.headers.items() if PLACEHOLDER in value]
    carried = [(name, value) for name, value in sent.headers.items() if name in KEY_HEADERS]
    assert carried == [(placed[0], placed[1].replace(PLACEHOLDER, provider.keys[0]))]
    assert provider.keys[0] not in str(sent.url)


@every_sdk
@every_whole_way
def test_the_response_tells_its_key_and_the_providers_request_id(provider: Running, sdk: Sdk, way: Way) -> None:
    seen: list[Any] = []

    way.ask(sdk, pool_of(provider), sdk.url(provider), http=keeping(seen, way))

    (response,) = seen
    record = response.extensions["agentos"]
    assert isinstance(record, CallRecord)
    assert (record.credential, record.refusals, record.waited) == ("key-1", (), 0.0)
    assert record.request_id == response.headers.get(sdk.request_id_header or "nowhere")
    assert (record.request_id is None) == (sdk.request_id_header is None)


# -- without an SDK ------------------------------------------------------------------------------------------------

BODY = {"model": MODEL, "messages": MESSAGES}


def plain(library: Any, pool: CredentialCoordinator, url: str) -> Any:
    with library.Client(transport=pool.transport()) as client:
        return client.post(url, json=BODY)


def plain_streamed(library: Any, pool: CredentialCoordinator, url: str) -> Any:
    client = library.Client(transport=pool.transport())
    with client, client.stream("POST", url, json=BODY) as response:
        assert leases(pool) == 1
        response.read()
        return response


def plain_async(library: Any, pool: CredentialCoordinator, url: str) -> Any:
    async def ask() -> Any:
        async with library.AsyncClient(transport=pool.async_transport()) as client:
            return await client.post(url, json=BODY)

    return asyncio.run(ask())


def plain_async_streamed(library: Any, pool: CredentialCoordinator, url: str) -> Any:
    async def ask() -> Any:
        client = library.AsyncClient(transport=pool.async_transport())
        async with client, client.stream("POST", url, json=BODY) as response:
            assert leases(pool) == 1
            await response.aread()
            return response

    return asyncio.run(ask())


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize("ask", [plain, plain_streamed, plain_async, plain_async_streamed])
def test_a_client_of_either_library_works_without_an_sdk(provider: Running, library: Any, ask: Any) -> None:
    pool = pool_of(provider, FakeClock(), tpm=100_000)

    response = ask(library, pool, f"{provider.base_url}/chat/completions")

    assert isinstance(response, library.Response)
    assert response.json()["usage"]["total_tokens"] == USED
    assert response.extensions["agentos"].credential == "key-1"
    assert pool.snapshot()[0].limits[0].left == pytest.approx(100_000 - USED)
    assert leases(pool) == 0
