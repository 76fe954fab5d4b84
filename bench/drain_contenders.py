"""Those who drain: agentos and its peers, each doing the same calls to the same provider as well as it can.

Each is a coroutine function of a :class:`Job` and a :class:`Tally`, which it tells of every success. All have the same
number of calls under way at most. All but LiteLLM, which brings its own, use the same client of ``drain_client``.
Exact pacing is no peer but the measure: it alone is told the provider's plan, and when its clock began.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import itertools
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal, TextIO

from drain_client import CLIENTS, Answer, HttpClient

from agentos import Context, Credential, CredentialCoordinator, Limit, ParallelCoordinator, Transient
from agentos.simulator import Admitted, Provider, ProviderPlan

PATH = "/chat/completions"
RETRIES = 20  # of one item, for faults that no key is to blame for: a night's work is not given up for a bad minute
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 60.0


@dataclass(frozen=True)
class Key:
    name: str
    secret: str = field(repr=False)
    quota: str


@dataclass(frozen=True)
class Job:
    """What a contender is told: where, with which keys, how many items, and what is known of the limits."""

    base_url: str
    keys: tuple[Key, ...]
    items: int
    parallel: int
    limits: Mapping[str, tuple[float, float]]  # requests a minute and at once, by quota; only what is known
    exclusive: bool
    folder: str | None  # to keep what a restart needs; None: there will be none
    plan: Mapping[str, Any] | None = None  # the provider itself, for exact pacing only
    client: str = "light"

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Job:
        limits = {name: (float(rpm), float(at_once)) for name, (rpm, at_once) in told["limits"].items()}
        return cls(**{**told, "keys": tuple(Key(**key) for key in told["keys"]), "limits": limits})


class Tally:
    """What a contender has done: how many items, and when the last of them was."""

    def __init__(self, kept: Path | None = None) -> None:
        self.began = monotonic()
        self.before = frozenset[int]()  # done before the restart, where a file was kept
        self.done = 0
        self.from_journal: Callable[[], int] = lambda: 0  # the same, for who keeps a journal of its own
        self.last_at: float | None = None
        self.words = ""  # what the contender has to say at the end
        self.believed: Callable[[], list[str]] = list  # what a pool takes the limits to be, by credential
        self._file: TextIO | None = None
        if kept is not None:
            if kept.exists():
                self.before = frozenset(map(int, kept.read_text().split()))
            self._file = kept.open("a", buffering=1)
            self.done = len(self.before)

    def succeeded(self, item: int) -> None:
        self.done += 1
        self.last_at = monotonic()
        if self._file is not None:
            self._file.write(f"{item}\n")

    @property
    def all_done(self) -> int:
        return self.done + self.from_journal()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def body_of(item: int) -> bytes:
    return b'{"model":"simulated-model","messages":[{"role":"user","content":"item %d"}],"max_tokens":16}' % item


def to_do(job: Job, tally: Tally) -> deque[int]:
    return deque(item for item in range(job.items) if item not in tally.before)


# -- agentos ----------------------------------------------------------------------------------------------------------


async def agentos(job: Job, tally: Tally) -> None:
    """A run over a pool of credentials that find their own width; after a restart the same journal and store."""
    client = CLIENTS[job.client](job.base_url)
    store = "memory" if job.folder is None else f"sqlite:///{job.folder}/pool.sqlite"
    pool = CredentialCoordinator([credential(job, key) for key in job.keys], store=store)
    journal = None if job.folder is None else Path(job.folder, "run.journal")
    run = ParallelCoordinator(
        max_parallelism=job.parallel,
        credential_coordinator=pool,
        journal=journal,
        worker_version="drain",
        retries=RETRIES,
    )
    tally.from_journal = lambda: 0 if run.stats is None else run.stats.cached

    async def ask(item: int, credential: str, context: Context) -> int:
        answer = await client.post(PATH, credential, body_of(item))
        assert context.lease is not None
        context.lease.report({"status": answer.status, "headers": answer.headers, "body": answer.body})
        if answer.status != 200:
            raise Transient(f"status {answer.status}")
        tally.succeeded(item)
        return item

    def believed() -> list[str]:
        return [f"{row.name}: {row.state}, {row.slots} slots; {row.limits}" for row in pool.snapshot()]

    tally.believed = believed
    try:
        stats, results = await run.execute_async(range(job.items), ask, str)
    finally:
        last = believed()
        tally.believed = lambda: last
        await client.close()
        pool.close()
    tally.done = stats.success_count - stats.cached  # the run's own word, not that of its workers
    failed = [result for result in results if not result.success]
    tally.words = "; ".join(
        filter(
            None,
            [
                f"stopped: {stats.stopped_by}" if stats.stopped_by else "",
                f"{len(failed)} failed, the first: {failed[0].error}" if failed else "",
            ],
        )
    )


def credential(job: Job, key: Key, *hosts: str) -> Credential:
    """The key as the pool is told of it, with what is known of its limits."""
    limits = []
    if key.quota in job.limits:
        rpm, at_once = job.limits[key.quota]
        limits.append(Limit("requests", rpm, burst=at_once))
    slots: int | Literal["auto"] = 1 if job.exclusive else "auto"
    return Credential(key.secret, name=key.name, quota=key.quota, slots=slots, limits=limits, hosts=hosts)


# -- a round-robin with backoff ---------------------------------------------------------------------------------------


class _Rest:
    """When a key may be used again, by the textbook: after Retry-After(-Ms), else 1 s, 2 s, ... 60 s."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.until = 0.0
        self._backoff = FIRST_BACKOFF

    def refused(self, headers: Mapping[str, str]) -> None:
        told = _told_in(headers)
        now = monotonic()
        if told is not None:
            self.until = max(self.until, now + told)
        elif self.until <= now:  # else it is one of the many that were under way: they count once
            self.until = now + self._backoff
            self._backoff = min(LONGEST_BACKOFF, self._backoff * 2)

    def worked(self) -> None:
        self._backoff = FIRST_BACKOFF


