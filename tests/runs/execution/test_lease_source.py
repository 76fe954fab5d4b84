"""Foreign pools: whatever they do, each request of a run is granted or fails with a reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentos import NoUsableCredential, RateLimited
from agentos.pool.completion_queue import CompletionQueue, QueuedRequest
from agentos.pool.core.records import PLAIN
from agentos.pool.core.states import TicketState
from agentos.pool.protocols import runtime_of
from agentos.pool.redaction import MASK
from agentos.pool.secret import Secret
from agentos.runs.execution.lease_source import ForeignPool, build_run_pool
from agentos.testing import FakeClock
from agentos.util.clock import Sleeper
from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator

PATIENCE = 30.0


class Shelf:
    """A pool as the original program had it."""

    def __init__(self, *keys: Any) -> None:
        self.free = list(keys)
        self.asked = 0
        self.given_back: list[Any] = []

    def acquire_credential(self) -> Any:
        self.asked += 1
        return self.free.pop(0) if self.free else None

    def release_credential(self, key: Any) -> None:
        self.given_back.append(key)
        self.free.append(key)


class Line:
    """A run's desk, and the tickets put in for it."""

    def __init__(self, lessor: Any) -> None:
        self.lessor = lessor
        self.news = threading.Semaphore(0)
        self.desk = CompletionQueue(self.news.release)

    def ask(self, name: str = "item") -> QueuedRequest:
        ticket = QueuedRequest(PLAIN, name, self.desk, name)
        self.lessor.enqueue(ticket)
        return ticket

    def answered(self) -> list[str]:
        return [ticket.item for ticket in self.desk.completed]

    def wait_for(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self.news.acquire(timeout=PATIENCE), "nobody was told"


def foreign(pool: Any, clock: FakeClock | None = None) -> ForeignPool:
    lessor = build_run_pool(pool, clock or FakeClock())
    assert isinstance(lessor, ForeignPool)
    return lessor


# -- which pool ---------------------------------------------------------------------------------------------------


def test_a_run_takes_leases_from_the_runtime_of_our_own_pool() -> None:
    pool = CredentialCoordinator(["secret-of-our-own"])

    assert build_run_pool(pool, FakeClock()) is runtime_of(pool)
    assert build_run_pool(None, FakeClock()) is None


class HalfAPool:
    def acquire_credential(self) -> str:
        return ""

    release_credential = "not a method"


@pytest.mark.parametrize("wrong", [object(), "pool", ["key"], HalfAPool()])
def test_an_object_that_is_not_a_pool_is_refused_with_the_accepted_verbs(wrong: Any) -> None:
    with pytest.raises(ValueError, match="acquire_credential/release_credential, reserve/release, acquire/release"):
        build_run_pool(wrong, FakeClock())


# -- taking -------------------------------------------------------------------------------------------------------


def test_a_free_key_is_taken_at_once_and_given_back_as_it_came() -> None:
    shelf = Shelf("foreign-secret-1")
    lessor = foreign(shelf)

    grant = lessor.take_now(PLAIN, "item")

    assert grant is not None
    assert grant.key.name == "key-1"
    assert grant.key.quota.name == "key-1"
    assert grant.key.secret.reveal() == "foreign-secret-1"
    assert lessor.get_secret("key-1").reveal() == "foreign-secret-1"
    assert lessor.take_now(PLAIN, "item") is None
    assert lessor.give_back(grant)
    assert not lessor.give_back(grant)
    assert shelf.given_back == ["foreign-secret-1"]


def test_a_key_has_one_name_however_often_it_comes() -> None:
    lessor = foreign(Shelf("foreign-secret-1", "foreign-secret-2"))
    names = []
    for _ in range(4):
        grant = lessor.take_now(PLAIN, None)
        assert grant is not None
        names.append(grant.key.name)
        lessor.give_back(grant)

    assert names == ["key-1", "key-2", "key-1", "key-2"]


class LeaseObject:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (LeaseObject(reveal=lambda: "foreign-secret-1", name="mine"), "mine"),
        (LeaseObject(key="foreign-secret-1"), "key-1"),
        (LeaseObject(secret="foreign-secret-1"), "key-1"),
        (LeaseObject(secret=Secret("foreign-secret-1")), "key-1"),
        (LeaseObject(value="foreign-secret-1", name=""), "key-1"),
    ],
)
def test_a_pool_may_hand_out_objects_that_know_their_secret(raw: Any, name: str) -> None:
    shelf = Shelf(raw)
    lessor = foreign(shelf)

    grant = lessor.take_now(PLAIN, None)

    assert grant is not None
    assert (grant.key.name, grant.key.secret.reveal()) == (name, "foreign-secret-1")
    lessor.give_back(grant)
    assert shelf.given_back == [raw]


