"""What is said of a stop, and when."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agentos import ParallelCoordinator
from agentos.runs._core.states import Phase
from agentos.runs.ending import Ending

from ..workflows.helpers import PATIENCE, Background


def test_what_a_forced_stop_leaves_behind_is_said_before_anybody_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[Phase] = []
    say = Ending._say_stopping

    def noted(ending: Ending, *told: Any) -> None:
        phases.append(ending.board.phase)
        say(ending, *told)

    monkeypatch.setattr(Ending, "_say_stopping", noted)
    begun, go = threading.Event(), threading.Event()

    def worker(item: str, key: str | None) -> None:
        begun.set()
        go.wait(PATIENCE)

    run = ParallelCoordinator(1)
    call = Background(lambda: run.execute_parallel(["a"], worker, str))
    assert begun.wait(PATIENCE)

    run.shutdown(force=True)

    stats, _ = call.result()
    go.set()
    assert stats.interrupted == 1
    assert phases == [Phase.DRAINING]
