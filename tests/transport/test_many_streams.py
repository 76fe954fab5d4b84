"""Two hundred streams at once, which end in every way there is: not one slot is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentos.simulator import Latency, Simulator

from .calls import collected, connected_async, leases, plan, pool_of
from .sdks import SDKS, Sdk

pytestmark = pytest.mark.usefixtures("quick_collection")

STREAMS = 200

# Some close all that they opened, and some leave much of it to the garbage collector.
each_sdk = pytest.mark.parametrize("sdk", SDKS, ids=str)


async def begin(sdk: Sdk, client: Any) -> Any:
    """A stream of which one piece was read."""
    stream = await sdk.stream_async(client)
    await anext(aiter(stream))
    return stream


async def read(stream: Any) -> None:
    async for _ in stream:
        pass


async def end(sdk: Sdk, stream: Any, number: int) -> None:
    """Read it, close it, cancel whoever reads it, or forget it."""
    if number % 4 == 0:
        await read(stream)
    elif number % 4 == 1:
        await sdk.close_async(stream)
    elif number % 4 == 2:
        reader = asyncio.create_task(read(stream))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


@each_sdk
def test_two_hundred_open_streams_leave_no_lease_behind_however_they_end(sdk: Sdk) -> None:
    with Simulator(replace(plan(4), latency=Latency(0.2, 0.0))) as provider:
        pool = pool_of(provider, slots=STREAMS // 4, debug=False)  # 200 leases, checked at each step, take seconds

        async def story() -> None:
            async with connected_async(sdk, pool, sdk.url(provider)) as client:
                streams = await asyncio.gather(*(begin(sdk, client) for _ in range(STREAMS)))
                assert leases(pool) == STREAMS

                await asyncio.gather(*(end(sdk, stream, number) for number, stream in enumerate(streams)))
                streams.clear()
                await collected()
                await sdk.ask_async(client)

        asyncio.run(story())
        assert leases(pool) == 0
        provider.wait_idle()
        assert provider.statistics().total.calls == STREAMS + 1


@each_sdk
def test_two_hundred_streams_for_twenty_slots_leave_no_lease_behind_when_many_are_cancelled(sdk: Sdk) -> None:
    with Simulator(replace(plan(20), latency=Latency(0.01, 0.0))) as provider:
        pool = pool_of(provider, debug=False)

        async def ask(client: Any, number: int) -> None:
            stream = await begin(sdk, client)
            if number % 4 == 1:
                await sdk.close_async(stream)
            else:
                await read(stream)

        async def story() -> list[Any]:
            async with connected_async(sdk, pool, sdk.url(provider)) as client:
                calls = [asyncio.create_task(ask(client, number)) for number in range(STREAMS)]
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                for call in calls[::5]:
                    call.cancel()
                ended = await asyncio.gather(*calls, return_exceptions=True)
                await collected()
                return ended

        ended = asyncio.run(story())
        provider.wait_idle()
        assert leases(pool) == 0
        assert {type(each) for each in ended} == {type(None), asyncio.CancelledError}
        # How many the provider saw at once says nothing here: it may hear of a hung-up call after the key's next one.
