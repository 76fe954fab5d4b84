"""Timers that are due at the same instant run in a fixed order."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentos import CredentialCoordinator, ParallelCoordinator, RateLimited, WorkflowResult
from agentos.runs.execution.dispatcher import Dispatcher
from agentos.testing import FakeClock

PATIENCE = 20.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_item_is_ready_before_a_key_comes_that_was_limited_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else somebody who is quick takes the key for a later item."""
    clock = FakeClock()
    pool = CredentialCoordinator(["the-only-secret"], clock=clock)
    limited = threading.Semaphore(0)
    left = [RateLimited(30), RateLimited(30)]  # only from the second in a row on does an item rest too
    still_resting: list[int] = []
    look_out = Dispatcher.on_timer

    def noted(admission: Dispatcher) -> None:
        still_resting.append(len(admission._scheduler.backing_off))
        look_out(admission)

    def worker(item: int, _credential: str | None) -> int:
        if left:
            limited.release()
            raise left.pop()
        return item

    monkeypatch.setattr(Dispatcher, "on_timer", noted)
    results: list[WorkflowResult] = []
    run = ParallelCoordinator(1, pool, clock=clock)

    def execute() -> None:
        results.extend(run.execute_parallel([1, 2], worker, str)[1])

    running = threading.Thread(target=execute, daemon=True)
    running.start()
    assert limited.acquire(timeout=PATIENCE)
    inside: Any = run._running[0]
    until(lambda: inside.dispatcher.requests)
    clock.advance(30.0)
    assert limited.acquire(timeout=PATIENCE)
    until(lambda: inside.state.scheduler.backing_off)
    until(lambda: clock.now() < inside.dispatcher.completions.armed_at < math.inf)  # the later item is queued
    clock.wait_for_sleepers(1)
    still_resting.clear()

    clock.advance(60.0)  # in one leap: both are over
    running.join(PATIENCE)

    assert [result.item_id for result in results] == ["1", "2"]
    assert still_resting[0] == 0
