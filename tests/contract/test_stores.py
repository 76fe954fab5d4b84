"""The contract of a pool on every store."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos import (
    Credential,
    CredentialCoordinator,
    Lease,
    Limit,
    NeverFits,
    NoCredentialAvailable,
    NoUsableCredential,
    ParallelCoordinator,
    PoolClosed,
)

from ..background_threads import Background
from .engine_contract import PATIENCE, Engine, eventually, secrets
from .pool_scenarios import Story, disagreement, shortened, starts_in, told_by_the_core
from .random_scenarios import random_story
from .store_contract import Place
from .written_scenarios import STORIES

ONE_KEY = "contract-secret-one"
TWO_KEYS = ("contract-secret-one", "contract-secret-two")

# -- stories the core has told ------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_written_story_goes_as_the_core_tells_it(place: Place, story: Story) -> None:
    told = starts_in(story, told_by_the_core(story))
    assert [(who, key, round(at, 6)) for who, key, at in told] == [*story.starts]  # it is about what its name says

    found = disagreement(story, place)

    assert found is None, found


def test_random_stories_go_as_the_core_tells_them(place: Place, tmp_path: Path) -> None:
    places = 0

    def disagrees(story: Story) -> str | None:
        nonlocal places
        places += 1
        fresh = place.elsewhere(tmp_path / str(places))
        try:
            return disagreement(story, fresh)
        finally:
            fresh.close()

    for luck in range(place.store.stories):
        story = random_story(luck)
        if disagrees(story):
            pytest.fail(str(disagrees(shortened(story, disagrees))))


def test_the_random_stories_are_about_everything_that_can_happen() -> None:
    states, starts, errors = Counter[str](), Counter[str](), Counter[str]()
    for luck in range(60):
        story = random_story(luck)
        answers = told_by_the_core(story)
        for answer in answers:
            states.update(row.state for row in answer.rows)
            errors.update(said.split("(")[0] for _, said in answer.failures)
        waited = {step.subject for step in story.steps if step.verb == "enqueue"}
        starts.update("waited" if who in waited else "at once" for who, _, _ in starts_in(story, answers))

    words = {"available", "leased", "cooling", "parked", "limited", "spent", "dead", "retired"}
    assert set(states) == words
    assert min(starts["waited"], starts["at once"]) > 80
    assert set(errors) == {"NeverFits", "NoUsableCredential"}


# -- threads ------------------------------------------------------------------------------------------------------


def test_a_lease_gives_the_secret_and_gives_it_back(place: Place) -> None:
    pool = place.open(ONE_KEY)

    with pool.lease("item-1") as lease:
        assert (lease.name, lease.reveal(), lease.secret.reveal()) == ("key-1", ONE_KEY, ONE_KEY)
        assert (lease.requester, lease.held) == ("item-1", True)
        assert pool.get_stats()["reserved"] == 1

    assert not lease.held
    assert pool.get_available_count() == 1


def test_threads_are_served_in_the_order_they_came(place: Place) -> None:
    pool = place.open(*TWO_KEYS)
    held = [pool.acquire(), pool.acquire()]
    waiters = [place.waiting(pool, f"w{number}") for number in range(5)]

    for number in range(5):
        held.pop(0).release()
        held.append(waiters[number].result())
        assert [waiter.running for waiter in waiters[number + 1 :]] == [True] * (4 - number)

    for lease in held:
        assert lease.release()


def test_a_thread_starts_the_moment_a_cooling_ends(place: Place) -> None:
    pool = place.open(ONE_KEY)
    with pool.lease() as lease:
        lease.rate_limited(30)
    waiter = place.waiting(pool, "w")

    place.clock.advance(29.999)
    assert pool.explain("w").starts_in == pytest.approx(0.001, abs=1e-6)
    assert waiter.running
    place.clock.advance(0.001)

    assert waiter.result().name == "key-1"


def test_a_thread_that_waits_for_what_another_settles_is_told_at_once(place: Place) -> None:
    """Not by giving back: the last who waits starts with what was reserved too much."""
    pool = place.open(Credential(ONE_KEY, slots=2, tpm=60))
    lease = pool.acquire()
    waiter = place.waiting(pool, "w")

    lease.settle(tokens=10)

    assert waiter.result().held
    assert lease.held


def test_a_wait_that_times_out_says_when_the_next_is_due_and_leaves_the_line(place: Place) -> None:
    pool = place.open(ONE_KEY)
    with pool.lease() as lease:
        lease.rate_limited(60)
    waiter = place.waiting(pool, "w", timeout=10)

    place.clock.advance(10)

    with pytest.raises(NoCredentialAvailable) as caught:
        waiter.result()
    assert caught.value.waited == pytest.approx(10)
    assert caught.value.next_free_in == pytest.approx(50)
    assert pool.explain("w").state == "unknown"


def test_a_waiter_that_timed_out_does_not_take_the_next_ones_turn(place: Place) -> None:
    pool = place.open(ONE_KEY)
    held = pool.acquire()
    impatient = place.waiting(pool, "impatient", timeout=5)
    patient = place.waiting(pool, "patient")
    place.clock.advance(5)
    with pytest.raises(NoCredentialAvailable):
        impatient.result()

    held.release()

    assert patient.result().held


def test_who_will_not_wait_is_refused_at_once(place: Place) -> None:
    pool = place.open(ONE_KEY)
    _held = pool.acquire()

    with pytest.raises(NoCredentialAvailable, match=r"in 0\.0s; the next is free when a holder releases one"):
        pool.acquire_nowait()


def test_waiting_in_vain_is_told_at_once(place: Place) -> None:
    pool = place.open(Credential(ONE_KEY, tpm=1000))

    with pytest.raises(NeverFits):
        pool.acquire(cost={"tokens": 1001})
    with pytest.raises(NoUsableCredential):
        pool.acquire(labels={"tier": "paid"})


def test_a_thread_that_waits_is_told_when_the_last_key_dies(place: Place) -> None:
    pool = place.open(*TWO_KEYS)
    held = [pool.acquire(), pool.acquire()]
    waiter = place.waiting(pool, "w")

    for lease in held:
        lease.rejected("401")

    with pytest.raises(NoUsableCredential, match="2 dead"):
        waiter.result()


def test_a_lease_given_back_twice_changes_nothing_the_second_time(place: Place) -> None:
    pool = place.open(ONE_KEY)
    lease = pool.acquire("first")
    assert lease.release()
    other = pool.acquire("second")

    assert not lease.release()

    assert other.held
    assert pool.snapshot()[0].reserved_by == "second"
    assert other.release()


def test_reports_of_a_lease_that_was_given_back_change_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    pool = place.open(Credential(ONE_KEY, tpm=1000))
    lease = pool.acquire(cost={"tokens": 100})
    lease.release()
    before = pool.snapshot()

    assert not lease.settle(tokens=5)
    assert not lease.rate_limited(60)
    assert not lease.rejected("late")
    assert not lease.spent("late")

    assert pool.snapshot() == before
    assert caplog.text.count("has ended; its report of") == 4


def test_tokens_only_grow(place: Place) -> None:
    pool = place.open(*TWO_KEYS)
    tokens = []
    for _ in range(3):
        leases = [pool.acquire(), pool.acquire()]
        tokens += [lease.token for lease in leases]
        for lease in reversed(leases):
            lease.release()

    assert tokens == sorted(set(tokens))


def test_many_threads_at_once_lose_no_lease_and_share_no_key(place: Place) -> None:
    pool = place.open(*TWO_KEYS)
    using, most, lock = Counter[str](), Counter[str](), threading.Lock()
    together = threading.Barrier(6)

    def live() -> None:
        together.wait(PATIENCE)
        for _ in range(20):
            with pool.lease() as lease:
                with lock:
                    using[lease.name] += 1
                    most[lease.name] = max(most[lease.name], using[lease.name])
                with lock:
                    using[lease.name] -= 1

    lives = [Background(live) for _ in range(6)]
    for each in lives:
        each.result()

    assert set(most.values()) == {1}
    assert pool.get_available_count() == 2


# -- tasks --------------------------------------------------------------------------------------------------------


async def until_waiting(pool: CredentialCoordinator, *names: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while any(pool.explain(name).state != "waiting" for name in names):
            await asyncio.sleep(0)


def test_a_task_waits_without_blocking_its_loop(place: Place) -> None:
    pool = place.open(ONE_KEY)

    async def story() -> None:
        async with pool.lease("first"):
            second = asyncio.create_task(pool.acquire_async("second"))
            await until_waiting(pool, "second")
        lease = await asyncio.wait_for(second, PATIENCE)
        assert lease.release()

    asyncio.run(story())


def test_a_task_starts_the_moment_a_cooling_ends(place: Place) -> None:
    pool = place.open(ONE_KEY)

    async def story() -> None:
        async with pool.lease() as lease:
            lease.rate_limited(30)
        task = asyncio.create_task(pool.acquire_async("t"))
        await until_waiting(pool, "t")
        place.clock.advance(29.999)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        place.clock.advance(0.001)
        assert (await asyncio.wait_for(task, PATIENCE)).held

    asyncio.run(story())


def test_a_task_that_is_cancelled_leaves_the_line(place: Place) -> None:
    pool = place.open(ONE_KEY)

    async def story() -> None:
        held = await pool.acquire_async()
        gone, stays = (asyncio.create_task(pool.acquire_async(name)) for name in ("gone", "stays"))
        await until_waiting(pool, "gone", "stays")
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        held.release()
        assert (await asyncio.wait_for(stays, PATIENCE)).held

    asyncio.run(story())


def test_a_task_that_is_cancelled_in_the_moment_of_its_grant_gives_it_on(place: Place) -> None:
    pool = place.open(ONE_KEY)

    async def story() -> None:
        held = await pool.acquire_async()
        gone, stays = (asyncio.create_task(pool.acquire_async(name)) for name in ("gone", "stays"))
        await until_waiting(pool, "gone", "stays")
        held.release()  # the grant is made, and its task has not run yet
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert (await asyncio.wait_for(stays, PATIENCE)).requester == "stays"

    asyncio.run(story())


def test_a_task_times_out_and_leaves_the_line(place: Place) -> None:
    pool = place.open(ONE_KEY)

    async def story() -> None:
        held = await pool.acquire_async()
        task = asyncio.create_task(pool.acquire_async("t", timeout=5))
        await until_waiting(pool, "t")
        place.clock.advance(5)
        with pytest.raises(NoCredentialAvailable, match=r"in 5\.0s"):
            await asyncio.wait_for(task, PATIENCE)
        assert pool.explain("t").state == "unknown"
        assert held.release()

    asyncio.run(story())


# -- who is in the pool -------------------------------------------------------------------------------------------


def test_closing_tells_the_threads_and_tasks_that_wait(place: Place) -> None:
    pool = place.open(ONE_KEY)
    _held = pool.acquire("holder")
    threads = [place.waiting(pool, "w0"), place.waiting(pool, "w1")]

    async def story() -> None:
        task = asyncio.create_task(pool.acquire_async("t"))
        await until_waiting(pool, "t")
        pool.close()
        with pytest.raises(PoolClosed):
            await asyncio.wait_for(task, PATIENCE)

    asyncio.run(story())
    for thread in threads:
        with pytest.raises(PoolClosed):
            thread.result()


def test_a_closed_pool_grants_nothing_and_takes_nobody_in(place: Place) -> None:
    with place.open(ONE_KEY) as pool:
        pool.acquire().release()

    with pytest.raises(PoolClosed):
        pool.acquire()
    with pytest.raises(PoolClosed):
        pool.add("contract-secret-late")
    pool.close()  # once more does no harm


def test_a_credential_joins_and_retires_while_others_wait(place: Place) -> None:
    pool = place.open(ONE_KEY)
    held = pool.acquire()
    waiter = place.waiting(pool, "w")

    assert pool.add("contract-secret-two") == "key-2"

    lease = waiter.result()
    assert lease.name == "key-2"
    pool.retire("key-2")
    assert lease.release()
    held.release()
    assert (_held := pool.acquire()).name == "key-1"
    with pytest.raises(NoCredentialAvailable):
        pool.acquire_nowait()


def test_a_name_nobody_has_is_refused_with_those_there_are(place: Place) -> None:
    pool = place.open(*TWO_KEYS)

    for act in (pool.retire, pool.revive, pool.clear):
        with pytest.raises(ValueError, match="key-1, key-2"):
            act("key-9")


# -- clearing by hand ---------------------------------------------------------------------------------------------

ONE_AN_HOUR = Limit("requests", 1, per=3600)
KNOWN: dict[str, tuple[tuple[Limit, ...], Callable[[Lease], object]]] = {
    "dead": ((), lambda lease: lease.rejected("401")),
    "spent": ((), lambda lease: lease.spent("insufficient_quota")),
    "cooling": ((), lambda lease: lease.rate_limited(60)),
    "parked": ((), lambda lease: lease.rate_limited(7200)),
    "a bucket used up": ((ONE_AN_HOUR,), lambda lease: None),
    "a window used up": ((dataclasses.replace(ONE_AN_HOUR, window="sliding"),), lambda lease: None),
    "a day used up": ((Limit("requests", 1, per="day"),), lambda lease: None),
    "an overrun": ((Limit("tokens", 100),), lambda lease: lease.settle(tokens=5000)),
}


@pytest.mark.parametrize("known", KNOWN)
def test_clear_undoes_what_is_known_of_a_credential(place: Place, known: str) -> None:
    limits, report = KNOWN[known]
    pool = place.open(Credential(ONE_KEY, limits=limits))
    with pool.lease() as lease:
        report(lease)
    with pytest.raises((NoCredentialAvailable, NoUsableCredential)):
        pool.acquire_nowait(cost={"tokens": 1})

    pool.clear("key-1")

    row = pool.snapshot()[0]
    assert (row.state, row.rate_limited_until, row.why) == ("available", 0.0, "")
    assert [limit.left for limit in row.limits] == [limit.amount for limit in row.limits]
    assert (_held := pool.acquire_nowait(cost={"tokens": 1})).held


def test_clear_undoes_what_is_known_of_the_quota_for_all_its_credentials(place: Place) -> None:
    pool = place.open(*(Credential(secret, quota="acme", limits=[ONE_AN_HOUR]) for secret in TWO_KEYS))
    with pool.lease(model="gpt-4o") as lease:
        lease.rate_limited(60)
        lease.rate_limited(60, model="gpt-4o")
        lease.spent("insufficient_quota")

    pool.clear("key-2")

    assert [row.state for row in pool.snapshot()] == ["available", "available"]
    assert (_held := pool.acquire_nowait(model="gpt-4o")).name == "key-2"


def test_clear_forgets_what_requests_were_seen_to_use(place: Place) -> None:
    pool = place.open(Credential(ONE_KEY, slots=9, tpm=1000))
    with pool.lease() as lease:
        lease.settle(tokens=100)
    several = [pool.acquire(), pool.acquire()]
    for lease in several:
        lease.release()

    pool.clear("key-1")

    _held = pool.acquire()  # of unknown cost again: one in flight
    with pytest.raises(NoCredentialAvailable):
        pool.acquire_nowait()


def test_clear_wakes_a_thread_that_waits(place: Place) -> None:
    pool = place.open(ONE_KEY)
    with pool.lease() as lease:
        lease.rate_limited(7200)
    waiter = place.waiting(pool, "w")

    pool.clear("key-1")

    assert waiter.result().held


def test_clear_ends_no_lease(place: Place) -> None:
    pool = place.open(ONE_KEY)
    lease = pool.acquire()

    pool.clear("key-1")

    assert lease.held
    with pytest.raises(NoCredentialAvailable):
        pool.acquire_nowait()
    assert lease.release()


# -- the string verbs ---------------------------------------------------------------------------------------------


def test_the_string_verbs_reserve_release_and_mark_rate_limited(place: Place) -> None:
    pool = place.open(*TWO_KEYS)
    assert pool.reserve(timeout=0) == TWO_KEYS[0]
    assert pool.reserve_credential("item-2") == TWO_KEYS[1]
    assert pool.acquire_credential() is None

    pool.release(TWO_KEYS[0])
    assert pool.reserve() == TWO_KEYS[0]
    pool.mark_rate_limited(TWO_KEYS[0], 30)
    pool.release(TWO_KEYS[1])
    assert pool.reserve() == TWO_KEYS[1]

    assert pool.acquire_credential() is None
    place.clock.advance(30)
    assert pool.acquire_credential() == TWO_KEYS[0]
    assert pool.get_stats()["reserved"] == 2


def test_a_second_release_of_a_string_ends_nobody_elses_reservation(place: Place) -> None:
    pool = place.open(ONE_KEY)
    assert pool.reserve(timeout=0) == ONE_KEY
    pool.release(ONE_KEY)
    other = pool.acquire("other")

    pool.release(ONE_KEY)

    assert other.held


# -- looking at it ------------------------------------------------------------------------------------------------


def test_snapshot_and_stats_say_what_each_key_is_and_why(place: Place) -> None:
    pool = place.open(*secrets(6), Credential("contract-secret-limited", rpm=1))
    leases = [pool.acquire(f"item-{number}") for number in range(7)]
    leases[1].rate_limited(30)
    leases[2].rate_limited(7200)
    leases[3].rejected("401")
    leases[4].spent("insufficient_quota")
    pool.retire("key-6")
    for lease in leases[1:]:
        lease.release()

    rows = {row.name: row for row in pool.snapshot()}

    assert [rows[f"key-{number}"].state for number in range(1, 8)] == [
        *("leased", "cooling", "parked", "dead", "spent", "retired", "limited")
    ]
    assert rows["key-1"].reserved_by == "item-0"
    assert rows["key-2"].rate_limited_until == pytest.approx(place.clock.wall() + 30)
    assert rows["key-2"].why == "item-1 reported a rate limit"
    assert (rows["key-4"].why, rows["key-5"].why) == ("401", "insufficient_quota")
    assert rows["key-7"].limits[0].left == pytest.approx(0)
    assert not any(row.is_available for row in rows.values())
    assert pool.get_stats() == {
        "total": 6,
        "available": 0,
        "reserved": 1,
        "rate_limited": 2,
        "parked": 1,
        "dead": 2,
    }
    assert pool.get_available_count() == 0


def test_explain_says_why_one_waits_and_when_it_will_start(place: Place) -> None:
    pool = place.open(*TWO_KEYS)
    held = pool.acquire("busy")
    with pool.lease() as lease:
        lease.rate_limited(30)
    waiter = place.waiting(pool, "item-7")
    place.clock.advance(5)

    said = pool.explain("item-7")

    assert (said.state, said.position) == ("waiting", 1)
    assert said.waited == pytest.approx(5)
    assert said.starts_in == pytest.approx(25)
    assert str(said).splitlines()[0] == "item-7 waits as number 1 for 5.0s; it likely starts in about 25.0s"
    assert "key-2: cooling (the caller reported a rate limit), in 25.0s" in str(said)
    assert str(pool.explain("busy")) == "busy is holding key-1"
    assert pool.explain("nobody").state == "unknown"
    held.release()
    assert waiter.result().held


# -- a run --------------------------------------------------------------------------------------------------------


def test_a_run_of_fifty_items_uses_each_key_by_one_at_a_time_and_gives_all_back(engine: Engine, place: Place) -> None:
    pool = place.open(*secrets(3))
    using, most, lock = Counter[str | None](), Counter[str | None](), threading.Lock()

    async def body(item: int, key: str | None) -> int:
        with lock:
            using[key] += 1
            most[key] = max(most[key], using[key])
        with lock:
            using[key] -= 1
        return item * 2

    run = ParallelCoordinator(3, pool, clock=place.clock)
    stats, results = engine.execute(run, range(50), engine.worker(body))

    assert sorted(result.value for result in results) == [item * 2 for item in range(50)]
    assert (stats.total, stats.success_count, stats.failed) == (50, 50, 0)
    assert set(most) <= set(secrets(3))
    assert set(most.values()) == {1}
    eventually(lambda: pool.get_available_count() == 3)
