"""A lock that is held nearly all of the time, and still nobody is kept from it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from agentos.credentials import locking
from agentos.credentials.locking import PoliteLock, contend

ROUNDS = 2_000
PATIENCE = 10.0


def another_thread_can_have(lock: PoliteLock) -> bool:
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
    lock = PoliteLock()
    got_it, a_step = threading.Event(), threading.Event()

    def once() -> None:
        contend(lock)
        got_it.set()
        lock.release()

    lock.acquire()
    other = threading.Thread(target=once, daemon=True)
    other.start()
    until = time.monotonic() + PATIENCE
    while not lock.waiting and time.monotonic() < until:
        a_step.wait(0.001)
    rounds = 0
    while not got_it.is_set() and rounds < ROUNDS:
        a_step.wait(0.000_1)  # as in a step of a store: others may run, and find it taken
        lock.release()
        if not lock.acquire(False):
            contend(lock)
        rounds += 1
    in_time = got_it.is_set()
    lock.release()
    other.join(PATIENCE)

    assert in_time
    assert not lock.waiting


def test_who_has_it_can_take_it_again_and_must_give_it_back_as_often() -> None:
    lock = PoliteLock()
    assert lock.acquire()
    assert lock.acquire(False)

    assert not another_thread_can_have(lock)
    lock.release()
    assert not another_thread_can_have(lock)
    lock.release()
    assert another_thread_can_have(lock)
    with pytest.raises(RuntimeError):
        lock.release()


def test_an_interrupt_while_waiting_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = PoliteLock()
    has_it, done = threading.Event(), threading.Event()

    def hold() -> None:
        lock.acquire()
        has_it.set()
        done.wait(PATIENCE)
        lock.release()

    def interrupted(_seconds: float) -> None:
        assert list(lock.waiting) == [threading.get_ident()]
        raise KeyboardInterrupt

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert has_it.wait(PATIENCE)
    monkeypatch.setattr(locking, "time", SimpleNamespace(sleep=interrupted))

    with pytest.raises(KeyboardInterrupt):
        contend(lock)

    assert not lock.waiting
    done.set()
    holder.join(PATIENCE)
    assert lock.acquire(False)  # without being polite to anybody
    lock.release()
