"""``context.http``: the HTTP client of a run, for any SDK, on the leases of its items."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentos import Context, ParallelCoordinator, Usage, WorkflowResult
from agentos.runs.remote.worker_context import RemoteContext
from agentos.simulator import Running, Simulator
from agentos.transport.run_clients import RunClients

from ..runs.remote.sample_assignments import assignment
from .calls import WAYS, Way, every_sdk, every_whole_way, leases, plan, pool_of
from .sdks import SDKS, Sdk, httpx2

ONE_CALL = Usage(input=2, output=16)


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with Simulator(plan(3)) as provider:
        yield provider


@pytest.fixture
def provider(shared: Running) -> Running:
    shared.reset()
    return shared


def build_worker(sdk: Sdk, way: Way, url: str, seen: Callable[[Context], object] = id) -> Any:
    """A worker that makes two calls, each with a client of *sdk* that it closes, as its documentation says."""

    def work(_item: str, _key: str | None, context: Context) -> None:
        for _ in range(2):
            way.ask_with(sdk, sdk.client(context.http, url))
            context.http.close()
            seen(context)

    async def work_async(_item: str, _key: str | None, context: Context) -> None:
        for _ in range(2):
            await way.ask_with_async(sdk, sdk.async_client(context.http, url))
            await context.http.aclose()
            seen(context)

    return work_async if way.asynchronous else work


def results_of(run: ParallelCoordinator, worker: Any, items: int = 2) -> list[WorkflowResult]:
    return run.execute_parallel([f"item-{number}" for number in range(items)], worker, str)[1]


OFTEN_USED = [(sdk, way) for sdk in SDKS[:2] for way in WAYS]


@pytest.mark.parametrize(("sdk", "way"), [*OFTEN_USED, (SDKS[2], WAYS[0]), (SDKS[3], WAYS[3])], ids=str)
def test_an_sdk_on_the_client_of_the_run_uses_the_items_key_and_its_usage_is_in_the_result(
    provider: Running, sdk: Sdk, way: Way
) -> None:
    pool, held = pool_of(provider), []

    run = ParallelCoordinator(3, pool)
    worker = build_worker(sdk, way, sdk.url(provider), lambda context: held.append(leases(pool)))
    results = results_of(run, worker)

    assert [result.error for result in results] == [None] * 2
    assert {result.usage for result in results} == {ONE_CALL + ONE_CALL}
    assert max(held) <= 2  # one for each item, and none for a call
    assert leases(pool) == 0


@every_whole_way
def test_with_leases_by_call_each_call_takes_its_own_and_counts_for_its_item(provider: Running, way: Way) -> None:
    pool, held = pool_of(provider), []

    run = ParallelCoordinator(1, pool, lease="call")
    worker = build_worker(SDKS[0], way, SDKS[0].url(provider), lambda context: held.append(leases(pool)))
    results = results_of(run, worker)

    assert [result.usage for result in results] == [ONE_CALL + ONE_CALL] * 2
    assert set(held) == {0}
    used = {name for name, key in provider.statistics().keys.items() if key.calls}
    assert len(used) == 3


def test_all_items_share_one_client_which_is_closed_at_the_end_of_the_run(provider: Running) -> None:
    clients = []

    def work(_item: str, _key: str | None, context: Context) -> int:
        with context.http as client:
            clients.append(client)
        return int(context.http.get(f"{provider.url}/v1/models").status_code)

    results = results_of(ParallelCoordinator(2, pool_of(provider)), work)

    assert len({id(client) for client in clients}) == 1
    assert isinstance(clients[0], httpx2.Client)
    assert {result.success for result in results} == {True}
    assert clients[0].is_closed


def test_a_loop_has_its_own_client_and_a_thread_of_a_coroutine_the_one_for_threads(provider: Running) -> None:
    clients: list[Any] = []

    async def work(_item: str, _key: str | None, context: Context) -> None:
        clients.append(context.http)
        clients.append(await asyncio.to_thread(lambda: context.http))

    run = ParallelCoordinator(2, pool_of(provider))
    asyncio.run(run.execute_async(["a"], work, str))

    assert [type(client).__base__ for client in clients] == [httpx2.AsyncClient, httpx2.Client]
    assert [client.is_closed for client in clients] == [True, True]


def test_coroutines_on_the_loops_of_an_executor_leave_no_client_open(provider: Running) -> None:
    clients: list[Any] = []
    sdk = SDKS[0]

    async def work(_item: str, _key: str | None, context: Context) -> None:
        clients.append(context.http)
        await sdk.ask_async(sdk.async_client(context.http, sdk.url(provider)))

    with ThreadPoolExecutor(1) as executor:
        results = results_of(ParallelCoordinator(1, pool_of(provider), engine=executor), work, items=2)

    assert [result.usage for result in results] == [ONE_CALL] * 2
    assert len({id(client) for client in clients}) == 2
    assert [client.is_closed for client in clients] == [True, True]


FOREIGN = "https://llm.example.com/v1"


@every_sdk
@pytest.mark.parametrize("way", WAYS[:1], ids=str)
def test_a_base_url_that_no_key_may_go_to_fails_the_item_with_the_hosts_to_add(
    provider: Running, sdk: Sdk, way: Way
) -> None:
    """Some SDKs say no more than "Connection error."."""
    (result,) = results_of(ParallelCoordinator(1, pool_of(provider)), build_worker(sdk, way, FOREIGN), items=1)

    assert result.error is not None
    told = (
        "no key was sent to https://llm.example.com: add hosts=['llm.example.com'] to the credential that belongs there"
    )
    assert result.error.startswith(told)
    assert provider.statistics().total.calls == 0


def test_without_keys_of_agentos_there_is_no_client() -> None:
    def work(_item: str, _key: str | None, context: Context) -> Any:
        return context.http

    (result,) = results_of(ParallelCoordinator(1), work, items=1)

    assert result.error is not None
    assert result.error.startswith(
        "this run has no keys, which context.http sends: add --keys 'env:OPENAI_API_KEY*', or"
    )
    assert "`agentos init`" in result.error


def test_in_another_process_the_client_says_what_to_do_instead() -> None:
    def ignore(_: object) -> None: ...

    context = RemoteContext(assignment(), None, threading.Event(), ignore, ignore)

    with pytest.raises(RuntimeError, match=r"only in the process that started the run.*context\.settle"):
        context.http  # noqa: B018


def test_a_client_is_made_on_first_use_and_again_after_the_end(provider: Running) -> None:
    clients = RunClients(pool_of(provider)._runtime)

    first = clients.get_client()
    assert clients.get_client() is first
    clients.close()
    assert first.is_closed
    clients.close()
