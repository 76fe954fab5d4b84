"""Requests of a run wait in the same queue as threads and tasks, and are answered in its completion queue."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator

import pytest

from agentos import Credential, CredentialCoordinator, NeverFits, NoUsableCredential, PoolClosed
from agentos.pool.completion_queue import CompletionQueue, QueuedRequest
from agentos.pool.core.cost import request_cost
from agentos.pool.core.limits.base import FOREVER
from agentos.pool.core.records import PLAIN, LeaseRequest
from agentos.pool.core.states import TicketState
from agentos.testing import FakeClock

from ...background_threads import PATIENCE, Background


class Run:
    """A desk, who is told of news, and the requests put in for it."""

    def __init__(self, pool: CredentialCoordinator) -> None:
        self.pool = pool
        self.news = 0
        self.told = threading.Condition()
        self.desk = CompletionQueue(self.on_news)

    def on_news(self) -> None:
        with self.told:
            self.news += 1
            self.told.notify_all()

    def ask(self, name: str, ask: LeaseRequest = PLAIN) -> QueuedRequest:
        ticket = QueuedRequest(ask, name, self.desk, name)
        self.pool._runtime.enqueue(ticket)
        return ticket

    def answered(self) -> list[str]:
        return [ticket.item for ticket in self.desk.completed]

    def wait_for(self, count: int) -> list[str]:
        with self.told:
            assert self.told.wait_for(lambda: len(self.desk.completed) >= count, PATIENCE), self.answered()
        return self.answered()

    def give_back(self, place: int = 0) -> None:
        grant = self.desk.completed[place].grant
        assert grant is not None
        assert self.pool._runtime.give_back(grant)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool(clock: FakeClock) -> Iterator[CredentialCoordinator]:
    """One key; the pool checks its own promises after every step, and in the end nobody waits at any desk."""
    pool = CredentialCoordinator(["secret-at-the-desk"], clock=clock, debug=True)
    yield pool
    assert pool._runtime.scheduler.waiters.queues == {}
    assert pool._runtime.core.waiting == 0


# -- answers ------------------------------------------------------------------------------------------------------


def test_a_request_is_answered_before_enqueue_returns_if_a_key_is_free(pool: CredentialCoordinator) -> None:
    run = Run(pool)

    ticket = run.ask("a")

    assert run.answered() == ["a"]
    assert ticket.state is TicketState.GRANTED
    assert ticket.grant is not None
    assert (ticket.grant.requester, ticket.item) == ("a", "a")
    assert run.news >= 1
    assert (run.desk.waiting, run.desk.armed_at) == (0, FOREVER)
    run.give_back()
    assert pool.get_available_count() == 1


def test_a_request_that_has_to_wait_is_answered_by_whoever_gives_the_key_back(pool: CredentialCoordinator) -> None:
    run = Run(pool)
    lease = pool.acquire("holder")
    run.ask("a")
    assert run.answered() == []
    assert pool.explain("a").state == "waiting"
    assert run.desk.waiting == 1
    before = run.news

    lease.release()

    assert run.answered() == ["a"]
    assert run.news > before
    assert run.desk.waiting == 0
    run.give_back()


def test_requests_threads_and_tasks_stand_in_one_line_in_the_order_they_came(pool: CredentialCoordinator) -> None:
    run, order = Run(pool), list[str]()
    first = pool.acquire("holder")
    threads: list[Background[None]] = []
    loop = asyncio.new_event_loop()
    looping = Background(loop.run_forever)
    tasks = []

    def in_line(name: str) -> bool:
        return pool.explain(name).state == "waiting"

    def wait_until_in_line(name: str) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE * 1000)):
            if in_line(name):
                return
            pause.wait(0.001)
        raise AssertionError(f"{name} is not in line")

    def by_thread(name: str) -> None:
        with pool.lease(name):
            order.append(name)

    async def by_task(name: str) -> None:
        async with pool.lease(name):
            order.append(name)

    names = ["desk-0", "thread-1", "task-2", "desk-3", "task-4", "desk-5", "thread-6"]
    for name in names:
        kind = name.split("-")[0]
        if kind == "desk":
            run.ask(name)
        elif kind == "thread":
            threads.append(Background(lambda name=name: by_thread(name)))  # type: ignore[misc]
        else:
            tasks.append(asyncio.run_coroutine_threadsafe(by_task(name), loop))
        wait_until_in_line(name)
    assert [pool.explain(name).position for name in names] == [1, 2, 3, 4, 5, 6, 7]

    first.release()
    for count, name in enumerate(("desk-0", "desk-3", "desk-5"), start=1):
        assert run.wait_for(count)[-1] == name
        order.append(name)
        run.give_back(count - 1)
    for thread in threads:
        thread.result()
    for task in tasks:
        task.result(PATIENCE)
    loop.call_soon_threadsafe(loop.stop)
    looping.result()
    loop.close()

    assert order == names


def test_a_higher_priority_goes_first_in_a_completion_queue_too(pool: CredentialCoordinator) -> None:
    run = Run(pool)
    lease = pool.acquire("holder")
    run.ask("low")
    run.ask("high", LeaseRequest(PLAIN.cost, priority=5))

    lease.release()

    assert run.answered() == ["high"]
    run.give_back()
    assert run.answered() == ["high", "low"]
    run.give_back(1)


# -- the instant to look out --------------------------------------------------------------------------------------


def test_a_completion_queue_is_armed_for_the_next_start(pool: CredentialCoordinator, clock: FakeClock) -> None:
    run = Run(pool)
    with pool.lease() as lease:
        lease.rate_limited(30)
    run.ask("a")

    assert run.desk.armed_at == clock.now() + 30
    assert run.news == 1
    clock.advance(29)
    pool._runtime.on_timer(run.desk)
    assert run.answered() == []
    assert run.desk.armed_at == clock.now() + 1
    clock.advance(1)
    pool._runtime.on_timer(run.desk)
    assert run.answered() == ["a"]
    assert run.desk.armed_at == FOREVER
    run.give_back()


def test_a_check_without_a_grant_arms_the_completion_queue_again(pool: CredentialCoordinator, clock: FakeClock) -> None:
    run = Run(pool)
    with pool.lease() as lease:
        lease.rate_limited(10)
    run.ask("a")
    # Meanwhile the provider said to wait longer: by a lease of another process, here by hand.
    core = pool._runtime.core
    key = next(iter(core.keys.values()))
    pool._runtime.scheduler.run_step(lambda now: core.close_quota(key, now + 50, model=None, evidence="test", now=now))
    clock.advance(10)
    pool._runtime.on_timer(run.desk)

    assert run.answered() == []
    assert run.desk.armed_at == 1050.0
    clock.advance(40)
    pool._runtime.on_timer(run.desk)
    assert run.answered() == ["a"]
    run.give_back()


def test_a_completion_queue_behind_a_waiting_task_is_armed_too(pool: CredentialCoordinator, clock: FakeClock) -> None:
    """The loop of the task at the head may be stuck; that must not hold up a run."""
    run = Run(pool)
    with pool.lease() as lease:
        lease.rate_limited(30)

    async def main() -> None:
        task = asyncio.create_task(pool.acquire_async("task"))
        await asyncio.sleep(0)
        run.ask("a")
        assert run.desk.armed_at == 1030.0
        clock.advance(30)  # the task's own loop is busy: it is this code
        pool._runtime.on_timer(run.desk)
        lease = await task
        assert run.answered() == []  # it stood behind
        lease.release()
        assert run.answered() == ["a"]

    asyncio.run(main())
    run.give_back()


def test_the_last_request_to_leave_takes_the_alarm_with_it(pool: CredentialCoordinator, clock: FakeClock) -> None:
    run = Run(pool)
    with pool.lease() as lease:
        lease.rate_limited(30)
    first, second = run.ask("a"), run.ask("b")

    pool._runtime.cancel(first)
    assert run.desk.armed_at == 1030.0
    pool._runtime.cancel(second)

    assert run.desk.armed_at == FOREVER
    assert run.desk.waiting == 0


def test_when_the_head_leaves_the_next_waiter_is_armed(pool: CredentialCoordinator, clock: FakeClock) -> None:
    """There is no timer: whoever grants or loses the head must see to it that somebody else is armed."""
    first, second = Run(pool), Run(pool)
    with pool.lease() as lease:
        lease.rate_limited(30)
    ticket = first.ask("a")
    second.ask("b")

    pool._runtime.cancel(ticket)

    assert second.desk.armed_at == 1030.0
    assert second.news >= 1
    clock.advance(30)
    pool._runtime.on_timer(second.desk)
    assert second.answered() == ["b"]
    second.give_back()


def test_a_thread_that_gives_up_leaves_an_armed_completion_queue(pool: CredentialCoordinator, clock: FakeClock) -> None:
    run = Run(pool)
    with pool.lease() as lease:
        lease.rate_limited(30)
    waiting = Background(lambda: pool.acquire("thread", timeout=5))
    clock.wait_for_sleepers(1)
    run.ask("a")

    clock.advance(5)
    with pytest.raises(TimeoutError):
        waiting.result()

    assert run.desk.armed_at == 1030.0
    clock.advance(25)
    pool._runtime.on_timer(run.desk)
    assert run.answered() == ["a"]
    run.give_back()


# -- calling off --------------------------------------------------------------------------------------------------


def test_a_request_that_waits_can_be_called_off(pool: CredentialCoordinator) -> None:
    run = Run(pool)
    lease = pool.acquire("holder")
    ticket, other = run.ask("a"), run.ask("b")

    pool._runtime.cancel(ticket)
    pool._runtime.cancel(ticket)  # once more does no harm

    assert ticket.state is TicketState.WITHDRAWN
    assert run.desk.waiting == 1
    lease.release()
    assert run.answered() == ["b"]
    assert other.state is TicketState.GRANTED
    run.give_back()


def test_a_request_called_off_when_its_grant_has_just_come_passes_it_on(pool: CredentialCoordinator) -> None:
    run, other = Run(pool), Run(pool)
    granted = run.ask("a")
    other.ask("b")
    assert run.answered() == ["a"]
    assert other.answered() == []

    pool._runtime.cancel(granted)

    assert other.answered() == ["b"]
    pool._runtime.cancel(granted)  # its lease is not the other's
    assert pool.get_available_count() == 0
    other.give_back()
    assert pool.get_available_count() == 1


def test_a_request_that_failed_can_be_called_off_too(clock: FakeClock) -> None:
    pool = CredentialCoordinator([], clock=clock, debug=True)
    run = Run(pool)
    ticket = run.ask("a")

    pool._runtime.cancel(ticket)

    assert ticket.state is TicketState.FAILED
    assert pool._runtime.scheduler.waiters.queues == {}


# -- hopeless -----------------------------------------------------------------------------------------------------


def test_a_request_that_nothing_can_ever_serve_fails_at_once(clock: FakeClock) -> None:
    pool = CredentialCoordinator([Credential("secret-with-limit", tpm=100)], clock=clock, debug=True)
    run = Run(pool)

    too_large = run.ask("a", LeaseRequest(request_cost({"tokens": 500})))
    fits = run.ask("b", LeaseRequest(request_cost({"tokens": 5})))

    assert run.answered() == ["a", "b"]
    assert isinstance(too_large.error, NeverFits)
    assert fits.grant is not None
    run.give_back(1)


def test_when_the_last_key_dies_all_requests_fail_and_say_why(pool: CredentialCoordinator) -> None:
    runs = [Run(pool), Run(pool)]
    lease = pool.acquire("holder")
    tickets = [run.ask(f"{name}-{number}") for number, run in enumerate(runs) for name in "ab"]

    lease.rejected("401")

    assert [run.answered() for run in runs] == [["a-0", "b-0"], ["a-1", "b-1"]]
    assert all(ticket.state is TicketState.FAILED for ticket in tickets)
    assert all(isinstance(ticket.error, NoUsableCredential) for ticket in tickets)
    assert all(run.news >= 1 for run in runs)
    lease.release()


def test_when_the_pool_is_closed_all_requests_fail(pool: CredentialCoordinator) -> None:
    run = Run(pool)
    lease = pool.acquire("holder")
    ticket = run.ask("a")

    pool.close()

    assert isinstance(ticket.error, PoolClosed)
    assert isinstance(run.ask("b").error, PoolClosed)
    assert run.answered() == ["a", "b"]
    lease.release()


def test_a_key_that_is_added_answers_those_who_wait(pool: CredentialCoordinator) -> None:
    run = Run(pool)
    lease = pool.acquire("holder")
    run.ask("a")

    pool.add("a-second-secret")

    assert run.answered() == ["a"]
    run.give_back()
    lease.release()


# -- many ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("luck", range(4))
def test_random_steps_of_many_completion_queues_lose_no_request_or_key(luck: int) -> None:
    """Whatever is put in, called off, granted, given back and limited: each request is answered or gone, once."""
    r = random.Random(luck)
    clock = FakeClock()
    pool = CredentialCoordinator([f"secret-of-many-{n}" for n in range(3)], clock=clock, debug=True)
    runs = [Run(pool) for _ in range(5)]
    waiting: list[tuple[Run, QueuedRequest]] = []
    held: list[QueuedRequest] = []
    asked = answered = called_off = 0
    for _ in range(600):
        happening = r.random()
        if happening < 0.4:
            run = r.choice(runs)
            waiting.append((run, run.ask(f"item-{asked}", LeaseRequest(PLAIN.cost, r.choice([None, "a", "b"])))))
            asked += 1
        elif happening < 0.5 and waiting:
            _, ticket = waiting.pop(r.randrange(len(waiting)))
            if ticket.state is TicketState.WAITING:
                pool._runtime.cancel(ticket)
                called_off += 1
        elif happening < 0.8 and held:
            grant = held.pop(r.randrange(len(held))).grant
            assert grant is not None
            if r.random() < 0.2:
                pool._runtime.report_rate_limited(grant, r.choice([1, 20]), grant.model)
            assert pool._runtime.give_back(grant)
        elif happening < 0.95:
            clock.advance(r.choice([0.5, 5.0]))
            for run in runs:
                if clock.now() >= run.desk.armed_at:
                    pool._runtime.on_timer(run.desk)
        for run in runs:
            while run.desk.completed:
                ticket = run.desk.completed.popleft()
                assert ticket.state is TicketState.GRANTED
                held.append(ticket)
                answered += 1
        for run in runs:
            mine = [t for _, t in waiting if t.owner is run.desk and t.state is TicketState.WAITING]
            assert run.desk.waiting == len(mine)
            assert (run.desk in pool._runtime.scheduler.waiters.queues) is bool(mine)
        # Nobody has to poll: as long as somebody waits for an instant, some desk is armed for it or earlier.
        if pool._runtime.core.next_ticket is not None:
            assert min(run.desk.armed_at for run in runs) <= pool._runtime.core.next_at
    for ticket in held:
        assert ticket.grant is not None
        pool._runtime.give_back(ticket.grant)
    for _, ticket in waiting:
        pool._runtime.cancel(ticket)

    assert asked > 100
    assert answered > 50
    assert called_off > 5
    assert pool._runtime.scheduler.waiters.queues == {}
    assert pool.get_stats()["total"] == 3
    clock.advance(100)
    assert pool.get_available_count() == 3


def test_many_threads_put_in_and_call_off_at_once_and_nothing_is_lost() -> None:
    pool = CredentialCoordinator([f"secret-of-many-{n}" for n in range(4)], debug=True)
    together = threading.Barrier(6)

    def live(luck: int) -> int:
        r, run, done = random.Random(luck), Run(pool), 0
        together.wait(PATIENCE)
        for number in range(60):
            ticket = run.ask(f"{luck}-{number}")
            if r.random() < 0.3:
                pool._runtime.cancel(ticket)  # waiting or granted
                with run.told:
                    if ticket in run.desk.completed:
                        run.desk.completed.remove(ticket)
                continue
            run.wait_for(1)
            answer = run.desk.completed.popleft()
            assert answer is ticket
            assert ticket.grant is not None
            assert pool._runtime.give_back(ticket.grant)
            done += 1
        return done

    lives = [Background(lambda luck=luck: live(luck)) for luck in range(6)]  # type: ignore[misc]

    assert sum(background.result() for background in lives) > 100
    assert pool._runtime.scheduler.waiters.queues == {}
    assert pool.get_available_count() == 4
