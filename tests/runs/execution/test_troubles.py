"""Attempts without a result are counted by what stopped them, and a network that does not answer is said."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import Any

import httpx2
import pytest

from agentos import CredentialCoordinator, ParallelCoordinator, RateLimited
from agentos.providers import from_exception
from agentos.runs.core.records import Attempt, Item
from agentos.runs.core.states import AttemptEnd
from agentos.runs.execution.error_policy import find_trouble
from agentos.runs.progress import Progress
from agentos.testing import FakeClock

REQUEST = httpx2.Request("GET", "https://api.openai.com/v1/models")


def answered(status: int) -> httpx2.HTTPStatusError:
    body = {"error": {"code": "invalid_api_key", "message": "no"}} if status == 401 else {}
    return httpx2.HTTPStatusError("no", request=REQUEST, response=httpx2.Response(status, json=body, request=REQUEST))


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def timed_out_while_connecting() -> Exception:
    async def create_connection() -> None:
        await asyncio.Event().wait()

    async def connect() -> None:
        async with asyncio.timeout(0):
            await create_connection()

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(connect())
    return caught.value


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (answered(429), "limited"),
        (answered(401), "rejected"),
        (answered(402), "rejected"),
        (answered(500), None),
        (httpx2.ConnectError("refused", request=REQUEST), "unreachable"),
        (httpx2.ReadTimeout("slow", request=REQUEST), "unreachable"),
        (ConnectionRefusedError(111, "refused"), "unreachable"),
        (socket.gaierror(-2, "Name or service not known"), "unreachable"),
        (caused(RuntimeError("my own"), httpx2.ConnectError("refused", request=REQUEST)), "unreachable"),
        (timed_out_while_connecting(), "unreachable"),
        (TimeoutError("my computation took too long"), None),
        (KeyError("nope"), None),
    ],
)
def test_an_error_is_counted_by_what_it_says_about_key_and_network(error: Exception, trouble: str | None) -> None:
    attempt = Attempt(Item(0, "a", None), 1, 1, None, 0.0)

    assert find_trouble(attempt, error, AttemptEnd.TRANSIENT, from_exception(error, now=0.0)) == trouble


def run(errors: list[Exception | None], **options: Any) -> tuple[Any, list[Progress]]:
    """Run one item for each error, one after the other."""
    events: list[Progress] = []

    def worker(item: int, _credential: str | None) -> int:
        error = errors[item]
        if error is not None:
            raise error
        return item

    coordinator = ParallelCoordinator(1, on_progress=events.append, retries=0, **options)
    return coordinator.execute_parallel(range(len(errors)), worker, str)[0], events


def refused() -> Exception:
    return ConnectionRefusedError(111, "refused")


def test_three_unanswered_attempts_in_a_row_are_said_once_and_so_is_the_next_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    stats, events = run([refused(), refused(), refused(), refused(), None])

    kinds = [event.kind for event in events if event.kind in ("unreachable", "reachable")]
    assert kinds == ["unreachable", "reachable"]
    (said,) = [event for event in events if event.kind == "unreachable"]
    assert said.message.startswith("no answer from the network since ")
    assert "ConnectionRefusedError: [Errno 111] refused (" in said.message
    assert said.stats.unreachable_since is not None
    assert (stats.unreachable, stats.unreachable_since) == (4, None)
    assert said.message in caplog.text


def test_a_refusal_by_the_provider_is_an_answer() -> None:
    stats, events = run([refused(), refused(), answered(400), refused()])

    assert "unreachable" not in [event.kind for event in events]
    assert stats.unreachable == 3


def test_a_run_without_any_answer_says_so_at_its_end() -> None:
    stats, events = run([refused()])

    assert stats.unreachable_since is not None
    assert events[-1].stats.unreachable_why.startswith("ConnectionRefusedError: [Errno 111] refused (")


def test_a_single_failure_at_the_end_of_a_good_run_is_no_news_of_the_network() -> None:
    assert run([None, refused()])[0].unreachable_since is None


def test_it_is_said_after_ten_seconds_even_if_no_other_attempt_ends() -> None:
    clock = FakeClock()
    told, go_on, second = threading.Event(), threading.Event(), threading.Event()
    pool = CredentialCoordinator(["sk-first-0123456789"], clock=clock)

    def worker(item: int, _credential: str) -> int:
        if item == 0:
            raise refused()
        second.set()
        assert go_on.wait(20)
        return item

    def on_progress(event: Progress) -> None:
        if event.kind == "unreachable":
            told.set()

    coordinator = ParallelCoordinator(1, pool, retries=0, clock=clock, on_progress=on_progress)
    thread = threading.Thread(target=coordinator.execute_parallel, args=([0, 1], worker, str), daemon=True)
    thread.start()
    assert second.wait(20)
    clock.advance(9.0)
    assert not told.is_set()
    clock.advance(1.0)
    assert told.wait(20)
    go_on.set()
    thread.join(20)


def test_limits_are_counted_apart_from_refused_keys() -> None:
    pool = CredentialCoordinator(["sk-first-0123456789", "sk-second-0123456789"])
    errors = [RateLimited(0.001), answered(401)]

    def worker(item: int, _credential: str) -> int:
        if errors:
            raise errors.pop()
        return item

    stats = ParallelCoordinator(1, pool, retries=3).execute_parallel([0], worker, str)[0]

    assert (stats.limited, stats.rejected, stats.unreachable) == (1, 1, 0)
