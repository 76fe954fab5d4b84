"""A lock that is held nearly all of the time, and still nobody is kept from it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentos.util import locks
from agentos.util.locks import FairLock, acquire_contended

ROUNDS = 2_000
PATIENCE = 10.0


def another_thread_can_have(lock: FairLock) -> bool:
    """Whether a thread other than this one could have it at once; it gives it back."""
    got: list[bool] = []

    def try_it() -> None:
        got.append(lock.acquire(False))
        if got[0]:
            lock.release()

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join(PATIENCE)
    return got[0]


def test_a_thread_that_takes_it_again_and_again_does_not_keep_another_from_it() -> None:
    lock = FairLock()
    got_it, a_step = threading.Event(), threading.Event()

    def once() -> None:
        acquire_contended(lock)
        got_it.set()
        lock.release()

    lock.acquire()
    other = threading.Thread(target=once, daemon=True)
    other.start()
    until = time.monotonic() + PATIENCE
    while not lock.queue and time.monotonic() < until:
        a_step.wait(0.001)
    rounds = 0
    while not got_it.is_set() and rounds < ROUNDS:
        a_step.wait(0.000_1)  # as in a step of a store: others may run, and find it taken
        lock.release()
        if not lock.acquire(False):
            acquire_contended(lock)
        rounds += 1
    in_time = got_it.is_set()
    lock.release()
    other.join(PATIENCE)

    assert in_time
    assert not lock.queue


def test_who_has_it_can_take_it_again_and_must_give_it_back_as_often() -> None:
    lock = FairLock()
    assert lock.acquire()
    assert lock.acquire(False)

    assert not another_thread_can_have(lock)
    lock.release()
    assert not another_thread_can_have(lock)
    lock.release()
    assert another_thread_can_have(lock)
    with pytest.raises(RuntimeError):
        lock.release()


class Queueing:
    """A lock that this thread holds, and threads that queue for it one after the other."""

    def __init__(self) -> None:
        self.lock = FairLock()
        self.order: list[str] = []  # who had it
        self._threads: list[threading.Thread] = []
        self.lock.acquire()

    def join(self, name: str, *, on_a_loop: bool = False) -> None:
        """Start a thread, and wait until it is in the queue."""
        before = len(self.lock.queue)

        def work() -> None:
            acquire_contended(self.lock)
            self.order.append(name)
            self.lock.release()

        async def on_loop() -> None:
            work()

        target = (lambda: asyncio.run(on_loop())) if on_a_loop else work
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        self._threads.append(thread)
        until(lambda: len(self.lock.queue) > before)

    def let_all_pass(self) -> list[str]:
        self.lock.release()
        for thread in self._threads:
            thread.join(PATIENCE)
        return self.order


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class CountingLock:
    """A plain lock that counts how often it is tried."""

    def __init__(self, lock: Any) -> None:
        self._inner = lock
        self.tries = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.tries += 1
        return bool(self._inner.acquire(blocking, timeout))


def test_of_fifty_threads_that_wait_only_the_first_tries_to_take_the_lock() -> None:
    queueing = Queueing()
    lock = queueing.lock
    lock._lock = counting = CountingLock(lock._lock)  # type: ignore[assignment]

    for number in range(50):
        queueing.join(str(number))

    assert counting.tries == 1  # by the first, which blocks
    assert not another_thread_can_have(lock)  # nor does who comes now pass the others
    assert queueing.let_all_pass() == [str(number) for number in range(50)]
    assert counting.tries == 50
    assert not lock.queue


def test_a_thread_with_an_event_loop_is_let_in_early_and_at_every_second_turn_at_most() -> None:
    queueing = Queueing()
    for name in ("a", "b", "c"):
        queueing.join(name)
    for name in ("loop 1", "loop 2", "loop 3"):
        queueing.join(name, on_a_loop=True)

    assert queueing.let_all_pass() == ["a", "loop 1", "b", "loop 2", "c", "loop 3"]


def test_a_signal_handler_that_interrupts_a_thread_in_the_queue_takes_the_lock_at_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queueing = Queueing()
    lock = queueing.lock
    order: list[str] = []

    class InterruptedWait:
        """Sleeps like the lock it stands for; the first time, a signal handler runs that wants the lock as well."""

        def __init__(self, lock: Any) -> None:
            self._inner = lock
            self.release = lock.release

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if not order:
                order.append("signal")
                acquire_contended(lock)
                order.append("handler")
                lock.release()
            return bool(self._inner.acquire(blocking, timeout))

    original = locks._QueueEntry

    def place(is_loop: bool) -> locks._QueueEntry:
        made = original(is_loop)
        made.turn = InterruptedWait(made.turn)  # type: ignore[assignment]
        return made

    queueing.join("ahead")
    with monkeypatch.context() as patch:
        patch.setattr(locks, "_QueueEntry", place)
        queueing.join("interrupted")
    queueing.join("behind")

    assert queueing.let_all_pass() == ["ahead", "interrupted", "behind"]
    assert order == ["signal", "handler"]
    assert not lock.queue


class Interrupts:
    """In the place of a lock: whoever waits for it is interrupted."""

    def __init__(self, lock: Any, *, having_it: bool = False) -> None:
        self._inner = lock
        self._having_it = having_it
        self.release = lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._having_it:
            self._inner.acquire(blocking, timeout)
        raise KeyboardInterrupt


@pytest.mark.parametrize("having_it", [False, True], ids=["while waiting", "having just got the lock"])
def test_an_interrupt_of_the_first_in_the_queue_leaves_nothing_behind(having_it: bool) -> None:
    lock = FairLock()
    plain = lock._lock
    has_it, done = threading.Event(), threading.Event()

    def hold() -> None:
        lock.acquire()
        has_it.set()
        if not having_it:
            done.wait(PATIENCE)
        lock.release()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert has_it.wait(PATIENCE)
    lock._lock = Interrupts(plain, having_it=having_it)  # type: ignore[assignment]

    with pytest.raises(KeyboardInterrupt):
        acquire_contended(lock)

    lock._lock = plain
    assert not lock.queue
    done.set()
    holder.join(PATIENCE)
    assert another_thread_can_have(lock)


def test_an_interrupt_further_back_in_the_queue_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    queueing = Queueing()
    queueing.join("ahead")
    interrupted = threading.Event()

    def place(is_loop: bool) -> SimpleNamespace:
        return SimpleNamespace(is_loop=is_loop, turn=Interrupts(threading.Lock()), wake=lambda: None)

    def give_up() -> None:
        try:
            acquire_contended(queueing.lock)
        except KeyboardInterrupt:
            interrupted.set()

    with monkeypatch.context() as patch:
        patch.setattr(locks, "_QueueEntry", place)
        thread = threading.Thread(target=give_up, daemon=True)
        thread.start()
        assert interrupted.wait(PATIENCE)
    queueing.join("behind")

    assert queueing.let_all_pass() == ["ahead", "behind"]