def test_an_object_with_no_secret_is_refused_by_its_kind() -> None:
    line = Line(foreign(Shelf(LeaseObject(user="me"))))

    ticket = line.ask()
    line.wait_for(line.answered)

    assert ticket.state is TicketState.FAILED
    assert "returned a LeaseObject; it must be a str, or have reveal" in str(ticket.error)


def test_a_secret_that_was_handed_out_is_masked_from_then_on() -> None:
    lessor = foreign(Shelf("foreign-secret-1"))
    lessor.take_now(PLAIN, None)

    assert lessor.masked("401 for foreign-secret-1") == f"401 for {MASK}"


# -- waiting ------------------------------------------------------------------------------------------------------


class Paced(FakeClock):
    """A clock that records how long each wait is to last, and makes it as long as nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, sleeper: Sleeper, until: float) -> None:
        self.pauses.append(until - self.now())
        self.advance(self.pauses[-1])


class Late(Shelf):
    """It has a key from the ninth time on that it is asked."""

    def acquire_credential(self) -> Any:
        return super().acquire_credential() or ("foreign-secret-1" if self.asked == 9 else None)


def test_a_pool_that_says_none_is_asked_again_soon_and_then_less_often() -> None:
    clock = Paced()
    shelf = Late()
    line = Line(foreign(shelf, clock))

    ticket = line.ask()
    line.wait_for(line.answered)

    assert clock.pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5])
    assert shelf.asked == 9
    assert ticket.state is TicketState.GRANTED


def test_requests_are_answered_in_the_order_they_came() -> None:
    shelf = Shelf("foreign-secret-1")
    lessor = foreign(shelf)
    line = Line(lessor)
    held = lessor.take_now(PLAIN, None)
    assert held is not None
    for name in "abc":
        line.ask(name)
    assert lessor.take_now(PLAIN, None) is None  # not past those who wait

    lessor.give_back(held)
    line.wait_for(lambda: line.answered() == ["a"])
    lessor.give_back(line.desk.completed[0].grant)  # type: ignore[arg-type]
    line.wait_for(lambda: line.answered() == ["a", "b"])


def test_a_request_that_is_recalled_before_it_is_in_line_takes_no_key() -> None:
    shelf = Shelf("foreign-secret-1")
    line = Line(foreign(shelf))
    ticket = QueuedRequest(PLAIN, "item", line.desk, "item")
    ticket.is_withdrawn = True

    line.lessor.enqueue(ticket)

    assert (line.answered(), shelf.asked) == ([], 0)


def test_a_request_called_off_is_not_answered_and_an_answer_called_off_goes_on() -> None:
    shelf = Shelf("foreign-secret-1")
    lessor = foreign(shelf)
    line = Line(lessor)
    first, second, third = line.ask("a"), line.ask("b"), line.ask("c")
    line.wait_for(line.answered)
    lessor.cancel(second)
    assert [first.state, second.state, third.state] == [TicketState.GRANTED, TicketState.WITHDRAWN, TicketState.WAITING]
    lessor.cancel(first)  # it was granted: the key goes on
    line.wait_for(lambda: len(line.answered()) == 2)

    assert [third.state] == [TicketState.GRANTED]
    assert line.answered() == ["a", "c"]
    lessor.cancel(third)
    assert shelf.free == ["foreign-secret-1"]


class Gate:
    """A pool whose acquire() waits, and cannot be told not to."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.returned = threading.Event()
        self.handed = threading.Semaphore(0)
        self.keys: list[Any] = []
        self.calls = 0
        self.at_once = 0
        self.most_at_once = 0
        self.given_back: list[Any] = []

    def put(self, key: Any) -> None:
        self.keys.append(key)
        self.handed.release()

    def acquire(self) -> Any:
        self.calls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.entered.set()
        try:
            assert self.handed.acquire(timeout=PATIENCE)
            key = self.keys.pop(0)
            if isinstance(key, Exception):
                raise key
            return key
        finally:
            self.at_once -= 1

    def release(self, key: Any) -> None:
        self.given_back.append(key)
        self.put(key)
        self.returned.set()


