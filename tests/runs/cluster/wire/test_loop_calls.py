"""Calls to an event loop's thread are not lost at the moment it ends."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import pytest

from agentos.runs.cluster.driver.remote_attempt import NotAssigned
from agentos.runs.cluster.wire.loop_calls import LoopCalls
from agentos.runs.cluster.worker.client import DriverEndpoint, DriverUnreachable, WorkerClient

from ....background_threads import Background
from ..driver.test_driver_server import IDENTITY, TTL, Open, errand, unused_address
from ..local_slots import WAIT


def test_a_call_after_the_last_round_of_the_loop_is_made_and_a_later_one_refused() -> None:
    loop = asyncio.new_event_loop()
    calls, made = LoopCalls(loop), list[int]()
    loop.run_until_complete(asyncio.sleep(0))

    taken = calls.call(made.append, 1)
    calls.close()
    taken_later = calls.call(made.append, 2)

    assert (taken, taken_later, made) == (True, False, [1])


def test_a_call_from_within_a_call_is_made_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer may run in the midst of one, on the same thread, and have something to say to the driver."""
    loop = asyncio.new_event_loop()
    calls, made = LoopCalls(loop), list[int]()
    call_soon, finalizers = loop.call_soon_threadsafe, [2]

    def collect_first(callback: Any, *arguments: Any) -> Any:
        while finalizers:
            calls.call(made.append, finalizers.pop())
        return call_soon(callback, *arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", collect_first)

    assert Background(lambda: calls.call(made.append, 1)).result()
    calls.close()
    assert made == [2, 1]


def test_an_attempt_that_comes_when_the_hub_has_closed_is_not_taken_and_nobody_waits_for_it() -> None:
    opened, trip = Open(ttl=TTL), errand()
    ask = opened.ask_of(opened.seat(), 4)
    opened.end()

    opened.hub.assign(ask, trip)

    assert trip.events.get(timeout=WAIT) == NotAssigned()


def test_a_seat_that_asks_while_its_link_ends_is_sent_home(monkeypatch: pytest.MonkeyPatch) -> None:
    link = WorkerClient(DriverEndpoint("run", *unused_address(), IDENTITY.certificate, b"x" * 32, ttl=600.0))
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ended = link._calls.close

    def ask_first() -> None:
        link.request_work(answers.put)
        ended()

    monkeypatch.setattr(link._calls, "close", ask_first)
    link.start()
    with pytest.raises(DriverUnreachable):
        link.welcome.result(WAIT)
    link.close()
    link.request_work(answers.put)

    assert [answers.get(timeout=WAIT) for _ in range(2)] == [None, None]
