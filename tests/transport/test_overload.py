"""More callers than the provider bears: they all get their answers, and hardly any of them is ever refused."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentos.simulator import Latency, Running, Scripted, Simulator, equal_keys
from agentos.testing import FakeClock

from ..background_threads import Background
from .calls import Way, connected, connected_async, drive, every_sdk, every_way, every_whole_way, leases, plan, pool_of
from .sdks import Sdk

CALLS = 48
SLOTS = 2

# Some SDKs give a call five minutes, and a clock that is moved while calls wait is soon ahead of those that are slow.
PATIENT: dict[str, Any] = {"max_wait": math.inf}


def by_threads(way: Way, sdk: Sdk, pool: Any, provider: Running) -> None:
    with connected(sdk, pool, sdk.url(provider), **PATIENT) as client, ThreadPoolExecutor(CALLS) as threads:
        calls = [threads.submit(way.ask_with, sdk, client) for _ in range(CALLS)]
        for call in calls:
            call.result()


def by_tasks(way: Way, sdk: Sdk, pool: Any, provider: Running) -> None:
    async def ask() -> None:
        async with connected_async(sdk, pool, sdk.url(provider), **PATIENT) as client:
            await asyncio.gather(*(way.ask_with_async(sdk, client) for _ in range(CALLS)))

    asyncio.run(ask())


def ask(way: Way, sdk: Sdk, pool: Any, provider: Running) -> None:
    """Make so many calls at once, and read all of their answers."""
    (by_tasks if way.asynchronous else by_threads)(way, sdk, pool, provider)


@every_sdk
@every_whole_way
def test_callers_above_the_rate_limit_all_end_well_and_few_are_refused(sdk: Sdk, way: Way) -> None:
    """Three keys of fifty calls a second each, of which three may come at once."""
    limits = equal_keys(3, rpm=3000, request_burst=3, retry_after="exact", latency=Latency(0.005, 0.0))
    with Simulator(limits) as provider:
        pool = pool_of(provider, slots=SLOTS)
        ask(way, sdk, pool, provider)
        seen = provider.statistics()

    assert (seen.total.ok, seen.violations) == (CALLS, ())
    assert max(tally.most_in_flight for tally in seen.keys.values()) <= SLOTS
    assert seen.total.refused <= CALLS / 3
    assert leases(pool) == 0


@every_sdk
@every_way
def test_when_every_key_is_told_to_rest_all_callers_wait_it_out(sdk: Sdk, way: Way) -> None:
    clock = FakeClock()
    rest = [
        Scripted(429, call=call, key=f"key-{key}", headers={"retry-after": "30"})
        for key in (1, 2, 3)
        for call in (1, 2)
    ]
    with Simulator(plan(3, *rest)) as provider:
        pool = pool_of(provider, clock, slots=SLOTS)
        drive(clock, Background(lambda: ask(way, sdk, pool, provider)), provider)
        seen = provider.statistics()

    assert (seen.total.ok, seen.total.refused) == (CALLS, len(rest))
    # A provider may hear of the end of a stream after the next call of its key.
    assert way.streamed or max(tally.most_in_flight for tally in seen.keys.values()) <= SLOTS
    assert leases(pool) == 0