def test_a_pool_that_can_only_block_is_waited_for_by_one_thread_of_its_own() -> None:
    gate = Gate()
    line = Line(foreign(gate))
    for name in "abc":
        line.ask(name)
    gate.put("foreign-secret-1")
    line.wait_for(lambda: len(line.answered()) == 1)
    gate.put("foreign-secret-2")
    gate.put("foreign-secret-3")
    line.wait_for(lambda: len(line.answered()) == 3)

    assert line.answered() == ["a", "b", "c"]
    assert gate.most_at_once == 1


def test_a_key_granted_without_a_waiting_request_is_released() -> None:
    gate = Gate()
    lessor = foreign(gate)
    line = Line(lessor)
    returned = threading.Event()

    def give(key: Any) -> None:
        gate.release(key)
        returned.set()

    lessor._release = give

    ticket = line.ask()
    assert gate.entered.wait(PATIENCE)
    lessor.cancel(ticket)
    gate.put("foreign-secret-1")

    assert returned.wait(PATIENCE)
    assert gate.given_back == ["foreign-secret-1"]
    assert line.answered() == []


def test_an_error_of_a_blocking_pool_fails_all_waiting_requests() -> None:
    gate = Gate()
    line = Line(foreign(gate))
    tickets = [line.ask(name) for name in "ab"]
    gate.put(PermissionError("the vault is closed"))
    line.wait_for(lambda: len(line.answered()) == 2)

    assert [ticket.state for ticket in tickets] == [TicketState.FAILED, TicketState.FAILED]
    assert all(isinstance(ticket.error, NoUsableCredential) for ticket in tickets)
    assert "the pool failed: PermissionError: the vault is closed" in str(tickets[0].error)
    gate.put("foreign-secret-1")
    line.ask("later")
    line.wait_for(lambda: len(line.answered()) == 3)  # it may have recovered


def test_a_blocking_verb_that_comes_back_with_nothing_is_asked_again_and_again() -> None:
    gate = Gate()
    line = Line(foreign(gate, Paced()))
    ticket = line.ask()
    gate.put(None)
    gate.put(None)
    gate.put("foreign-secret-1")
    line.wait_for(line.answered)

    assert ticket.state is TicketState.GRANTED
    assert line.answered() == ["item"]


class Reserving(Shelf):
    def reserve(self, requester: str = "", timeout: float | None = None) -> Any:
        assert timeout is None, "the pool's own default was overridden"
        return super().acquire_credential()

    release = Shelf.release_credential
    acquire_credential = None  # type: ignore[assignment]  # so that only reserve/release are a pair


class Blockable(Gate):
    def acquire(self, blocking: bool = True) -> Any:
        assert blocking, "the pool's own default was overridden"
        return super().acquire()


def test_the_verbs_are_called_as_the_pool_means_them_without_arguments() -> None:
    gate = Blockable()
    gate.put("foreign-secret-1")

    for pool in (Reserving("foreign-secret-1"), gate):
        assert foreign(pool).take_now(PLAIN, None) is not None


class Watched(Shelf):
    def __init__(self, *keys: Any) -> None:
        super().__init__(*keys)
        self.asked_on: set[str] = set()

    def acquire_credential(self) -> Any:
        self.asked_on.add(threading.current_thread().name.rstrip("-0123456789"))
        return super().acquire_credential()


