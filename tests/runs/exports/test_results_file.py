"""The results file always agrees with the journal when a run is over, whatever happened to it before."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from agentos.runs.exports.result_line import result_lines
from agentos.runs.exports.results_file import ResultsFile
from agentos.runs.journal import locate_files
from agentos.workflows.parallel import ParallelCoordinator, WorkflowResult

from ..sample_runs import Child, all_well, by_fate, by_name, crashed, lines, run, stop_after
from .test_event_log import half_then_full

TIMES = {"duration": 0, "finished_at": 0}


def exported(folder: Path, items: Any, worker: Any = by_fate, **options: Any) -> Path:
    """A run as the command makes it: each result goes to the file as it comes."""
    path = folder / "results.jsonl"
    retry_failed = options.get("retry_failed", False)
    results = ResultsFile(path, folder, retry_failed=retry_failed)
    coordinator = ParallelCoordinator(2, journal=folder, worker_version="work", results_file=False, **options)
    for number, result in enumerate(coordinator.stream(items, worker, by_name)):
        results.add(result, 1_000.0 + number)
    assert results.close()
    return path


def by_id(path: Path) -> dict[str, dict[str, Any]]:
    found = lines(path)
    assert len({line["id"] for line in found}) == len(found)
    return {line["id"]: line for line in found}


def placeless(path: Path) -> list[dict[str, Any]]:
    """What the lines say, but when and at which place; sorted, for either of two items may be the first to end."""
    return sorted((line | TIMES | {"index": 0} for line in lines(path)), key=lambda line: str(line["outcome"]))


def test_a_result_has_all_that_is_known_of_it(tmp_path: Path) -> None:
    found = by_id(exported(tmp_path / "r", ["a", "bad-1"]))

    assert found["a"] | TIMES == {
        "id": "a",
        "outcome": "done",
        "value": {"answer": "a"},
        "error": None,
        "error_type": None,
        "attempts": 1,
        "credential": None,
        "duration": 0,
        "index": 0,
        "finished_at": 0,
        "item": "a",
        "usage": None,
    }
    assert found["bad-1"]["outcome"] == "failed"
    assert found["bad-1"]["error_type"] == "ValueError"
    assert found["bad-1"]["error"].startswith("bad-1: no 'field")
    assert found["bad-1"]["index"] == 1


def test_what_is_appended_is_what_would_be_made_from_the_journal(tmp_path: Path) -> None:
    path = exported(tmp_path / "r", ["a", "bad-1", "ü\n", "b"])

    appended = by_id(path)
    for line in map(json.loads, result_lines(locate_files(tmp_path / "r"))):
        assert line | TIMES == appended[line["id"]] | TIMES


def test_the_second_run_adds_and_repeats_nothing(tmp_path: Path) -> None:
    exported(tmp_path / "r", ["a", "bad-1"])
    path = exported(tmp_path / "r", ["a", "bad-1", "c"])

    assert list(by_id(path)) == ["a", "bad-1", "c"] or list(by_id(path)) == ["bad-1", "a", "c"]


def test_failed_items_that_run_again_are_there_once_with_their_last_result(tmp_path: Path) -> None:
    exported(tmp_path / "r", ["a", "bad-1"])
    path = exported(tmp_path / "r", ["a", "bad-1"], all_well, retry_failed=True)

    assert {line["id"]: line["outcome"] for line in lines(path)} == {"a": "done", "bad-1": "done"}
    assert len(lines(path)) == 2


def test_after_a_kill_and_a_torn_line_the_next_start_heals_the_file(tmp_path: Path) -> None:
    folder = crashed(tmp_path / "r")
    (folder / "results.jsonl").write_text('{"id":"a","outcome":"done"}\n{"id":"b","outc')

    results = ResultsFile(folder / "results.jsonl", folder)
    assert results.close()

    assert [(line["id"], line["outcome"], line["index"]) for line in lines(folder / "results.jsonl")] == [
        ("a", "done", 0),
        ("b", "done", 1),
        ("bad-1", "failed", 2),
    ]
    assert [path.name for path in folder.iterdir() if path.suffix == ".new"] == []


def test_a_new_run_begins_with_an_empty_file(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / "new" / "results.jsonl", tmp_path / "new")

    assert (tmp_path / "new" / "results.jsonl").read_text() == ""
    results.close()


def test_a_full_disk_is_said_once_and_made_good_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "r"
    done = run(folder, ["a", "b", "c"])
    caplog.clear()
    results = ResultsFile(folder / "results.jsonl", folder)
    (folder / "results.jsonl").write_text("")
    write = os.write
    monkeypatch.setattr(os, "write", half_then_full(write))
    for result in done:
        results.add(result, 1.0)
    monkeypatch.setattr(os, "write", write)

    assert results.close()

    assert sorted(by_id(folder / "results.jsonl")) == ["a", "b", "c"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_folder_that_cannot_be_written_ends_nothing_and_the_next_start_makes_it_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = run(tmp_path / "r", ["a"])
    (tmp_path / "file").write_text("in the way")
    results = ResultsFile(tmp_path / "file" / "results.jsonl", tmp_path / "r")
    results.add(done[0], 1.0)
    assert not results.close()
    assert "cannot be written" in caplog.text
    (tmp_path / "file").unlink()

    assert ResultsFile(tmp_path / "file" / "results.jsonl", tmp_path / "r").close()

    assert list(by_id(tmp_path / "file" / "results.jsonl")) == ["a"]


def test_a_value_that_is_not_json_is_there_as_what_it_was(tmp_path: Path) -> None:
    path = exported(tmp_path / "r", ["a"], lambda item, credential: [1j])

    assert (by_id(path)["a"]["value"], by_id(path)["a"]["value_repr"]) == (None, "[1j]")
    (again,) = map(json.loads, result_lines(locate_files(tmp_path / "r")))
    assert (again["value"], again["value_repr"]) == (None, "[1j]")


def test_a_file_that_somebody_replaced_meanwhile_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    done = run(folder, ["a", "b"])
    results = ResultsFile(folder / "results.jsonl", folder)
    (folder / "results.jsonl").unlink()
    for result in done:
        results.add(result, 1.0)
    (folder / "results.jsonl").unlink()

    assert results.close()

    assert sorted(by_id(folder / "results.jsonl")) == ["a", "b"]


def test_the_file_of_a_run_that_is_on_elsewhere_is_not_taken_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Child(tmp_path / "r"):
        (tmp_path / "r" / "results.jsonl").write_text("theirs\n")
        results = ResultsFile(tmp_path / "r" / "results.jsonl", tmp_path / "r")

        assert not results.close()

        assert (tmp_path / "r" / "results.jsonl").read_text() == "theirs\n"
    assert "in use by pid" in caplog.text


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a"])
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere.jsonl")

    assert ResultsFile(tmp_path / "link", tmp_path / "r").close()

    assert (tmp_path / "link").is_symlink()
    assert list(by_id(tmp_path / "elsewhere.jsonl")) == ["a"]


def test_a_pipe_gets_the_earlier_results_and_then_the_new_ones(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a"])
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()

    results = ResultsFile(tmp_path / "pipe", tmp_path / "r")
    results.add(WorkflowResult("b", True, value=1), 1.0)
    assert results.close()
    reader.join(10)

    assert [json.loads(line)["id"] for line in read[0].splitlines()] == ["a", "b"]
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_an_input_without_a_list_has_no_places_afterwards(tmp_path: Path) -> None:
    run(tmp_path / "r", iter(["a"]))

    assert [json.loads(line)["index"] for line in result_lines(locate_files(tmp_path / "r"))] == [None]


def test_an_id_that_a_journal_cannot_hold_keeps_its_place(tmp_path: Path) -> None:
    run(tmp_path / "r", ["a", "b\0c"], workers=1)

    found = [json.loads(line) for line in result_lines(locate_files(tmp_path / "r"))]

    assert [(line["id"], line["index"]) for line in found] == [("a", 0), ("b\\x00c", 1)]


def test_only_finished_items_are_in_the_file(tmp_path: Path) -> None:
    stop_after(tmp_path / "r", [f"item-{n:04}" for n in range(1_200)], 1_100)

    assert ResultsFile(tmp_path / "out.jsonl", tmp_path / "r").close()

    assert [line["index"] for line in lines(tmp_path / "out.jsonl")] == list(range(1_100))


def test_a_retry_that_is_stopped_loses_no_failed_item_that_it_did_not_come_to(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    exported(folder, ["a", "bad-1", "bad-2"])
    results = ResultsFile(folder / "results.jsonl", folder, retry_failed=True)
    coordinator = ParallelCoordinator(1, journal=folder, worker_version="work", retry_failed=True, results_file=False)

    def work(item: str, credential: str | None) -> str:
        coordinator.shutdown()
        return all_well(item, credential)

    for result in coordinator.stream(["a", "bad-1", "bad-2"], work, by_name):
        results.add(result, 1.0)
    assert set(by_id(results.path)) == {"a", "bad-1"}
    assert results.close()

    found = by_id(results.path)
    assert {name: line["outcome"] for name, line in found.items()} == {"a": "done", "bad-1": "done", "bad-2": "failed"}


def test_an_item_refused_for_its_id_has_a_line_of_its_own_after_every_run(tmp_path: Path) -> None:
    for _ in range(2):
        path = exported(tmp_path / "r", iter(["a", "b", "a"]))

        assert sorted((line["id"], line["outcome"]) for line in lines(path)) == [
            ("a", "done"),
            ("a", "failed"),
            ("b", "done"),
        ]

    path = exported(tmp_path / "r", iter(["a", "b"]))
    assert [line["outcome"] for line in lines(path)] == ["done", "done"]


def test_a_run_that_comes_to_nothing_drops_no_line(tmp_path: Path) -> None:
    path = exported(tmp_path / "r", iter(["a", "a"]))
    before = placeless(path)

    assert ResultsFile(path, tmp_path / "r", retry_failed=True).close()

    assert [line["outcome"] for line in before] == ["done", "failed"]
    assert placeless(path) == before


def test_places_are_those_of_the_newest_input(tmp_path: Path) -> None:
    exported(tmp_path / "r", ["a", "b", "c"])

    path = exported(tmp_path / "r", ["new", "c", "a"])

    assert {name: line["index"] for name, line in by_id(path).items()} == {"new": 0, "c": 1, "a": 2, "b": None}
