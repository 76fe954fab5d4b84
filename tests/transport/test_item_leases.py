"""Workers of a run that call an SDK on the run's own pool: each call has the key of its item, never a second one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from agentos import CredentialCoordinator, ParallelCoordinator, ProgressStats
from agentos.simulator import Running, Scripted, Simulator
from agentos.testing import FakeClock

from ..background_threads import Background
from .calls import (
    SYNC,
    Way,
    connected,
    connected_async,
    drive,
    every_sdk,
    every_way,
    every_whole_way,
    leases,
    plan,
    pool_of,
)
from .sdks import Sdk

USED = 2 + 16  # the tokens of one call
TIMEOUT = 1000.0  # of a call, by a clock that the test moves


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with Simulator(plan(3)) as provider:
        yield provider


@pytest.fixture
def provider(shared: Running) -> Running:
    """Three good keys without limits."""
    shared.reset()
    return shared


class Batch:
    """A run of three workers; each item makes some calls with *sdk*, one after the other.

    ``keys`` has, for each call, the key its item was started with and the one it was made with.
    """

    def __init__(
        self, sdk: Sdk, way: Way, pool: CredentialCoordinator, url: str, *, items: int = 6, calls: int = 2
    ) -> None:
        self._sdk = sdk
        self._way = way
        self._pool = pool
        self._url = url
        self._items = [f"item-{number}" for number in range(items)]
        self._calls = calls
        self._of_item: ContextVar[str | None] = ContextVar("of_item", default=None)
        self.keys: list[tuple[str | None, str]] = []

    def run(self, *, timeout: float | None = None, **options: Any) -> ProgressStats:
        """How it went. *timeout* is that of each call, *options* are those of the coordinator."""
        coordinator = ParallelCoordinator(3, self._pool, **options)
        if self._way.asynchronous:
            return asyncio.run(self._run_async(coordinator, timeout))

        def work(_item: str, _key: str | None, context: Any) -> None:
            self._of_item.set(context.lease and context.lease.name)
            for _ in range(self._calls):
                self._way.ask_with(self._sdk, client, timeout)

        with connected(self._sdk, self._pool, self._url, http={"event_hooks": {"response": [self._see]}}) as client:
            return coordinator.execute_parallel(self._items, work, str)[0]

    async def _run_async(self, coordinator: ParallelCoordinator, timeout: float | None) -> ProgressStats:
        async def see(response: Any) -> None:
            self._see(response)

        async def work(_item: str, _key: str | None, context: Any) -> None:
            self._of_item.set(context.lease and context.lease.name)
            for _ in range(self._calls):
                await self._way.ask_with_async(self._sdk, client, timeout)

        hooks = {"event_hooks": {"response": [see]}}
        async with connected_async(self._sdk, self._pool, self._url, http=hooks) as client:
            return (await coordinator.execute_async(self._items, work, str))[0]

    def _see(self, response: Any) -> None:
        self.keys.append((self._of_item.get(), response.extensions["agentos"].credential))


@every_sdk
@every_way
def test_three_workers_on_three_keys_make_every_call_with_the_key_of_their_item(
    provider: Running, sdk: Sdk, way: Way
) -> None:
    pool = pool_of(provider)
    batch = Batch(sdk, way, pool, sdk.url(provider))

    stats = batch.run()

    assert (stats.success_count, stats.limited, stats.retried) == (6, 0, 0)
    assert len(batch.keys) == 12
    assert all(of_item == of_call for of_item, of_call in batch.keys)
    assert {tally.most_in_flight for tally in provider.statistics().keys.values()} == {1}
    assert leases(pool) == 0


@every_sdk
@every_way
def test_what_the_calls_of_an_item_use_adds_up(provider: Running, sdk: Sdk, way: Way) -> None:
    pool = pool_of(provider, FakeClock(), tpm=100_000, rpm=1_000)

    Batch(sdk, way, pool, sdk.url(provider), items=1, calls=3).run()

    left = {limit.dimension: limit.left for limit in pool.snapshot()[0].limits}
    assert left == {"tokens": pytest.approx(100_000 - 3 * USED), "requests": pytest.approx(1_000 - 3)}


def limited_once(rest: float) -> Simulator:
    """Three keys, of which the first refuses its second call and rests."""
    return Simulator(plan(3, Scripted(429, call=2, key="key-1", headers={"retry-after": f"{rest:.0f}"})))


@every_sdk
@every_whole_way
def test_a_short_rest_in_the_middle_of_an_item_is_waited_out_on_its_key(sdk: Sdk, way: Way) -> None:
    clock = FakeClock()
    with limited_once(rest=5) as provider:
        pool = pool_of(provider, clock)
        batch = Batch(sdk, way, pool, sdk.url(provider), items=3)
        run = Background(lambda: batch.run(timeout=TIMEOUT, clock=clock))
        drive(clock, run, provider)
        seen = provider.statistics()

    stats = run.result()
    assert (stats.success_count, stats.limited, stats.retried) == (3, 0, 0)
    assert all(of_item == of_call for of_item, of_call in batch.keys)
    assert {name: tally.ok for name, tally in seen.keys.items()} == {"key-1": 2, "key-2": 2, "key-3": 2}
    assert seen.total.refused == 1
    assert leases(pool) == 0


@every_sdk
@every_whole_way
def test_after_a_long_rest_the_item_is_begun_again_and_finished(sdk: Sdk, way: Way) -> None:
    clock = FakeClock()
    with limited_once(rest=2 * TIMEOUT) as provider:
        pool = pool_of(provider, clock)
        batch = Batch(sdk, way, pool, sdk.url(provider), items=3)
        run = Background(lambda: batch.run(timeout=TIMEOUT, clock=clock))
        drive(clock, run, provider, step=TIMEOUT / 4)
        seen = provider.statistics()

    stats = run.result()
    assert (stats.success_count, stats.limited, stats.retried) == (3, 1, 0)
    assert seen.total.refused == 1
    assert leases(pool) == 0


@every_sdk
@every_whole_way
def test_with_a_lease_for_each_call_the_items_hold_none(provider: Running, sdk: Sdk, way: Way) -> None:
    pool = pool_of(provider)
    batch = Batch(sdk, way, pool, sdk.url(provider))

    stats = batch.run(lease="call")

    assert stats.success_count == 6
    assert {of_item for of_item, _ in batch.keys} == {None}
    assert {of_call for _, of_call in batch.keys} == {"key-1", "key-2", "key-3"}
    assert {tally.most_in_flight for tally in provider.statistics().keys.values()} == {1}
    assert leases(pool) == 0


@every_sdk
def test_a_dead_key_costs_an_item_its_attempt_and_not_its_result(sdk: Sdk) -> None:
    dies = Scripted(401, at=0.0, until=1e6, key="key-2")
    with Simulator(plan(3, dies)) as provider:
        pool = pool_of(provider)
        stats = Batch(sdk, SYNC, pool, sdk.url(provider)).run()

        assert stats.success_count == 6
        assert provider.statistics().keys["key-2"].calls == 1
    assert [row.state for row in pool.snapshot()] == ["available", "dead", "available"]