def _told_in(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, by the most exact header that says it."""
    exact = _seconds(headers.get("retry-after-ms"))
    return _seconds(headers.get("retry-after")) if exact is None else exact / 1000


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


async def round_robin(job: Job, tally: Tally) -> None:
    """The next key in turn that does not rest; a 401 takes its key out, a 429 lets it rest, all else is tried again."""
    client = CLIENTS[job.client](job.base_url)
    left = to_do(job, tally)
    keys = [_Rest(key) for key in job.keys]
    turn = itertools.count()

    def next_key() -> _Rest | None:
        for _ in keys:
            rest = keys[next(turn) % len(keys)]
            if rest.until <= monotonic():
                return rest
        return None

    async def fetch() -> None:
        while left and keys:
            rest = next_key()
            if rest is None:
                await asyncio.sleep(max(0.0, min(each.until for each in keys) - monotonic()))
                continue
            item = left.popleft()
            answer = await _post(client, rest.key.secret, item)
            if answer.status == 200:
                rest.worked()
                tally.succeeded(item)
                continue
            left.append(item)
            if answer.status == 401 and rest in keys:
                keys.remove(rest)
            elif answer.status == 429:
                rest.refused(answer.headers)

    await _crowd(client, (_until_none_is_left(fetch, job, tally) for _ in range(job.parallel)))


async def _until_none_is_left(fetch: Callable[[], Awaitable[None]], job: Job, tally: Tally) -> None:
    """What others have under way may yet come back to be done again."""
    while tally.done < job.items:
        await fetch()
        if tally.done < job.items:
            await asyncio.sleep(0.05)


async def _post(client: HttpClient, secret: str, item: int) -> Answer:
    try:
        return await client.post(PATH, secret, body_of(item))
    except (ConnectionError, TimeoutError):
        return Answer(599, {}, b"")


async def _crowd(client: HttpClient, fetchers: Iterable[Awaitable[None]]) -> None:
    try:
        await asyncio.gather(*fetchers)
    finally:
        await client.close()


# -- aiolimiter, one limiter per quota --------------------------------------------------------------------------------


async def limited(job: Job, tally: Tally) -> None:
    """One AsyncLimiter for each quota, as large as the provider's; each key has its share of the workers.

    A worker whose call is refused pauses before it queues again. The others go on: the limiter knows the limit.
    """
    from aiolimiter import AsyncLimiter

    client = CLIENTS[job.client](job.base_url)
    left = to_do(job, tally)
    limiters = {quota: AsyncLimiter(at_once, at_once / rpm * 60) for quota, (rpm, at_once) in job.limits.items()}
    dead: set[Key] = set()

    async def fetch(rest: _Rest) -> None:
        while left and rest.key not in dead:
            if (pause := rest.until - monotonic()) > 0:
                await asyncio.sleep(min(pause, FIRST_BACKOFF))
                continue
            async with limiters[rest.key.quota]:
                if not left:
                    return
                item = left.popleft()  # only now: a key that waits holds up no item
            answer = await _post(client, rest.key.secret, item)
            if answer.status == 200:
                rest.worked()
                tally.succeeded(item)
            else:
                left.append(item)
                if answer.status == 401:
                    dead.add(rest.key)
                elif answer.status == 429:
                    rest.refused(answer.headers)

    shares = [functools.partial(fetch, _Rest(job.keys[number % len(job.keys)])) for number in range(job.parallel)]
    await _crowd(client, (_until_none_is_left(share, job, tally) for share in shares))


# -- exact pacing: what could be had ----------------------------------------------------------------------------------

BEHIND = 0.005  # seconds by which the copy's clock is behind, so that no call comes too early
AGAIN = 0.02  # seconds until a call is repeated that came too early all the same: the first ones take longer to arrive


async def exact(job: Job, tally: Tally) -> None:
    """Every call as soon as the provider admits it, as a copy of the provider says that runs by the same clock."""
    assert job.plan is not None
    client = CLIENTS[job.client](job.base_url)
    left = to_do(job, tally)
    copy = Provider(ProviderPlan.from_dict(job.plan))
    behind = BEHIND
    turns = {key.quota: asyncio.Lock() for key in job.keys}  # one at a time waits for the quota

    def now() -> float:
        return monotonic() - tally.began - behind

    async def fetch(key: Key) -> None:
        nonlocal behind
        while left:
            async with turns[key.quota]:
                while left and (wait := copy.ready_in(key.secret, 0, now())) > 0:
                    if wait == math.inf:
                        return
                    await asyncio.sleep(wait)
                if not left:
                    return
                call = copy.arrive(key.secret, 0, now())
                item = left.popleft()
            answer = await _post(client, key.secret, item)
            while answer.status == 429 and not copy.plan.count_rejections:
                behind += BEHIND
                await asyncio.sleep(AGAIN)
                answer = await _post(client, key.secret, item)
            if isinstance(call, Admitted):
                copy.finish(call, now())
            if answer.status == 200:
                tally.succeeded(item)
            else:
                left.append(item)

    shares = [functools.partial(fetch, job.keys[number % len(job.keys)]) for number in range(job.parallel)]
    await _crowd(client, (_until_none_is_left(share, job, tally) for share in shares))


# -- open-keypool -----------------------------------------------------------------------------------------------------


async def open_keypool(job: Job, tally: Tally) -> None:
    """Its pool of keys, in a loop that asks again after a moment when it has none: it cannot be waited for."""
    from open_keypool import AllKeysExhaustedError, AsyncKeyPool

    client = CLIENTS[job.client](job.base_url)
    left = to_do(job, tally)
    pool = AsyncKeyPool([key.secret for key in job.keys], provider="openai", cooldown_seconds=1)

    async def fetch() -> None:
        while left:
            try:
                secret = await pool.get_key()
            except AllKeysExhaustedError:
                await asyncio.sleep(0.05)
                continue
            if not left:
                return
            item = left.popleft()
            answer = await _post(client, secret, item)
            await pool.handle_response(secret, answer.status, answer.headers)
            if answer.status == 200:
                tally.succeeded(item)
            else:
                left.append(item)

    await _crowd(client, (_until_none_is_left(fetch, job, tally) for _ in range(job.parallel)))


# -- LiteLLM's Router -------------------------------------------------------------------------------------------------

MODEL = "simulated-model"


async def litellm_router(job: Job, tally: Tally) -> None:
    """The Router, and an outer loop that submits again what it gave up, once it says that it may."""
    router = router_of(job)
    left = to_do(job, tally)

    async def fetch() -> None:
        while left:
            item = left.popleft()
            try:
                await router.acompletion(MODEL, [{"role": "user", "content": f"item {item}"}], max_tokens=16)
            except Exception as error:
                left.append(item)
                await asyncio.sleep(min(LONGEST_BACKOFF, _told_by(error) or FIRST_BACKOFF))
            else:
                tally.succeeded(item)

    await asyncio.gather(*(_until_none_is_left(fetch, job, tally) for _ in range(job.parallel)))


def router_of(job: Job) -> Any:
    """A Router with one deployment per key.

    The settings are the best of those tried: no retries, 3 and 10; cooldowns of 1 s and 5 s; the strategies
    usage-based-routing-v2 and least-busy, which took two to four times as long.
    """
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm.Router(
        model_list=[_deployment(job, key) for key in job.keys],
        routing_strategy="simple-shuffle",
        num_retries=10,
        allowed_fails=0,
        cooldown_time=5,
        timeout=30,
    )


def _told_by(error: Exception) -> float | None:
    """How long the Router, or the provider through it, says to wait."""
    response = getattr(error, "response", None)
    return getattr(error, "cooldown_time", None) or _told_in(getattr(response, "headers", {}))


def _deployment(job: Job, key: Key) -> dict[str, Any]:
    params: dict[str, Any] = {
        "model": f"openai/{MODEL}",
        "api_key": key.secret,
        "api_base": job.base_url,
        "max_retries": 0,
    }
    if key.quota in job.limits:
        # The Router knows nothing of shared quotas: each key is told its share.
        params["rpm"] = int(job.limits[key.quota][0] / sum(other.quota == key.quota for other in job.keys))
    if job.exclusive:
        params["max_parallel_requests"] = 1
    return {"model_name": MODEL, "litellm_params": params, "model_info": {"id": key.name}}


Drain = Callable[[Job, Tally], Awaitable[None]]

CONTENDERS: dict[str, Drain] = {
    "agentos": agentos,
    "round-robin": round_robin,
    "aiolimiter": limited,
    "litellm": litellm_router,
    "open-keypool": open_keypool,
    "exact": exact,
}
PACKAGES = {"aiolimiter": "aiolimiter", "litellm": "litellm", "open-keypool": "open_keypool"}  # that contenders need
NEEDS_LIMITS = frozenset({"aiolimiter"})  # of no use where the limits are not known


def make_ready(contender: str) -> None:
    """Import what it needs, before the clock starts. Raises ImportError if that is not installed."""
    # LiteLLM fetches a list of prices otherwise, and reads a .env file.
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_MODE="PRODUCTION", NO_PROXY="127.0.0.1")
    if contender in PACKAGES:
        importlib.import_module(PACKAGES[contender])