def test_a_worker_asks_on_its_own_thread_and_a_coroutine_run_on_a_helper_thread() -> None:
    async def awaited(item: int, key: str | None) -> int:
        return item

    on_threads, on_a_loop = Watched("foreign-secret-1"), Watched("foreign-secret-1")
    ParallelCoordinator(1, on_threads).execute_parallel(range(4), lambda item, key: item, str)
    ParallelCoordinator(1, on_a_loop).execute_parallel(range(4), awaited, str)

    assert on_threads.asked_on == {"agentos-worker"}
    assert on_a_loop.asked_on == {"agentos-foreign-pool"}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_whose_workers_wait_in_the_pool_ends_when_it_is_stopped(is_async: bool) -> None:
    gate = Gate()
    returned = threading.Event()

    def release(key: Any) -> None:
        gate.given_back.append(key)
        returned.set()

    gate.release = release  # type: ignore[method-assign]
    run = ParallelCoordinator(2, gate)

    def stop() -> None:
        gate.entered.wait(PATIENCE)
        run._running[0].stop("a signal")

    stopper = threading.Thread(target=stop)
    stopper.start()

    async def awaited(item: int, key: str | None) -> int:
        return item

    stats, results = run.execute_parallel(range(3), awaited if is_async else lambda item, key: item, str)
    stopper.join(PATIENCE)

    assert (results, stats.success_count) == ([], 0)
    assert run.get_checkpoints() == ["0", "1", "2"]
    gate.put("foreign-secret-1")  # a key that comes too late
    assert returned.wait(PATIENCE)
    gate.put("foreign-secret-1")  # for the other worker


def test_a_worker_that_got_its_key_while_the_journal_is_held_begins_nothing() -> None:
    gate = Gate()
    began: list[bool] = []
    run = ParallelCoordinator(1, gate)

    def hold() -> None:
        assert gate.entered.wait(PATIENCE)
        running = run._running[0]
        running.shutdown.on_journal_trouble("the disk is full")
        gate.put("foreign-secret-1")
        assert gate.returned.wait(PATIENCE)
        running.shutdown.on_journal_trouble(None)

    holder = threading.Thread(target=hold)
    holder.start()

    def worker(item: int, key: str | None) -> int:
        began.append(run._running[0].state.pause_reason is None)
        return item

    stats, _ = run.execute_parallel(range(2), worker, str)
    holder.join(PATIENCE)

    assert stats.success_count == 2
    assert began == [True, True]
    assert len(gate.given_back) == 3


# -- reports ------------------------------------------------------------------------------------------------------


class Resting(Shelf):
    def __init__(self, *keys: Any) -> None:
        super().__init__(*keys)
        self.marked: list[tuple[Any, ...]] = []

    def mark_rate_limited(self, key: Any, *seconds: float) -> None:
        self.marked.append((key, *seconds))


def test_a_limit_is_reported_to_a_pool_with_that_verb_and_ends_the_reservation() -> None:
    """As both originals have it: a key that is marked is no longer in use, so that it must not be given back too."""
    pool = Resting("foreign-secret-1")
    lessor = foreign(pool)
    grant = lessor.take_now(PLAIN, None)
    assert grant is not None

    assert lessor.report_rate_limited(grant, 30, None)
    assert not lessor.report_rate_limited(grant, 30, None)
    assert not lessor.give_back(grant)

    assert pool.marked == [("foreign-secret-1", 30)]
    assert pool.given_back == []


def test_a_limit_without_a_number_of_seconds_leaves_it_to_the_pool() -> None:
    pool = Resting("foreign-secret-1")
    lessor = foreign(pool)
    grant = lessor.take_now(PLAIN, None)
    assert grant is not None

    lessor.report_rate_limited(grant, "Wed, 21 Oct 2026 07:28:00 GMT", None)

    assert pool.marked == [("foreign-secret-1",)]


def test_a_pool_that_cannot_be_told_of_a_limit_gets_its_key_back() -> None:
    shelf = Shelf("foreign-secret-1")
    lessor = foreign(shelf)
    grant = lessor.take_now(PLAIN, None)
    assert grant is not None

    assert not lessor.report_rate_limited(grant, 30, None)
    assert lessor.give_back(grant)
    assert shelf.given_back == ["foreign-secret-1"]


# -- pools that fail ----------------------------------------------------------------------------------------------


