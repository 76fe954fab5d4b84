"""Functions whose attempts have a token in place of a key: it is the credential, and ends with the attempt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentos import ParallelCoordinator, Transient
from agentos.costs.usage import Usage
from agentos.costs.usage_log import UsageLog
from agentos.testing import FakeClock
from tests.contract.engine_contract import ENGINES, PATIENCE, Engine, Events, Story


class Issued:
    """The access of one attempt; it has used two tokens of the model when it is closed."""

    def __init__(self, token: str, usage_log: UsageLog) -> None:
        self.token = token
        self.closed = threading.Event()
        self._usage_log = usage_log

    def close(self) -> None:
        if not self.closed.is_set():
            self._usage_log.add_call(None, "key", Usage(input=2))
            self.closed.set()


class Issuer:
    """An ``AttemptAccess`` that remembers what it issued."""

    def __init__(self) -> None:
        self.issued: list[Issued] = []

    def bind(self, record: Callable[[Any], None]) -> None: ...

    def open(self, item_id: str, attempt: int, usage_log: UsageLog, program: str) -> Issued:
        self.issued.append(Issued(f"{item_id}#{attempt}{program}", usage_log))
        return self.issued[-1]


def give(issuer: Issuer, function: Any) -> Any:
    """Let the attempts of *function* have tokens of *issuer*."""
    function.__agentos_access__ = issuer
    return function


@pytest.mark.parametrize("engine", [each for each in ENGINES if not each.away], ids=lambda engine: engine.name)
def test_the_credential_of_each_attempt_is_its_token_which_ends_with_it(engine: Engine) -> None:
    clock, issuer = FakeClock(), Issuer()
    seen: list[tuple[str | None, bool]] = []

    async def ask(item: str, credential: str | None) -> str:
        seen.append((credential, issuer.issued[-1].closed.is_set()))
        if credential == "a#1":
            raise Transient("again")
        return str(credential).upper()

    run = ParallelCoordinator(1, lease="call", clock=clock)
    _, results = Story(engine, run, ["a"], give(issuer, engine.worker(ask)), clock).end()

    assert seen == [("a#1", False), ("a#2", False)]
    assert [each.closed.is_set() for each in issuer.issued] == [True, True]
    assert [(each.value, each.usage) for each in results] == [("A#2", Usage(input=4))]


def test_the_token_of_an_attempt_that_timed_out_ends_before_its_thread() -> None:
    clock, told, issuer, gate = FakeClock(), Events(), Issuer(), threading.Event()
    is_running = threading.Event()

    def hang(item: str, credential: str) -> None:
        is_running.set()
        assert gate.wait(PATIENCE)

    run = ParallelCoordinator(1, lease="call", timeout=10, on_progress=told, clock=clock)
    threads = next(each for each in ENGINES if not each.coroutines)
    story = Story(threads, run, ["a"], give(issuer, hang))
    assert is_running.wait(PATIENCE)

    clock.advance(10.0)
    failed = told.wait_for("item_finished", "a").result

    assert failed is not None
    assert issuer.issued[0].closed.is_set()
    assert failed.usage == Usage(input=2)
    gate.set()
    story.end()
