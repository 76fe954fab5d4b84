"""The public API as a type checker sees it. Checked by mypy, never run."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, assert_type

from agentos import (
    Context,
    Credential,
    CredentialCoordinator,
    CredentialState,
    Lease,
    Limit,
    ParallelCoordinator,
    Progress,
    ProgressStats,
    RateLimited,
    Secret,
    Transient,
    WorkflowResult,
)

pool = CredentialCoordinator(["secret", Credential("other", rpm=500, labels={"tier": "paid"})], keep_free=1)
assert_type(pool.acquire("me", timeout=1.5, cost={"tokens": 5}, labels=["paid"]), Lease)
assert_type(pool.reserve(), str | None)
assert_type(pool.snapshot(), list[CredentialState])
assert_type(pool.get_stats(), dict[str, int])
assert_type(pool.clear("key-1"), None)
CredentialCoordinator(["secret"], store="sqlite", lease_ttl=60, weight=2.5)
CredentialCoordinator(["secret"], store=Path("runs/pool.sqlite"), lease_ttl=0.5, weight=1)
assert_type(Limit("tokens", 5, per="day").largest, float)

with pool.lease(priority=3) as lease:
    assert_type(lease, Lease)
    assert_type(lease.secret, Secret)
    assert_type(lease.reveal(), str)
    assert_type(lease.settle(input_tokens=3, output_tokens=4), bool)
    assert_type(lease.rate_limited("30"), bool)


async def in_a_loop() -> None:
    async with pool.lease(model="gpt-4o") as lease:
        assert_type(lease.name, str)
    assert_type(await pool.acquire_async(affinity="conversation"), Lease)


def worker(item: int, credential: str | None, context: Context) -> str:
    assert_type(context.attempt, int)
    assert_type(context.item_id, str)
    assert_type(context.checkpoint, Path)
    assert_type(context.stopping.is_set(), bool)
    assert_type(context.settle(tokens=5), bool)
    context.log.info("on item %d", item)
    if item == 1:
        raise RateLimited(30, model="a-model")
    if item == 2:
        raise Transient("503")
    return "value"


async def coroutine(item: int, credential: str | None) -> None: ...


def on_progress(event: Progress) -> None:
    assert_type(event.kind, str)
    assert_type(event.stats, ProgressStats)
    assert_type(event.result, WorkflowResult | None)


run = ParallelCoordinator(
    5,
    pool,
    journal=Path("runs/tonight"),
    retries=3,
    timeout=60,
    halt="soon,fail=10%",
    deadline=8 * 3600,
    start="strict",
    cost_func=lambda item: {"tokens": 5.0},
    model_func=lambda item: None,
    on_progress=on_progress,
    engine="dask://127.0.0.1:8786",
    ship_secrets=True,
)
assert_type(run.max_workers, int)
assert_type(run.execute_parallel([1, 2], worker, str), tuple[ProgressStats, list[WorkflowResult]])
assert_type(run.stream(iter([1, 2]), coroutine, str), Iterator[WorkflowResult])
assert_type(run.get_checkpoints(), list[str])
assert_type(run.stats, ProgressStats | None)
assert_type(run.shutdown(force=True), None)


async def numbers() -> AsyncIterator[int]:
    yield 1


async def in_a_loop_of_ours() -> None:
    stats, results = await run.execute_async(numbers(), coroutine, str)
    assert_type(stats.completion_rate, float)
    assert_type(stats.total, int | None)
    assert_type(results[0].value, Any)
    assert_type(results[0].error, str | None)
    assert_type(results[0].credential, str | None)
    assert_type(results[0].cached, bool)
    async for result in run.stream_async(numbers(), coroutine, str):
        assert_type(result, WorkflowResult)
