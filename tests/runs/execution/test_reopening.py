"""Finished items run again when they are named, or when their content has changed; the others stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentos import JournalMismatch, ParallelCoordinator, load_run

from ..journal.independent_reader import read


def run(folder: Path, items: dict[str, Any], word: str, **options: Any) -> tuple[list[str], dict[str, Any]]:
    """Run the items, by id; return the ids of those that ran, and all values, also those of before."""
    ran: list[str] = []

    def work(item: dict[str, Any], credential: str | None) -> str:
        ran.append(item["id"])
        if item["text"] == "bad":
            raise ValueError("bad")
        return f"{word} {item['text']}"

    listed = [{"id": item_id, "text": text} for item_id, text in items.items()]
    coordinator = ParallelCoordinator(1, journal=folder, worker_version="w", retries=0, **options)
    coordinator.execute_parallel(listed, work, lambda item: str(item["id"]))
    return ran, {each.item_id: each.value for each in load_run(folder).results}


ITEMS = {"a": "1", "b": "2", "bad": "bad", "c": "3"}


def test_a_done_item_runs_again_and_no_other(tmp_path: Path) -> None:
    run(tmp_path, ITEMS, "first")

    ran, values = run(tmp_path, ITEMS, "again", reopen=["b"])

    assert ran == ["b"]
    assert values == {"a": "first 1", "bad": None, "c": "first 3", "b": "again 2"}
    found = read(tmp_path)
    assert [entry["item"] for entry in found.of_kind("reopened")] == ["b"]
    assert [(entry["attempt"], entry["value"]) for entry in found.of_kind("done") if entry["item"] == "b"] == [
        (1, '"first 2"'),
        (2, '"again 2"'),
    ]


def test_failed_and_unfinished_items_are_not_run_unless_they_are_named(tmp_path: Path) -> None:
    run(tmp_path, ITEMS, "first", halt="soon,fail=1")  # c has not begun

    assert run(tmp_path, ITEMS, "again", reopen=["a"])[0] == ["a"]
    assert run(tmp_path, ITEMS, "third", reopen=["bad", "c"])[0] == ["bad", "c"]
    assert [entry["item"] for entry in read(tmp_path).of_kind("reopened")] == ["a", "bad"]
    assert load_run(tmp_path).stats.total == 4


def test_changed_items_run_again_and_no_others(tmp_path: Path) -> None:
    run(tmp_path, ITEMS, "first")
    edited = {**ITEMS, "b": "two", "new": "4"}

    with pytest.raises(JournalMismatch, match="content of 1 items"):
        run(tmp_path, edited, "never")
    ran, values = run(tmp_path, edited, "again", reopen_changed=True)

    assert ran == ["b"]
    assert values == {"a": "first 1", "bad": None, "c": "first 3", "b": "again two"}
    assert run(tmp_path, edited, "later")[0] == ["new"]


def test_a_changed_item_that_is_not_named_is_still_refused_and_nothing_is_reopened(tmp_path: Path) -> None:
    run(tmp_path, ITEMS, "first")

    with pytest.raises(JournalMismatch):
        run(tmp_path, {**ITEMS, "b": "two"}, "never", reopen=["a"])

    assert read(tmp_path).of_kind("reopened") == []
    assert run(tmp_path, {**ITEMS, "b": "two"}, "again", reopen=["b"])[0] == ["b"]


def test_nothing_changed_is_nothing_run(tmp_path: Path) -> None:
    run(tmp_path, ITEMS, "first")

    assert run(tmp_path, ITEMS, "again", reopen_changed=True)[0] == []


def test_a_run_that_ends_after_reopening_leaves_the_item_to_the_next_one(tmp_path: Path) -> None:
    run(tmp_path, ITEMS, "first")

    def fail() -> None:
        raise RuntimeError("it ends before anything starts")

    with pytest.raises(RuntimeError, match="before anything"):
        run(tmp_path, ITEMS, "never", reopen=["b"], on_begin=fail)
    ran, values = run(tmp_path, ITEMS, "again")

    assert ran == ["b"]
    assert values["b"] == "again 2"


def test_what_cannot_be_reopened_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run(tmp_path, ITEMS, "first")

    with pytest.raises(ValueError, match="no item has the id 'nobody'"):
        run(tmp_path, ITEMS, "again", reopen=["a", "nobody"])
    with pytest.raises(ValueError, match="need a list of items"):
        ParallelCoordinator(journal=tmp_path, reopen=["a"], worker_version="w").execute_parallel(
            iter(["a"]), lambda item, _: item, str
        )
    with pytest.raises(ValueError, match="need a journal"):
        ParallelCoordinator(reopen_changed=True)
    with pytest.raises(ValueError, match="a list of item ids"):
        ParallelCoordinator(journal=tmp_path, reopen="a")
    assert read(tmp_path).of_kind("reopened") == []
