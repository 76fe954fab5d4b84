"""A run from Python with a journal writes its results to a file beside it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from agentos import CredentialCoordinator, ParallelCoordinator


def run(journal: Path, items: Any = ("a", "bad"), worker: Any = None, **options: Any) -> ParallelCoordinator:
    def work(item: str, credential: str | None) -> str:
        if item == "bad":
            raise ValueError("it is bad")
        return item.upper()

    coordinator = ParallelCoordinator(1, options.pop("pool", None), journal=journal, retries=0, **options)
    coordinator.execute_parallel(list(items), worker or work, str)
    return coordinator


def lines(path: Path) -> dict[str, tuple[Any, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["id"] for line in found}) == len(found)
    return {line["id"]: (line["item"], line["value"]) for line in found}


def test_results_are_written_beside_the_journal_for_this_user_alone(tmp_path: Path) -> None:
    run(tmp_path / "night")

    path = tmp_path / "night" / "results.jsonl"
    assert lines(path) == {"a": ("a", "A"), "bad": ("bad", None)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_journals_in_one_folder_have_a_file_each(tmp_path: Path) -> None:
    run(tmp_path / "one.db", ["a"])
    run(tmp_path / "two.db", ["b"])

    assert lines(tmp_path / "one.db.results.jsonl") == {"a": ("a", "A")}
    assert lines(tmp_path / "two.db.results.jsonl") == {"b": ("b", "B")}


def test_a_second_run_adds_its_results_and_repairs_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "night"
    run(folder, worker_version="w")
    path = folder / "results.jsonl"
    path.write_text(path.read_text().splitlines()[0][:40])  # as a crash leaves it

    run(folder, ["a", "bad", "c"], worker_version="w")
    assert lines(path) == {"a": ("a", "A"), "bad": ("bad", None), "c": ("c", "C")}

    run(folder, ["a", "bad", "c"], lambda item, _: "well", worker_version="w", retry_failed=True)
    assert lines(path) == {"a": ("a", "A"), "bad": ("bad", "well"), "c": ("c", "C")}


def test_a_result_is_in_the_file_when_it_is_reported(tmp_path: Path) -> None:
    coordinator = ParallelCoordinator(1, journal=tmp_path)
    seen = [
        result.item_id in lines(tmp_path / "results.jsonl")
        for result in coordinator.stream(["a", "b", "c"], lambda item, _: item, str)
    ]

    assert seen == [True, True, True]


def test_a_file_of_somebody_else_is_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "results.jsonl").write_text('{"my": "own"}\n')

    run(tmp_path, ["a"])

    assert (tmp_path / "results.jsonl").read_text() == '{"my": "own"}\n'
    assert "does not hold results; they are in" in caplog.text


def test_a_link_in_its_place_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "precious").write_text("")
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "results.jsonl").symlink_to(tmp_path / "precious")

    run(tmp_path / "night", ["a"])

    assert (tmp_path / "precious").read_text() == ""
    assert "is a link" in caplog.text


def test_it_can_be_left_out(tmp_path: Path) -> None:
    run(tmp_path, results_file=False)

    assert not (tmp_path / "results.jsonl").exists()


def test_no_secret_is_in_it(tmp_path: Path) -> None:
    secret = "sk-results-secret-0123456789abcdef"
    with CredentialCoordinator([secret]) as pool:
        run(tmp_path, ["a"], lambda item, credential: f"my key is {credential}", pool=pool)

    text = (tmp_path / "results.jsonl").read_text()
    assert secret not in text
    assert "my key is " in text


async def work_async(item: str, credential: str | None) -> str:
    return item.upper()


def test_coroutines_write_theirs_too(tmp_path: Path) -> None:
    run(tmp_path, ["a", "b"], work_async)

    assert set(lines(tmp_path / "results.jsonl")) == {"a", "b"}
