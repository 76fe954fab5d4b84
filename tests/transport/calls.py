"""Calls of an SDK on a pool, in each way they can be made, and what tests look at before and after them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from agentos import AgentOSError, Credential, CredentialCoordinator
from agentos.simulator import Latency, ProviderPlan, Running, Scripted, equal_keys
from agentos.testing import FakeClock

from ..background_threads import Background
from .sdks import SDKS, Sdk, httpx2, tls

# Connections that nobody uses are kept, not closed after some seconds: whoever is cancelled while he closes those of
# others leaves the rest of them to the garbage collector, which complains.
_LIMITS = httpx2.Limits(max_connections=None, keepalive_expiry=None)


def wire() -> Any:
    """What really sends, as the transport would make it."""
    return httpx2.HTTPTransport(verify=tls(), limits=_LIMITS)


def async_wire() -> Any:
    return httpx2.AsyncHTTPTransport(verify=tls(), limits=_LIMITS)


@contextmanager
def connected(
    sdk: Sdk,
    pool: CredentialCoordinator,
    url: str,
    *,
    retries: int = 0,
    http: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Any]:
    """A client of *sdk* that asks at *url* with the keys of *pool*.

    *http* are arguments for the HTTP client under it, *options* those of ``pool.transport``.
    """
    http = {"timeout": None, **(http or {})}
    with httpx2.Client(transport=pool.transport(wire(), **options), **http) as connection:
        yield sdk.client(connection, url, retries=retries)


@asynccontextmanager
async def connected_async(
    sdk: Sdk,
    pool: CredentialCoordinator,
    url: str,
    *,
    retries: int = 0,
    http: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Any]:
    http = {"timeout": None, **(http or {})}
    async with httpx2.AsyncClient(transport=pool.async_transport(async_wire(), **options), **http) as connection:
        yield sdk.async_client(connection, url, retries=retries)


class Way:
    """One call from beginning to end in one of four ways: by a thread or a task, answered whole or streamed."""

    def __init__(self, *, asynchronous: bool, streamed: bool) -> None:
        self.asynchronous = asynchronous
        self.streamed = streamed

    def __str__(self) -> str:
        return ("async" if self.asynchronous else "sync") + ("-stream" if self.streamed else "")

    def ask(
        self,
        sdk: Sdk,
        pool: CredentialCoordinator,
        url: str,
        *,
        times: int = 1,
        timeout: float | None = None,
        **options: Any,
    ) -> list[Any]:
        """The answers to so many calls, one after the other. *options* are those of ``connected``."""
        if self.asynchronous:
            return asyncio.run(self._ask_async(sdk, pool, url, times, timeout, options))
        with connected(sdk, pool, url, **options) as client:
            return [self.ask_with(sdk, client, timeout) for _ in range(times)]

    async def _ask_async(
        self,
        sdk: Sdk,
        pool: CredentialCoordinator,
        url: str,
        times: int,
        timeout: float | None,
        options: dict[str, Any],
    ) -> list[Any]:
        async with connected_async(sdk, pool, url, **options) as client:
            return [await self.ask_with_async(sdk, client, timeout) for _ in range(times)]

    def ask_with(self, sdk: Sdk, client: Any, timeout: float | None = None) -> Any:
        return list(sdk.stream(client, timeout)) if self.streamed else sdk.ask(client, timeout)

    async def ask_with_async(self, sdk: Sdk, client: Any, timeout: float | None = None) -> Any:
        if not self.streamed:
            return await sdk.ask_async(client, timeout)
        return [piece async for piece in await sdk.stream_async(client, timeout)]


SYNC, ASYNC = Way(asynchronous=False, streamed=False), Way(asynchronous=True, streamed=False)
WAYS = (SYNC, ASYNC, Way(asynchronous=False, streamed=True), Way(asynchronous=True, streamed=True))

every_sdk = pytest.mark.parametrize("sdk", SDKS, ids=str)
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
every_whole_way = pytest.mark.parametrize("way", [SYNC, ASYNC], ids=str)


def keeping(seen: list[Any], way: Way) -> dict[str, Any]:
    """Arguments for an HTTP client that puts each response into *seen*."""

    async def see(response: Any) -> None:
        seen.append(response)

    return {"event_hooks": {"response": [see if way.asynchronous else seen.append]}}


def plan(keys: int, *script: Scripted, **options: Any) -> ProviderPlan:
    """A provider with equal keys that answers at once."""
    return equal_keys(keys, latency=Latency(0.0, 0.0), rejection_latency=0.0, script=script, **options)


def pool_of(provider: Running, clock: Any = None, /, *, debug: bool = True, **options: Any) -> CredentialCoordinator:
    """A pool of the simulator's keys, which may go to the simulator. *options* are those of ``Credential``."""
    options = {"hosts": ["127.0.0.1"], **options}
    keys = [Credential(key.secret, name=key.name, **options) for key in provider.plan.keys]
    return CredentialCoordinator(keys, clock=clock, debug=debug)


def drive(clock: FakeClock, work: Background[Any], provider: Running, step: float = 1.0) -> None:
    """Let time pass whenever somebody waits for it and no call is under way, until *work* is done."""
    while work.running:
        try:
            clock.wait_for_sleepers(1, timeout=0.02)
        except TimeoutError:
            continue  # it is busy, or has just ended
        provider.wait_idle()
        clock.advance(step)
    work.result()


def failure(act: Callable[[], Any]) -> Exception:
    """What *act* raises."""
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def our_error_in(error: BaseException | None) -> AgentOSError | None:
    """The error of ours that *error* is, or was raised from."""
    while error is not None and not isinstance(error, AgentOSError):
        error = error.__cause__ or error.__context__
    return error


async def collected() -> None:
    """Let the loop end the generators that were forgotten, one after the other, and collect what they leave."""
    for _ in range(20):
        await asyncio.sleep(0)
    gc.collect()


def leases(pool: CredentialCoordinator) -> int:
    """How many leases are out."""
    return sum(row.leases for row in pool.snapshot())
