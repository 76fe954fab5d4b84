"""How many workers wait for a credential: only those that have something to do."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator

from ..background_threads import PATIENCE

WORKERS = 4
SECRET = "sk-only-secret-000"


def waiting_while(
    done: int, items: Iterable[str], journal: Path | None = None, retry_failed: bool = False
) -> tuple[int, int]:
    """How many workers sleep, and how many are said to wait, while an item has the only key and so many are *done*.

    Which one that is depends on who is the quickest: two workers with an item each may ask for the key in any order.
    """
    coordinator = ParallelCoordinator(
        WORKERS, CredentialCoordinator([SECRET]), journal=journal, worker_version="work", retry_failed=retry_failed
    )
    begun: list[str] = []
    seen: list[tuple[int, int]] = []

    def work(each: str, credential: str | None) -> None:
        begun.append(each)
        if len(begun) == done + 1:
            (run,) = coordinator._running
            until = time.monotonic() + PATIENCE
            while not (len(run.state.idle) == WORKERS - 1 and run.dispatcher.requests):
                assert time.monotonic() < until, "the others do not come to rest"
                time.sleep(0)
            seen.append((len(run.state.idle), coordinator.get_waiting()))

    coordinator.execute_parallel(items, work, str)
    coordinator.credential_coordinator.close()
    (only,) = seen
    return only


@pytest.mark.parametrize(("done", "waiting"), [(0, 3), (7, 2), (8, 1)])
def test_workers_without_an_item_do_not_wait(done: int, waiting: int) -> None:
    assert waiting_while(done, [f"item-{n:02}" for n in range(10)]) == (3, waiting)


def test_all_wait_while_nobody_knows_what_the_input_may_bring() -> None:
    assert waiting_while(0, (f"item-{n:02}" for n in range(1_000))) == (3, 3)


def test_items_that_have_their_results_are_waited_for_by_nobody(tmp_path: Path) -> None:
    items = [f"item-{n:04}" for n in range(1_000)]

    def fails(item: str, credential: str | None) -> None:
        if item in items[:2]:
            raise ValueError(item)

    ParallelCoordinator(2, journal=tmp_path, worker_version="work").execute_parallel(items, fails, str)

    assert waiting_while(0, items, tmp_path, retry_failed=True) == (3, 1)
