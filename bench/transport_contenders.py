"""Those who call: each client bare with one key, the same client with the pool's transport, and LiteLLM's Router.

For what a call costs, each is a context that makes ready and hands out a function to time, which makes so many calls
with a prompt of such a size. For a drain, each is a coroutine function as in ``drain_contenders``: plain tasks around a
client, as a user would write them who knows nothing of agentos but its transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from drain_contenders import FIRST_BACKOFF, MODEL, PATH, Drain, Job, Tally, body_of, credential, router_of, to_do

from agentos import CredentialCoordinator

MAX_TOKENS = 256
SYSTEM = "You answer tickets of a shop for bicycles. Be brief, be kind, and never promise what the shop cannot keep. "
SENTENCE = "The rear wheel arrived with a bent spoke and the invoice says 42.50 where the order said 39.90. "
PROMPTS = {"1 KB": SENTENCE * 8, "30 KB": SENTENCE * 310}  # by the size of the whole body

Call = Callable[[str, int], object]  # the size of the prompt, and the number of the call
AsyncCall = Callable[[str, int], Awaitable[object]]
Round = Callable[[str, int], None]  # the size of the prompt, and how many calls to make


def messages(size: str, number: int) -> list[Any]:
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Ticket {number}. {PROMPTS[size]}"},  # no two calls are the same
    ]


def body(size: str, number: int) -> dict[str, Any]:
    return {"model": MODEL, "messages": messages(size, number), "max_tokens": MAX_TOKENS}


def pool_of(job: Job) -> CredentialCoordinator:
    return CredentialCoordinator([credential(job, key, "127.0.0.1") for key in job.keys])


def bearer(job: Job) -> dict[str, str]:
    return {"authorization": f"Bearer {job.keys[0].secret}"}


# -- one call after the other -----------------------------------------------------------------------------------------


def _one_by_one(call: Call) -> Round:
    def run(size: str, calls: int) -> None:
        for number in range(calls):
            call(size, number)

    return run


def _posting(client: Any, job: Job) -> Round:
    url = job.base_url + PATH
    return _one_by_one(lambda size, number: client.post(url, json=body(size, number)).raise_for_status().json())


def _asking(client: Any) -> Round:
    create = client.chat.completions.create
    return _one_by_one(lambda size, number: create(model=MODEL, messages=messages(size, number), max_tokens=MAX_TOKENS))


@contextmanager
def httpx2_bare(job: Job) -> Iterator[Round]:
    import httpx2

    with httpx2.Client(headers=bearer(job)) as client:
        yield _posting(client, job)


@contextmanager
def httpx2_transport(job: Job) -> Iterator[Round]:
    import httpx2

    with pool_of(job) as pool, httpx2.Client(transport=pool.transport(auth="bearer")) as client:
        yield _posting(client, job)


@contextmanager
def openai_bare(job: Job) -> Iterator[Round]:
    from openai import OpenAI

    with OpenAI(api_key=job.keys[0].secret, base_url=job.base_url, max_retries=0) as client:
        yield _asking(client)


@contextmanager
def openai_transport(job: Job) -> Iterator[Round]:
    import httpx2
    from openai import OpenAI

    with pool_of(job) as pool, httpx2.Client(transport=pool.transport()) as http:
        yield _asking(OpenAI(api_key="pool", base_url=job.base_url, http_client=http, max_retries=0))


# -- several at once, in one event loop -------------------------------------------------------------------------------


@contextmanager
def _at_once(job: Job, call: AsyncCall, close: Callable[[], Awaitable[None]] | None = None) -> Iterator[Round]:
    async def crowd(size: str, calls: int) -> None:
        numbers = iter(range(calls))

        async def work() -> None:
            for number in numbers:
                await call(size, number)

        await asyncio.gather(*(work() for _ in range(job.parallel)))

    async def end() -> None:
        if close is not None:
            await close()

    with asyncio.Runner() as runner:
        try:
            yield lambda size, calls: runner.run(crowd(size, calls))
        finally:
            runner.run(end())


def _posting_at_once(client: Any, job: Job) -> AbstractContextManager[Round]:
    url = job.base_url + PATH

    async def post(size: str, number: int) -> object:
        answer = await client.post(url, json=body(size, number))
        return answer.raise_for_status().json()

    return _at_once(job, post, client.aclose)


def _asking_at_once(client: Any, job: Job, *, stream: bool) -> AbstractContextManager[Round]:
    create = client.chat.completions.create

    async def ask(size: str, number: int) -> object:
        return await create(model=MODEL, messages=messages(size, number), max_tokens=MAX_TOKENS)

    async def listen(size: str, number: int) -> object:
        said = await create(
            model=MODEL,
            messages=messages(size, number),
            max_tokens=MAX_TOKENS,
            stream=True,
            stream_options={"include_usage": True},
        )
        return [chunk async for chunk in said]

    return _at_once(job, listen if stream else ask, client.close)


@contextmanager
def async_httpx2_bare(job: Job) -> Iterator[Round]:
    import httpx2

    with _posting_at_once(httpx2.AsyncClient(headers=bearer(job)), job) as run:
        yield run


@contextmanager
def async_httpx2_transport(job: Job) -> Iterator[Round]:
    import httpx2

    with pool_of(job) as pool:
        client = httpx2.AsyncClient(transport=pool.async_transport(auth="bearer"))
        with _posting_at_once(client, job) as run:
            yield run


@contextmanager
def async_openai_bare(job: Job, *, stream: bool = False) -> Iterator[Round]:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key=job.keys[0].secret, base_url=job.base_url, max_retries=0)
    with _asking_at_once(client, job, stream=stream) as run:
        yield run


@contextmanager
def async_openai_transport(job: Job, *, stream: bool = False) -> Iterator[Round]:
    with pool_of(job) as pool, _asking_at_once(_async_openai(pool, job), job, stream=stream) as run:
        yield run


def _async_openai(pool: CredentialCoordinator, job: Job, **options: Any) -> Any:
    import httpx2
    from openai import AsyncOpenAI

    http = httpx2.AsyncClient(transport=pool.async_transport())
    return AsyncOpenAI(api_key="pool", base_url=job.base_url, http_client=http, max_retries=0, **options)


@contextmanager
def router(job: Job) -> Iterator[Round]:
    routed = router_of(job)

    async def ask(size: str, number: int) -> object:
        return await routed.acompletion(MODEL, messages(size, number), max_tokens=MAX_TOKENS)

    with _at_once(job, ask) as run:
        yield run


Caller = Callable[[Job], AbstractContextManager[Round]]

CALLERS: dict[str, Caller] = {
    "httpx2": httpx2_bare,
    "httpx2+transport": httpx2_transport,
    "openai": openai_bare,
    "openai+transport": openai_transport,
    "async httpx2": async_httpx2_bare,
    "async httpx2+transport": async_httpx2_transport,
    "async openai": async_openai_bare,
    "async openai+transport": async_openai_transport,
    "async openai, streamed": lambda job: async_openai_bare(job, stream=True),
    "async openai+transport, streamed": lambda job: async_openai_transport(job, stream=True),
    "litellm": router,
}


# -- drains -----------------------------------------------------------------------------------------------------------


async def drain_by_openai(job: Job, tally: Tally) -> None:
    """AsyncOpenAI over the pool; waiting for a key may take as long as it takes, an answer 30 s."""
    with pool_of(job) as pool:
        client = _async_openai(pool, job, timeout=_patient())
        create = client.chat.completions.create

        async def ask(item: int) -> None:
            await create(model=MODEL, messages=[{"role": "user", "content": f"item {item}"}], max_tokens=16)

        async with client:
            await _drain(job, tally, ask)


async def drain_by_httpx2(job: Job, tally: Tally) -> None:
    """A plain AsyncClient over the pool, with the same patience."""
    import httpx2

    headers = {"content-type": "application/json"}
    url = job.base_url + PATH
    with pool_of(job) as pool:
        async with httpx2.AsyncClient(
            transport=pool.async_transport(auth="bearer"), headers=headers, timeout=_patient()
        ) as client:

            async def post(item: int) -> None:
                answer = await client.post(url, content=body_of(item))
                answer.raise_for_status()

            await _drain(job, tally, post)


def _patient() -> Any:
    import httpx2

    return httpx2.Timeout(30.0, pool=None)


async def _drain(job: Job, tally: Tally, ask: Callable[[int], Awaitable[None]]) -> None:
    """So many tasks that each take the next item, and do it again when it failed."""
    left = to_do(job, tally)
    failures: dict[str, int] = {}

    async def done(item: int) -> bool:
        try:
            await ask(item)
        except Exception as error:
            name = type(error).__name__
            failures[name] = failures.get(name, 0) + 1
            return False
        return True

    async def fetch() -> None:
        while left:
            item = left.popleft()
            while not await done(item):
                await asyncio.sleep(FIRST_BACKOFF)
            tally.succeeded(item)

    await asyncio.gather(*(fetch() for _ in range(job.parallel)))
    tally.words = ", ".join(f"{count:,} times {name}" for name, count in failures.items())


DRAINS: dict[str, Drain] = {"openai": drain_by_openai, "httpx2": drain_by_httpx2}
