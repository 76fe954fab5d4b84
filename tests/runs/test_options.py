"""An invalid option raises a ValueError that names it, before the run starts."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pytest

from agentos import ParallelCoordinator
from agentos.runs.core.halt import Halt
from agentos.runs.options import RunOptions

WRONG: dict[str, list[Any]] = {
    "lease": ["items", "", None, 1],
    "start": ["lazy", None, True],
    "retries": [-1, 1.5, True, "2", None],
    "timeout": [0, -1, math.nan, math.inf, True, "5x", "", "-5m", "200000d"],
    "grace": [-1, math.nan, math.inf, True, None, "soon"],
    "deadline": [-1, math.nan, math.inf, True, "tomorrow", datetime.date(2030, 1, 1)],
    "halt": ["later,fail=1", "", 5, True],
    "worker_version": ["", 5, b"v1"],
    "retry_if": [5, "always"],
    "cost_func": [5],
    "model_func": ["gpt"],
    "affinity_func": [{}],
    "on_progress": ["print", 1],
    "engine": ["threads", "", 5, object(), "http://127.0.0.1:8786"],
    "ship_secrets": [None, 1, "yes"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_names_its_argument(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must "):
        RunOptions(max_workers=1, **{name: value})
    with pytest.raises(ValueError, match=rf"^{name} must "):
        ParallelCoordinator(**{name: value})


def test_nothing_told_means_the_defaults() -> None:
    options = RunOptions(max_workers=3)

    assert (options.max_workers, options.lease, options.start, options.retries) == (3, "item", "queued", 2)
    assert (options.timeout, options.grace, options.halt, options.deadline) == (None, 8.0, None, None)
    assert (options.journal, options.retry_failed, options.accept_loss) == (None, False, False)


def test_what_is_told_is_kept() -> None:
    options = RunOptions(max_workers=1, journal=Path("runs/x"), halt="now,fail=3", timeout=1, grace=0, retries=0)

    assert options.journal == Path("runs/x")
    assert options.halt_clause == Halt(True, "fail", 3, False)
    assert (options.timeout, options.grace, options.retries) == (1, 0, 0)


@pytest.mark.parametrize("name", ["timeout", "grace", "term_window", "max_wait", "deadline"])
@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("5m", 300.0), ("1h30m", 5400.0)])
def test_a_duration_can_be_written_with_its_unit(name: str, text: str, seconds: float) -> None:
    run = ParallelCoordinator(**{name: text})  # type: ignore[arg-type]

    assert getattr(run._options, name) == seconds


@pytest.mark.parametrize("name", ["timeout", "halt", "deadline", "worker_version", "cost_func", "model_func"])
def test_what_can_be_left_out_can_be_none(name: str) -> None:
    assert getattr(RunOptions(max_workers=1, **{name: None}), name) is None  # type: ignore[arg-type]


def test_a_retry_rule_cannot_be_none() -> None:
    with pytest.raises(ValueError, match=r"^retry_if must "):
        RunOptions(max_workers=1, retry_if=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [5, b"run", ""])
def test_a_journal_must_be_a_path(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^journal must "):
        RunOptions(max_workers=1, journal=value)


# -- the deadline -------------------------------------------------------------------------------------------------


def test_a_deadline_in_seconds_counts_from_the_start() -> None:
    assert RunOptions(max_workers=1, deadline=30).deadline_at(now=100.0, wall=5_000.0) == 130.0
    assert RunOptions(max_workers=1, deadline=0).deadline_at(now=100.0, wall=5_000.0) == 100.0


def test_no_deadline_never_comes() -> None:
    assert RunOptions(max_workers=1).deadline_at(100.0, 5_000.0) == math.inf


def test_a_datetime_is_an_instant_of_the_wall_clock() -> None:
    wall = 1_800_000_000.0
    aware = datetime.datetime.fromtimestamp(wall + 60, datetime.UTC)
    elsewhere = aware.astimezone(datetime.timezone(datetime.timedelta(hours=9)))
    local = datetime.datetime.fromtimestamp(wall + 60)
    past = datetime.datetime.fromtimestamp(wall - 60, datetime.UTC)

    for deadline, at in ((aware, 160.0), (elsewhere, 160.0), (local, 160.0), (past, 40.0)):
        assert RunOptions(max_workers=1, deadline=deadline).deadline_at(100.0, wall) == pytest.approx(at)
