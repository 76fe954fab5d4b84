"""Tasks use the pool, alone and beside threads. Time moves only when a test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable

import pytest

from agentos import CredentialCoordinator, Lease, NoCredentialAvailable, PoolClosed, WouldBlockLoop
from agentos.testing import FakeClock

from ...background_threads import PATIENCE, Background


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool(clock: FakeClock) -> CredentialCoordinator:
    return CredentialCoordinator(["secret-one"], clock=clock, debug=True)


async def until_waiting(pool: CredentialCoordinator, count: int) -> None:
    """Let the loop run until so many requests stand in line."""
    async with asyncio.timeout(PATIENCE):
        while pool._runtime.core.waiting < count:
            await asyncio.sleep(0)


async def soon(awaitable: Awaitable[Lease]) -> Lease:
    return await asyncio.wait_for(awaitable, PATIENCE)


def test_async_with_waits_without_blocking_the_loop(pool: CredentialCoordinator) -> None:
    async def story() -> None:
        async with pool.lease("first") as first:
            second = asyncio.create_task(pool.acquire_async("second"))
            await until_waiting(pool, 1)
            assert first.name == "key-1"
        assert (await soon(second)).release()

    asyncio.run(story())


def test_a_plain_with_that_would_block_the_loop_names_async_with(pool: CredentialCoordinator) -> None:
    async def story() -> None:
        with pool.lease() as lease:  # free: nothing to wait for
            with pytest.raises(WouldBlockLoop, match=r"async with pool\.lease"), pool.lease():
                pass
            with pytest.raises(WouldBlockLoop, match=r"await pool\.acquire_async"):
                pool.acquire()
            with pytest.raises(WouldBlockLoop, match=r"await pool\.acquire_async"):
                pool.reserve()
            with pytest.raises(NoCredentialAvailable):
                pool.acquire_nowait()
            assert lease.held
        assert pool._runtime.core.waiting == 0

    asyncio.run(story())


def test_tasks_are_served_in_order(pool: CredentialCoordinator) -> None:
    async def story() -> None:
        held = await pool.acquire_async()
        order: list[int] = []

        async def one(number: int) -> None:
            async with pool.lease(str(number)):
                order.append(number)

        tasks = []
        for number in range(10):
            tasks.append(asyncio.create_task(one(number)))
            await until_waiting(pool, number + 1)
        held.release()
        await asyncio.gather(*tasks)
        assert order == list(range(10))

    asyncio.run(story())


def test_a_task_starts_the_moment_a_cooling_ends(pool: CredentialCoordinator, clock: FakeClock) -> None:
    async def story() -> None:
        async with pool.lease() as lease:
            lease.rate_limited(30)
        task = asyncio.create_task(pool.acquire_async())
        await until_waiting(pool, 1)
        await asyncio.sleep(0)
        clock.advance(29.999)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        clock.advance(0.001)
        assert (await soon(task)).held

    asyncio.run(story())


def test_a_task_that_times_out_leaves_the_queue(pool: CredentialCoordinator, clock: FakeClock) -> None:
    async def story() -> None:
        held = await pool.acquire_async()
        task = asyncio.create_task(pool.acquire_async(timeout=5))
        await until_waiting(pool, 1)
        clock.advance(5)
        with pytest.raises(NoCredentialAvailable, match=r"in 5\.0s"):
            await soon(task)
        assert pool._runtime.core.waiting == 0
        assert held.release()

    asyncio.run(story())


def test_a_cancelled_task_leaves_the_queue(pool: CredentialCoordinator) -> None:
    async def story() -> None:
        held = await pool.acquire_async()
        gone = asyncio.create_task(pool.acquire_async("gone"))
        stays = asyncio.create_task(pool.acquire_async("stays"))
        await until_waiting(pool, 2)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        held.release()
        assert (await soon(stays)).held

    asyncio.run(story())


def test_a_task_cancelled_in_the_very_moment_of_its_grant_passes_it_on(pool: CredentialCoordinator) -> None:
    async def story() -> None:
        held = await pool.acquire_async()
        gone = asyncio.create_task(pool.acquire_async("gone"))
        await until_waiting(pool, 1)
        held.release()  # the grant is made: its future is done, the task has not run yet
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert pool.get_available_count() == 1

    asyncio.run(story())


def test_a_task_group_that_fails_gives_every_lease_back(pool: CredentialCoordinator) -> None:
    async def holder() -> None:
        async with pool.lease():
            await asyncio.sleep(0)
            raise ValueError("work failed")

    async def waiter() -> None:
        async with pool.lease():
            await asyncio.Event().wait()

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(holder())
            for _ in range(5):
                group.create_task(waiter())

    with pytest.raises(ExceptionGroup):
        asyncio.run(story())
    assert pool.get_available_count() == 1
    assert pool._runtime.core.waiting == 0


def test_a_grant_to_a_closed_loop_goes_on_to_the_next(pool: CredentialCoordinator, clock: FakeClock) -> None:
    """A loop that is closed with a task still waiting: its turn comes, and must not take the key with it."""
    held = pool.acquire()
    loop = asyncio.new_event_loop()
    orphan = loop.create_task(pool.acquire_async("orphan"))
    loop.run_until_complete(until_waiting(pool, 1))
    waiter = Background(lambda: pool.acquire("thread"))
    clock.wait_for_sleepers(1)
    loop.close()

    held.release()

    assert waiter.result().requester == "thread"
    assert orphan.get_loop().is_closed()
    orphan._log_destroy_pending = False  # type: ignore[attr-defined]  # it never ran again, on purpose


def test_a_closed_loop_with_a_later_turn_delays_no_other_waiter(pool: CredentialCoordinator, clock: FakeClock) -> None:
    with pool.lease() as lease:
        lease.rate_limited(10)
    loop = asyncio.new_event_loop()
    orphan = loop.create_task(pool.acquire_async("orphan"))
    loop.run_until_complete(until_waiting(pool, 1))
    loop.close()
    waiter = Background(lambda: pool.acquire("thread"))
    clock.wait_for_sleepers(1)

    clock.advance(10)

    assert waiter.result().requester == "thread"
    orphan._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_blocked_loop_at_the_head_does_not_stall_threads_behind_it(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one", "secret-two"], clock=clock, debug=True)
    for _ in range(2):
        with pool.lease() as lease:
            lease.rate_limited(10)
    in_line, unblock = threading.Event(), threading.Event()

    async def story() -> None:
        task = asyncio.create_task(pool.acquire_async("task"))
        await until_waiting(pool, 1)
        in_line.set()
        unblock.wait(PATIENCE)  # blocks the loop, timer and all
        assert (await soon(task)).held

    loop = Background(lambda: asyncio.run(story()))
    assert in_line.wait(PATIENCE)
    thread = Background(lambda: pool.acquire("thread"))
    clock.wait_for_sleepers(2)  # the loop's alarm, and the thread's own
    clock.advance(10)

    assert thread.result().held
    unblock.set()
    loop.result()


def test_a_thread_hands_over_to_a_task_and_a_task_to_a_thread(pool: CredentialCoordinator, clock: FakeClock) -> None:
    first = pool.acquire()
    in_line = threading.Event()

    async def story() -> None:
        task = asyncio.create_task(pool.acquire_async("task"))
        await until_waiting(pool, 1)
        in_line.set()
        lease = await soon(task)
        thread = Background(lambda: pool.acquire("thread"))
        await until_waiting(pool, 1)
        lease.release()
        assert (await asyncio.to_thread(thread.result)).requester == "thread"

    loop = Background(lambda: asyncio.run(story()))
    assert in_line.wait(PATIENCE)
    first.release()
    loop.result()


def test_two_loops_share_one_pool(clock: FakeClock) -> None:
    pool = CredentialCoordinator(["secret-one"], clock=clock, debug=True)
    turns = 50

    async def story() -> None:
        for _ in range(turns):
            async with pool.lease():
                await asyncio.sleep(0)

    loops = [Background(lambda: asyncio.run(story())) for _ in range(2)]
    for loop in loops:
        loop.result()

    assert pool.get_available_count() == 1
    assert pool._runtime.core._token == 2 * turns


def test_closing_tells_waiting_tasks(pool: CredentialCoordinator) -> None:
    async def story() -> None:
        _held = await pool.acquire_async()
        task = asyncio.create_task(pool.acquire_async())
        await until_waiting(pool, 1)
        pool.close()
        with pytest.raises(PoolClosed):
            await soon(task)

    asyncio.run(story())


def test_a_wait_with_a_far_deadline_survives_an_early_alarm(pool: CredentialCoordinator, clock: FakeClock) -> None:
    """A cooling that is made longer while a task waits: the first alarm finds nothing, and another is set."""

    async def story() -> None:
        async with pool.lease() as lease:
            lease.rate_limited(10)
            pool.mark_rate_limited("secret-one", 20)
        task = asyncio.create_task(pool.acquire_async(timeout=100))
        await until_waiting(pool, 1)
        pool.mark_rate_limited("secret-one", 60)
        for seconds in (20, 20, 20):
            assert not task.done()
            clock.advance(seconds)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert (await soon(task)).held

    asyncio.run(story())