class Forgetful(Shelf):
    """Its release raises, as one does that no longer knows the key."""

    def release_credential(self, key: Any) -> None:
        super().release_credential(key)
        raise KeyError("no such key")


def test_a_pool_whose_release_fails_loses_no_result() -> None:
    run = ParallelCoordinator(1, Forgetful("foreign-secret-1", "foreign-secret-2"))

    stats, results = run.execute_parallel(range(4), lambda item, key: item, str)

    assert [r.value for r in results] == [0, 1, 2, 3]
    assert stats.stopped_by is None


class Vault(Shelf):
    """Fails now and then, or from some time on for good."""

    def __init__(self, *keys: Any, fails: Callable[[int], bool]) -> None:
        super().__init__(*keys)
        self.fails = fails
        self.answer = "the vault did not answer"

    def acquire_credential(self) -> Any:
        if self.fails(self.asked):
            self.asked += 1
            raise OSError(self.answer)
        return super().acquire_credential()


def test_a_pool_that_raises_once_is_asked_again() -> None:
    run = ParallelCoordinator(1, Vault("foreign-secret-1", fails=lambda asked: asked == 2))

    stats, _ = run.execute_parallel(range(6), lambda item, key: item, str)

    assert (stats.success_count, stats.stopped_by) == (6, None)


def test_a_pool_that_raises_ends_the_run_and_the_items_stay_pending() -> None:
    run = ParallelCoordinator(1, Vault("foreign-secret-1", fails=lambda asked: asked >= 2))

    stats, results = run.execute_parallel(range(6), lambda item, key: item, str)

    assert "the vault did not answer" in str(stats.stopped_by)
    assert [r.value for r in results] == [0, 1]
    assert run.get_checkpoints() == ["2", "3", "4", "5"]


def test_the_advice_about_a_stop_is_printed_once_at_the_end() -> None:
    said: list[str] = []
    vault = Vault("foreign-secret-1", fails=lambda asked: asked >= 2)
    vault.answer = "the vault did not answer; open it with two keys"
    run = ParallelCoordinator(1, vault, on_progress=lambda progress: said.append(progress.message))

    stats, _ = run.execute_parallel(range(6), lambda item, key: item, str)

    (stopping,) = [text for text in said if text.startswith("Stopping because of")]
    assert "the vault did not answer: " in stopping
    assert "open it with two keys" not in stopping
    assert "open it with two keys" in str(stats.stopped_by)


def test_a_blocking_pool_that_raises_ends_the_run_and_the_items_stay_pending() -> None:
    gate = Gate()
    gate.put("foreign-secret-1")
    run = ParallelCoordinator(1, gate)

    def close(key: Any) -> None:
        for _ in range(2):  # it is asked once more after an error
            gate.put(PermissionError("the vault is closed"))

    def worker(item: int, key: str | None) -> int:
        if item == 1:
            gate.release = close  # type: ignore[method-assign]
            run._running[0].state.pool._release = gate.release  # type: ignore[union-attr]
        return item

    stats, results = run.execute_parallel(range(6), worker, str)

    assert "the pool failed: PermissionError: the vault is closed" in str(stats.stopped_by)
    assert [r.value for r in results] == [0, 1]
    assert run.get_checkpoints() == ["2", "3", "4", "5"]


class Strict(Resting):
    def mark_rate_limited(self, key: Any, *seconds: float) -> None:
        raise KeyError("no such key")


def test_a_pool_that_fails_to_handle_a_limit_fails_no_item() -> None:
    tries: list[int] = []

    def worker(item: int, key: str | None) -> int:
        tries.append(item)
        if len(tries) == 1:
            raise RateLimited(0)
        return item

    run = ParallelCoordinator(1, Strict("foreign-secret-1"))

    stats, _ = run.execute_parallel([0], worker, str)

    assert (stats.success_count, stats.limited) == (1, 1)


def test_what_a_pool_handed_out_without_a_secret_is_given_back() -> None:
    raw = LeaseObject(user="me")
    shelf = Shelf(raw)

    foreign(shelf).take_now(PLAIN, None)

    assert shelf.given_back == [raw]
