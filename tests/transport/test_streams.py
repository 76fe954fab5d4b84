"""Streams that do not end as they should: the key is free again, the provider sees its client leave, the next works."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from agentos import CredentialCoordinator
from agentos.simulator import Running, Scripted, Simulator

from .calls import async_wire, collected, connected, connected_async, every_sdk, failure, leases, plan, pool_of, wire
from .sdks import MESSAGES, MODEL, Sdk, httpx2

pytestmark = pytest.mark.usefixtures("quick_collection")

STREAMED = {"model": MODEL, "messages": MESSAGES, "stream": True}
PATIENCE = 20.0  # seconds, for what comes at once if it comes at all


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with Simulator(plan(2, Scripted("hang", call=1))) as provider:
        yield provider


@pytest.fixture
def provider(shared: Running) -> Running:
    """Two keys. The first stream stops in its middle, and waits for its client to leave."""
    shared.reset()
    return shared


@pytest.fixture(scope="module")
def shared_breaking() -> Iterator[Running]:
    with Simulator(plan(2, Scripted("cut", call=1))) as provider:
        yield provider


@pytest.fixture
def breaking(shared_breaking: Running) -> Running:
    """Two keys. The first stream breaks off in its middle."""
    shared_breaking.reset()
    return shared_breaking


@pytest.fixture(scope="module")
def shared_only_key() -> Iterator[Running]:
    with Simulator(plan(1)) as provider:
        yield provider


@pytest.fixture
def only_key(shared_only_key: Running) -> Running:
    """One key that bears one call at a time."""
    shared_only_key.reset()
    return shared_only_key


@pytest.fixture
def pool(provider: Running) -> CredentialCoordinator:
    return pool_of(provider)


def begin(sdk: Sdk, client: Any) -> Any:
    """A stream of which one piece was read."""
    stream = sdk.stream(client)
    next(iter(stream))
    return stream


async def begin_async(sdk: Sdk, client: Any) -> Any:
    stream = await sdk.stream_async(client)
    await anext(aiter(stream))
    return stream


def left(provider: Running) -> int:
    """How many calls lost their client, once none is under way."""
    provider.wait_idle()
    return provider.statistics().total.left


def in_a_cycle(thing: Any) -> None:
    """Forget *thing* in such a way that only the garbage collector finds it."""
    box = [thing]
    box.append(box)


# -- threads -------------------------------------------------------------------------------------------------------


@every_sdk
def test_the_key_is_held_until_the_last_piece_and_no_longer(
    provider: Running, pool: CredentialCoordinator, sdk: Sdk
) -> None:
    with connected(sdk, pool, sdk.url(provider)) as client:
        sdk.close(begin(sdk, client))
        stream = sdk.stream(client)
        held = {leases(pool) for _ in stream}

        assert held >= {1}
        assert leases(pool) == 0


@every_sdk
def test_a_stream_closed_early_gives_its_key_back(provider: Running, pool: CredentialCoordinator, sdk: Sdk) -> None:
    with connected(sdk, pool, sdk.url(provider)) as client:
        stream = begin(sdk, client)
        assert leases(pool) == 1

        sdk.close(stream)
        del stream

        assert leases(pool) == 0
        sdk.ask(client)
        assert left(provider) == 1


@every_sdk
@pytest.mark.parametrize("forget", [lambda _: None, in_a_cycle], ids=["dropped", "in a cycle"])
def test_an_abandoned_stream_gives_its_key_back_when_it_is_collected(
    provider: Running, pool: CredentialCoordinator, sdk: Sdk, forget: Any
) -> None:
    with connected(sdk, pool, sdk.url(provider)) as client:
        forget(begin(sdk, client))
        gc.collect()

        assert leases(pool) == 0
        sdk.ask(client)
        assert left(provider) == 1


@every_sdk
def test_after_a_stream_that_broke_off_the_same_client_goes_on(breaking: Running, sdk: Sdk) -> None:
    pool = pool_of(breaking)
    with connected(sdk, pool, sdk.url(breaking)) as client:
        failure(lambda: list(sdk.stream(client)))

        assert leases(pool) == 0
        sdk.ask(client)


def test_an_answer_that_nobody_began_to_read_is_closed_by_the_next_call(
    provider: Running, pool: CredentialCoordinator
) -> None:
    url = f"{provider.base_url}/chat/completions"
    with httpx2.Client(transport=pool.transport(wire())) as client:
        client.send(client.build_request("POST", url, json=STREAMED), stream=True)
        gc.collect()

        assert leases(pool) == 0
        client.post(url, json=STREAMED)
        assert left(provider) == 1


@every_sdk
def test_the_transport_closes_what_was_abandoned_last(provider: Running, pool: CredentialCoordinator, sdk: Sdk) -> None:
    with connected(sdk, pool, sdk.url(provider)) as client:
        in_a_cycle(begin(sdk, client))
        gc.collect()

    assert left(provider) == 1


@every_sdk
def test_who_leaves_a_stream_early_can_ask_again_with_the_only_key(only_key: Running, sdk: Sdk) -> None:
    pool = pool_of(only_key)
    with connected(sdk, pool, sdk.url(only_key), max_wait=PATIENCE) as client:
        for _ in range(3):
            for _ in sdk.stream(client):
                break
            sdk.ask(client)

    assert leases(pool) == 0


# -- tasks ---------------------------------------------------------------------------------------------------------


@every_sdk
def test_a_stream_closed_early_by_a_task_gives_its_key_back(
    provider: Running, pool: CredentialCoordinator, sdk: Sdk
) -> None:
    async def story() -> None:
        async with connected_async(sdk, pool, sdk.url(provider)) as client:
            stream = await begin_async(sdk, client)
            assert leases(pool) == 1

            await sdk.close_async(stream)
            del stream
            if sdk.name == "google-genai":  # it leaves all but its outermost generator to the collector
                await collected()

            assert leases(pool) == 0
            await sdk.ask_async(client)
            assert left(provider) == 1

    asyncio.run(story())


@every_sdk
def test_a_task_cancelled_while_it_waits_for_a_piece_gives_its_key_back(
    provider: Running, pool: CredentialCoordinator, sdk: Sdk
) -> None:
    async def story() -> None:
        async with connected_async(sdk, pool, sdk.url(provider)) as client:
            reached = asyncio.Event()

            async def read() -> None:
                async for _ in await sdk.stream_async(client):
                    reached.set()

            reader = asyncio.create_task(read())
            await reached.wait()
            assert leases(pool) == 1

            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader

            assert leases(pool) == 0
            assert left(provider) == 1
            await sdk.ask_async(client)

    asyncio.run(story())


@every_sdk
@pytest.mark.parametrize("forget", [lambda _: None, in_a_cycle], ids=["dropped", "in a cycle"])
def test_a_stream_abandoned_by_a_task_gives_its_key_back_when_it_is_collected(
    provider: Running, pool: CredentialCoordinator, sdk: Sdk, forget: Any
) -> None:
    async def story() -> None:
        async with connected_async(sdk, pool, sdk.url(provider)) as client:
            forget(await begin_async(sdk, client))
            await collected()

            await sdk.ask_async(client)
            assert leases(pool) == 0
            assert left(provider) == 1

    asyncio.run(story())


def test_an_answer_that_no_task_began_to_read_is_closed_by_the_next_call(
    provider: Running, pool: CredentialCoordinator
) -> None:
    url = f"{provider.base_url}/chat/completions"

    async def story() -> None:
        async with httpx2.AsyncClient(transport=pool.async_transport(async_wire())) as client:
            await client.send(client.build_request("POST", url, json=STREAMED), stream=True)
            gc.collect()

            assert leases(pool) == 0
            await client.post(url, json=STREAMED)
            assert left(provider) == 1

    asyncio.run(story())


@every_sdk
def test_after_a_stream_that_broke_off_the_same_asynchronous_client_goes_on(breaking: Running, sdk: Sdk) -> None:
    pool = pool_of(breaking)

    async def story() -> None:
        async with connected_async(sdk, pool, sdk.url(breaking)) as client:
            with pytest.raises(Exception):  # noqa: B017 - the SDK's own; which one, test_failures knows
                [piece async for piece in await sdk.stream_async(client)]

            assert leases(pool) == 0
            await sdk.ask_async(client)

    asyncio.run(story())


@every_sdk
def test_a_task_that_leaves_a_stream_early_can_ask_again_with_the_only_key(only_key: Running, sdk: Sdk) -> None:
    pool = pool_of(only_key)

    async def story() -> None:
        async with connected_async(sdk, pool, sdk.url(only_key), max_wait=PATIENCE) as client:
            for _ in range(3):
                async for _ in await sdk.stream_async(client):
                    break
                await sdk.ask_async(client)

    asyncio.run(story())
    assert leases(pool) == 0
