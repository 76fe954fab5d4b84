"""The marks of commands: different ones, whoever starts them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentos.runs.commands.helper_client import HelperClient

THREADS, EACH = 8, 2_000


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that interrupt each other all the time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
def test_threads_that_start_commands_at_the_same_instant_get_different_marks(tmp_path: Path) -> None:
    helper = HelperClient({}, "session.", tmp_path)
    together = threading.Barrier(THREADS)

    def start_many(_: int) -> list[str]:
        together.wait()
        return [helper.new_mark() for _ in range(EACH)]

    with ThreadPoolExecutor(THREADS) as pool:
        marks = [mark for some in pool.map(start_many, range(THREADS)) for mark in some]

    assert sorted(marks) == sorted(f"session.{number}" for number in range(1, THREADS * EACH + 1))
