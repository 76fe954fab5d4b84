"""Each item wakes an idle worker, whatever happened to the workers woken before."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agentos import ParallelCoordinator
from agentos.runs.execution.idle_workers import IdleWorkers, Wakeup
from agentos.util.async_wakeup import AsyncWakeup
from agentos.util.wakeup import ThreadWakeup

from .engine_contract import ENGINES, PATIENCE, Engine, Gate, Story, eventually

# Threads of their own fetch their items themselves, and an executor has one bell for all its workers.
WOKEN_ONE_BY_ONE = [engine for engine in ENGINES if engine.name != "threads" and "executor" not in engine.name]


class ByAndBy:
    """An input to which the test adds one item after the other."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.add = self._items.put

    def __iter__(self) -> Iterator[str]:
        while (item := self._items.get()) is not None:
            yield item

    async def __aiter__(self) -> AsyncIterator[str]:
        while (item := await asyncio.to_thread(self._items.get)) is not None:
            yield item

    def for_engine(self, engine: Engine) -> Any:
        return aiter(self) if engine.name == "threads under a loop" else iter(self)


class Slow:
    """The third worker to sleep is chosen to be woken for an item that it finds by itself, before its bell rings."""

    def __init__(self, patch: pytest.MonkeyPatch, bring: Any) -> None:
        self.may_ring, self.has_rung = threading.Event(), threading.Event()
        self._bring = bring
        self._asleep: list[Wakeup] = []
        self._register = IdleWorkers.register
        patch.setattr(IdleWorkers, "register", lambda idle, bell: self.register(idle, bell))
        for kind in (ThreadWakeup, AsyncWakeup):
            patch.setattr(kind, "wake", lambda bell, ring=kind.wake: self.ring(bell, ring))

    def register(self, idle: IdleWorkers, bell: Wakeup) -> None:
        self._register(idle, bell)
        self._asleep.append(bell)
        if self._asleep[2:] == [bell]:
            self._bring()
            eventually(lambda: self._asleep[2] not in idle._sleeping)

    def ring(self, bell: Wakeup, ring: Any) -> None:
        is_it = self._asleep[2:3] == [bell] and not self.has_rung.is_set()
        if is_it:
            assert self.may_ring.wait(PATIENCE)
        ring(bell)
        if is_it:
            self.has_rung.set()


@pytest.mark.parametrize("engine", WOKEN_ONE_BY_ONE, ids=lambda engine: engine.name)
def test_a_bell_that_rings_too_late_does_not_cost_another_item_its_worker(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    items, begun = ByAndBy(), Gate()
    slow = Slow(monkeypatch, lambda: items.add("a"))

    async def body(item: str, key: str | None) -> None:
        if item == "a":
            slow.may_ring.set()
            assert slow.has_rung.wait(PATIENCE)
        else:
            await begun.wait(item)

    story = Story(engine, ParallelCoordinator(max_workers=3), items.for_engine(engine), engine.worker(body))
    eventually(lambda: story.inside.stats.completed == 1 and len(story.inside.state.idle) >= 3)

    for number, item in enumerate(["b", "c", "d"], start=1):
        items.add(item)
        assert begun.wait_for(number)[-1] == item

    begun.open()
    items.add(None)
    assert story.end()[0].success_count == 4
