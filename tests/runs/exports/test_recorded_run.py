"""`agentos.load_run` reads a journal, and runs and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentos
from agentos import Usage
from agentos.runs.journal import encode_row

from ..journal.journal_helpers import PATIENCE, fingerprints, opened
from ..sample_runs import Child, run, stop_after


@pytest.mark.parametrize("name", ["", "journal.sqlite"])
def test_a_finished_run_has_its_results_with_items_and_values(tmp_path: Path, name: str) -> None:
    run(tmp_path / "r", ["a", "bad-1", "b"], workers=1)
    before = fingerprints(tmp_path / "r")

    found = agentos.load_run(tmp_path / "r" / name)

    assert [(each.item_id, each.item, each.value, each.success) for each in found.results] == [
        ("a", "a", {"answer": "a"}, True),
        ("bad-1", "bad-1", None, False),
        ("b", "b", {"answer": "b"}, True),
    ]
    failed = list(found.results)[1]
    assert (failed.outcome, failed.index, failed.metadata["error_type"]) == ("failed", 1, "ValueError")
    stats = found.stats
    assert (stats.total, stats.completed, stats.failed, stats.success_count, stats.cached) == (3, 3, 1, 2, 0)
    assert (found.state, stats.stopped_by, len(found.results)) == ("finished", None, 3)
    assert stats.elapsed >= 0
    assert stats.end_time is not None
    assert fingerprints(tmp_path / "r") == before


def test_a_journal_with_a_name_of_its_own_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "night.db"
    agentos.ParallelCoordinator(1, journal=path).execute_parallel(["a"], lambda item, _: {item: 1}, str)

    found = agentos.load_run(path)

    assert [(each.item, each.value) for each in found.results] == [("a", {"a": 1})]
    assert found.stats.success_count == 1


def test_a_running_run_has_the_results_so_far(tmp_path: Path) -> None:
    with Child(tmp_path / "r") as child:
        found = agentos.load_run(tmp_path / "r")
        assert found.state == f"running as pid {child.pid}"
        before = (len(found.results), found.stats.completed, found.stats.end_time)

    assert before == (3, 3, None)


def test_a_stopped_run_has_the_results_it_got(tmp_path: Path) -> None:
    stop_after(tmp_path, ["a", "b", "c"], 2)

    stats = agentos.load_run(tmp_path).stats

    assert (stats.stopped_by, stats.success_count, stats.total) == ("shutdown()", 2, 3)


def test_usage_of_every_attempt_and_marks_of_values_are_counted(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    facts: dict[str, Any] = {"usage": '{"input":3,"output":4}'}
    journal._store.append(
        [
            encode_row(1.0, "limited", "a", 1, 1, "key", 0.1, **facts),
            encode_row(2.0, "done", "a", 2, 2, "key", 0.1, value="1", flags='{"redacted":true}', **facts),
            encode_row(3.0, "done", "b", 3, 1, "key", 0.1, detail="<Odd>", flags='{"value_type":"m.Odd"}'),
        ]
    )
    journal.close(PATIENCE)

    found = agentos.load_run(tmp_path)

    assert (found.stats.usage, found.stats.redacted, found.stats.not_json) == (Usage(6, 8), 1, 1)
    first, second = found.results
    assert (first.usage, first.redacted, first.value) == (Usage(3, 4), True, 1)
    assert (second.value_repr, second.value_type) == ("<Odd>", "m.Odd")


def test_without_a_journal_the_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(agentos.JournalUnavailable, match=r"nothing/journal\.sqlite.*does not exist"):
        agentos.load_run(tmp_path / "nothing")
