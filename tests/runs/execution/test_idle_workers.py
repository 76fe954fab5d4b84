"""Idle workers are woken exactly when there is work for them."""

from __future__ import annotations

import random
import threading
from collections import Counter

from agentos.runs.execution.idle_workers import IdleWorkers

from ...background_threads import PATIENCE, Background


class Sleeper:
    def __init__(self, name: int = 0, woken: list[int] | None = None) -> None:
        self.name = name
        self.woken = [] if woken is None else woken

    def wake(self) -> None:
        self.woken.append(self.name)


def asleep(count: int) -> tuple[IdleWorkers, list[int], list[Sleeper]]:
    idle, woken = IdleWorkers(), list[int]()
    sleepers = [Sleeper(number, woken) for number in range(count)]
    for sleeper in sleepers:
        idle.register(sleeper)
    return idle, woken, sleepers


def test_so_many_are_woken_the_last_one_to_sleep_first() -> None:
    idle, woken, _ = asleep(4)

    idle.wake()
    idle.wake(2)

    assert woken == [3, 2, 1]
    assert len(idle) == 1


def test_waking_more_than_sleep_or_none_or_fewer_than_none_does_no_harm() -> None:
    idle, woken, _ = asleep(2)

    idle.wake(0)
    idle.wake(-3)
    assert woken == []
    idle.wake(10)
    idle.wake()

    assert woken == [1, 0]


def test_all_are_woken() -> None:
    idle, woken, _ = asleep(5)

    idle.wake_all()
    idle.wake_all()

    assert sorted(woken) == [0, 1, 2, 3, 4]
    assert len(idle) == 0


def test_one_that_left_is_not_woken_and_one_that_was_woken_cannot_leave() -> None:
    idle, woken, sleepers = asleep(2)

    assert idle.unregister(sleepers[1])
    idle.wake()
    assert woken == [0]
    assert not idle.unregister(sleepers[0])
    assert not idle.unregister(sleepers[1])


def test_under_contention_each_one_either_leaves_or_is_woken_never_both() -> None:
    idle = IdleWorkers()
    over = threading.Event()

    class Thread:
        def __init__(self) -> None:
            self.rung = threading.Semaphore(0)

        def wake(self) -> None:
            self.rung.release()

    def sleep_often(luck: int) -> Counter[str]:
        r, outcomes = random.Random(luck), Counter[str]()
        for _ in range(500):
            me = Thread()
            idle.register(me)
            if r.random() < 0.7 and idle.unregister(me):
                outcomes["left"] += 1
                assert not me.rung.acquire(False)
            else:
                assert me.rung.acquire(timeout=PATIENCE)  # it was, or will be, woken
                outcomes["woken"] += 1
            assert not me.rung.acquire(False)  # once
        return outcomes

    def wake_often() -> None:
        pause = threading.Event()
        while not over.is_set():
            idle.wake()
            pause.wait(0.0001)

    waker = Background(wake_often)
    sleepers = [Background(lambda luck=luck: sleep_often(luck)) for luck in range(3)]  # type: ignore[misc]
    outcomes = sum((sleeper.result() for sleeper in sleepers), Counter[str]())
    over.set()
    waker.result()

    assert outcomes.total() == 1_500
    assert outcomes["left"]
    assert outcomes["woken"]
