"""The journal and the results file keep the item beside its value."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agentos import CredentialCoordinator, ParallelCoordinator
from agentos.costs.usage import Usage
from agentos.runs.exports.item_codec import LONGEST_IN_JOURNAL, LONGEST_IN_RESULTS
from agentos.runs.exports.result_line import result_lines
from agentos.runs.exports.results_file import ResultsFile
from agentos.runs.journal import locate_files
from agentos.runs.results import ProgressStats

from ..journal.independent_reader import read


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result_lines(locate_files(folder))]


def run(folder: Path, items: Any, worker: Any = lambda item, _: "done", **options: Any) -> list[dict[str, Any]]:
    """Run the items with a results file, and return its lines."""
    with_items = options.pop("with_items", True)
    file = ResultsFile(folder / "results.jsonl", folder, with_items=with_items)
    coordinator = ParallelCoordinator(
        1, options.pop("pool", None), journal=folder, retries=0, results_file=False, **options
    )
    for result in coordinator.stream(items, worker, lambda item: str(item)[:20]):
        file.add(result, 1.0)
    assert file.close()
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_every_finished_item_is_kept_as_it_was_given(tmp_path: Path) -> None:
    def work(item: Any, credential: str | None) -> str:
        if isinstance(item, dict):
            item["n"] = "changed by the worker"
        if item == "bad":
            raise ValueError
        return "done"

    found = run(tmp_path, iter(["text", {"z": 1, "n": [None, 2.5]}, 7, "bad", "text"]), work)

    assert [(line["outcome"], line["item"]) for line in found] == [
        ("done", "text"),
        ("done", {"z": 1, "n": [None, 2.5]}),
        ("done", 7),
        ("failed", "bad"),
        ("failed", "text"),  # a duplicate
    ]
    assert [line["item"] for line in lines(tmp_path)] == [line["item"] for line in found]
    assert list(found[1]["item"]) == ["z", "n"]


def test_results_have_their_item_at_the_first_run_and_at_a_resume(tmp_path: Path) -> None:
    items = [{"id": 1}, {"id": 2}]
    for cached in (False, True):
        results = ParallelCoordinator(1, journal=tmp_path, worker_version="w").execute_parallel(
            items, lambda item, _: "done", lambda item: str(item["id"])
        )[1]
        assert [(result.cached, result.item) for result in results] == [(cached, item) for item in items]


def test_a_long_item_is_cut_in_the_results_and_a_very_long_one_in_the_journal(tmp_path: Path) -> None:
    long, very_long = "é" * LONGEST_IN_RESULTS, "x" * (LONGEST_IN_JOURNAL + 1)
    found = run(tmp_path, [long, {"a": long}, very_long])

    first, second, third = (line["item"] for line in found)
    assert all(line["item_truncated"] for line in found)
    assert first == long[: LONGEST_IN_RESULTS // 2]
    assert second == json.dumps({"a": long}, separators=(",", ":"))[:LONGEST_IN_RESULTS]
    assert third == very_long[:LONGEST_IN_RESULTS]
    entries = read(tmp_path).of_kind("done")
    assert [json.loads(entry["content"]) for entry in entries] == [long, {"a": long}, very_long[:-1]]
    assert [entry["flags"] for entry in entries] == [None, None, '{"item_truncated":true}']


def test_an_item_that_just_fits_is_whole(tmp_path: Path) -> None:
    fits = "x" * (LONGEST_IN_RESULTS - 2)

    (line,) = run(tmp_path, [fits])

    assert line["item"] == fits
    assert "item_truncated" not in line


def test_the_results_file_can_do_without_the_items(tmp_path: Path) -> None:
    (line,) = run(tmp_path, ["a"], with_items=False)

    assert "item" not in line
    assert line["id"] == "a"
    assert lines(tmp_path)[0]["item"] == "a"  # the journal has it


def test_an_item_that_is_not_json_is_null(tmp_path: Path) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    (line,) = run(tmp_path, [Odd()])

    assert (line["id"], line["item"]) == ("odd", None)


def test_a_secret_in_an_item_is_not_kept(tmp_path: Path) -> None:
    secret = "sk-recorded-secret-0123456789"
    with CredentialCoordinator([secret]) as pool:
        (line,) = run(tmp_path, [{"say": f"key {secret}."}], pool=pool)

    assert secret not in json.dumps(line)
    assert line["item"]["say"].startswith("key ")
    (entry,) = read(tmp_path).of_kind("done")
    assert entry["flags"] == '{"item_redacted":true}'
    assert all(secret.encode() not in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())


@pytest.mark.parametrize("columns", [("not json", "not json"), ("[1]", '"text"'), ('{"input":"x"}', "{}")])
def test_columns_that_somebody_edited_do_not_stop_a_reader(tmp_path: Path, columns: tuple[str, str]) -> None:
    run(tmp_path, ["a"])
    with sqlite3.connect(tmp_path / "journal.sqlite") as connection:
        connection.execute("update entries set usage = ?, flags = ? where kind = 'done'", columns)

    (line,) = lines(tmp_path)

    assert (line["id"], line["item"]) == ("a", "a")


def test_a_progress_copy_has_its_own_counts() -> None:
    stats = ProgressStats(total=1)
    stats.usage += Usage(input=3, output=4)

    assert (stats.usage.total, ProgressStats(total=1).usage.total) == (7, 0)
    assert (stats.redacted, stats.not_json) == (0, 0)
