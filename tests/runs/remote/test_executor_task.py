"""The task of an executor leaves Ctrl-C to the driver."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from agentos.runs.remote.pickled import pack, unpack
from agentos.runs.remote.worker_call import agentos_item

from .sample_assignments import assignment


def interrupt_itself(item: Any, credential: str | None) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "went on"


@pytest.fixture(autouse=True)
def handler() -> Iterator[Any]:
    """As the process was, again, after the test."""
    before = signal.getsignal(signal.SIGINT)
    yield before
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_does_not_end_what_runs() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)

    report = agentos_item(pack(interrupt_itself, "it"), assignment(wants_context=False), False)

    assert report.value is not None
    assert unpack(report.value, "it") == "went on"


def test_the_driver_itself_still_hears_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)

    agentos_item(pack(str, "it"), assignment(wants_context=False, driver=os.getpid()), False)

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_own_stays() -> None:
    heard: list[int] = []

    def hear(number: int, _frame: object) -> None:
        heard.append(number)

    signal.signal(signal.SIGINT, hear)

    agentos_item(pack(interrupt_itself, "it"), assignment(wants_context=False), False)

    assert heard == [signal.SIGINT]
