"""`agentos retry` continues the same run, from its original folder, with --retry-failed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentos.cli.commands.retry import retry
from agentos.cli.main import main
from agentos.cli.usage_error import UsageError

from ...runs import sample_runs
from ...runs.sample_runs import Child, run
from ..invoke import call, remember


def card(folder: Path, *arguments: str, cwd: Path, **more: Any) -> None:
    """Write down how the run in *folder* was started, as by this user."""
    sample_runs.card(folder, *arguments, cwd=cwd, **more)
    remember(folder)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTOS_BASE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    return tmp_path / ".agentos" / "runs" / "r"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Where and with what `agentos` was called again."""
    calls: list[tuple[str, list[str]]] = []

    def main(arguments: list[str]) -> int:
        calls.append((os.getcwd(), arguments))
        return 1

    fake: Any = ModuleType("agentos.cli.main")
    fake.main = main
    monkeypatch.setitem(sys.modules, "agentos.cli.main", fake)
    return calls


def test_it_is_started_as_before_with_what_failed(
    folder: Path, tmp_path: Path, started: list[tuple[str, list[str]]]
) -> None:
    run(folder, ["bad-1"])
    card(folder, "items.txt", "--fresh", "--", "grep", "-n", "{}", cwd=tmp_path)

    assert call(retry, "r") == 1

    assert started == [(str(tmp_path), ["run", "items.txt", "--retry-failed", "--name", "r", "--", "grep", "-n", "{}"])]


def test_it_goes_on_with_this_run_wherever_it_is_called_from(
    folder: Path, tmp_path: Path, started: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, ["bad-1"])
    card(folder, "items.txt", "--name", "r", "--", "true", cwd=tmp_path / "work")
    monkeypatch.chdir("/")

    call(retry, str(folder))

    arguments = ["run", "items.txt", "--name", "r", "--retry-failed", "--dir", str(tmp_path / ".agentos"), "--", "true"]
    assert started == [(str(tmp_path / "work"), arguments)]


def test_a_folder_that_was_named_is_not_named_twice(
    folder: Path, tmp_path: Path, started: list[tuple[str, list[str]]]
) -> None:
    run(folder, ["bad-1"])
    card(folder, "--dir=../.agentos", "--name=r", "i", "--", "true", cwd=tmp_path / "work")

    call(retry, "r")

    assert started[0][1] == ["run", "--dir=../.agentos", "--name=r", "i", "--retry-failed", "--", "true"]


def test_a_run_that_was_renamed_or_moved_is_still_the_one_that_goes_on(
    tmp_path: Path, started: list[tuple[str, list[str]]]
) -> None:
    folder = tmp_path / "elsewhere" / "runs" / "r.1"
    run(folder, ["bad-1"])
    card(folder, "--name", "r", "--dir", "old", ":::", "--name", "x", cwd=tmp_path)

    call(retry, str(folder))

    again = ["--retry-failed", "--name", "r.1", "--dir", str(tmp_path / "elsewhere")]
    assert started[0][1] == ["run", "--name", "r", "--dir", "old", *again, ":::", "--name", "x"]


def test_items_from_standard_input_have_to_be_given_again(folder: Path, tmp_path: Path) -> None:
    run(folder, ["bad-1"])
    card(folder, "-", "--name", "r", "--", "true", cwd=tmp_path, source={"kind": "stdin", "name": "-"})

    with pytest.raises(UsageError, match="came from standard input") as refused:
        call(retry, "r")

    assert refused.value.hint == "give them again: ... | agentos run - --name r --retry-failed -- true"


def test_a_run_that_is_on_is_left_alone(folder: Path, tmp_path: Path) -> None:
    with Child(folder) as child:
        card(folder, "items.txt", "--", "true", cwd=tmp_path)

        with pytest.raises(UsageError, match=f"r is still running as pid {child.pid}"):
            call(retry, "r")


def test_a_folder_that_is_gone_is_named(folder: Path, tmp_path: Path, started: list[tuple[str, list[str]]]) -> None:
    run(folder, ["bad-1"])
    card(folder, "items.txt", "--", "true", cwd=tmp_path / "gone")

    with pytest.raises(UsageError, match="gone, and that folder cannot be entered: No such file"):
        call(retry, "r")

    assert started == []


def test_a_run_from_python_says_how_to_go_on(folder: Path) -> None:
    run(folder, ["bad-1"])

    with pytest.raises(UsageError) as refused:
        call(retry, "r")

    assert "retry_failed=True" in str(refused.value.hint)


def test_a_run_kept_elsewhere_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "mine", ["bad-1"])
    card(tmp_path / "mine", "items.txt", "--", "true", cwd=tmp_path)

    with pytest.raises(UsageError, match="not where agentos keeps runs"):
        call(retry, str(tmp_path / "mine"))


# -- as it is typed ---------------------------------------------------------------------------------------------------

ROWS = '{"id":"a","t":"1"}\n{"id":"b","t":"2"}\n{"id":"c","t":"bad"}\n'
WORK = """
def work(item, credential):
    if item["t"] == "bad":
        raise ValueError(item["t"])
    return "ran " + item["t"]

def same(item, credential):
    return item
"""


@pytest.fixture
def typed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command line where the run r has done a and b, and c has failed; return its code and its errors."""
    (tmp_path / "rows.jsonl").write_text(ROWS)
    (tmp_path / "work.py").write_text(WORK)
    options = ("--name", "r", "--progress", "none", "-j", "2", "--retries", "0")
    assert main(["run", "rows.jsonl", "--worker", "work.py:work", *options]) == 1

    def type_it(*words: str) -> tuple[int, str]:
        capfd.readouterr()
        return main(list(words)), capfd.readouterr().err

    return type_it


def values(folder: Path) -> dict[str, tuple[Any, int]]:
    found = (json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines())
    return {line["id"]: (line["value"], line["attempts"]) for line in found}


def test_items_that_were_named_run_again_and_no_others(folder: Path, typed: Callable[..., tuple[int, str]]) -> None:
    assert typed("retry", "r", "--items", "a", "-j", "1")[0] == 1

    assert values(folder) == {"a": ("ran 1", 2), "b": ("ran 2", 1), "c": (None, 1)}
    assert json.loads((folder / "run.json").read_text())["arguments"][-2:] == ["-j", "1"]


def test_items_whose_content_changed_run_again_and_no_others(
    folder: Path, tmp_path: Path, typed: Callable[..., tuple[int, str]]
) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS.replace('"2"', '"two"').replace("bad", "good"))

    code, errors = typed("run", "rows.jsonl", "--worker", "work.py:work", "--name", "r", "--progress", "none")
    assert (code, "agentos retry r --changed  runs the changed items again" in errors) == (2, True)
    assert typed("retry", "r", "--changed")[0] == 0

    assert values(folder) == {"a": ("ran 1", 1), "b": ("ran two", 2), "c": ("ran good", 2)}


def test_an_item_that_is_not_there_is_named_and_nothing_runs(
    folder: Path, tmp_path: Path, typed: Callable[..., tuple[int, str]]
) -> None:
    before = values(folder)

    assert "no items of r begin with 'zz'" in typed("retry", "r", "--items", "zz")[1]
    (tmp_path / "rows.jsonl").write_text(ROWS.partition("\n")[2])
    assert "the input has no item 'a' any more" in typed("retry", "r", "--items", "a")[1]
    assert "--dry-run does not show which items have changed" in typed("retry", "r", "--changed", "-n")[1]
    assert values(folder) == before


def test_ids_may_have_commas_between_them(folder: Path, typed: Callable[..., tuple[int, str]]) -> None:
    assert typed("retry", "r", "--items", "a,c")[0] == 1
    assert values(folder) == {"a": ("ran 1", 2), "b": ("ran 2", 1), "c": (None, 2)}
    assert "no items of r begin with 'zz'" in typed("retry", "r", "--items", "a,zz")[1]


def test_an_id_with_a_comma_is_one_id(tmp_path: Path, typed: Callable[..., tuple[int, str]]) -> None:
    run = ("--name", "s", "--progress", "none", "--worker", "work.py:work")
    (tmp_path / "commas.jsonl").write_text('{"id":"a,b","t":"1"}\n{"id":"a","t":"2"}\n')
    assert typed("run", "commas.jsonl", *run)[0] == 0

    assert typed("retry", "s", "--items", "a,b")[0] == 0

    assert values(tmp_path / ".agentos" / "runs" / "s") == {"a,b": ("ran 1", 2), "a": ("ran 2", 1)}


def test_a_dry_run_shows_the_items_that_were_named_and_runs_nothing(
    folder: Path, tmp_path: Path, typed: Callable[..., tuple[int, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    before = values(folder)
    capfd.readouterr()

    assert main(["retry", "r", "--items", "a", "c", "-n"]) == 0

    out, err = capfd.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == ["a", "c"]
    assert "dry run: 2 items" in err
    assert "1 of 3 were not named by --items" in err
    assert values(folder) == before


def test_all_items_with_a_beginning_are_counted(tmp_path: Path, typed: Callable[..., tuple[int, str]]) -> None:
    words = [f"issue-{number:02}" for number in range(40)]
    assert (
        main(["run", "--name", "many", "--progress", "none", "-j", "4", "--worker", "work.py:same", ":::", *words]) == 0
    )

    errors = typed("retry", "many", "--items", "issue")[1]

    assert "40 items of many begin with 'issue'" in errors
    assert "issue-04, ...?" in errors


def test_a_run_of_which_all_items_are_done_does_not_say_that_it_starts_them(
    typed: Callable[..., tuple[int, str]],
) -> None:
    run = ("run", "--name", "done", "--progress", "plain", "--worker", "work.py:same", ":::", "a", "b")

    assert "Starting parallel execution of 2 items" in typed(*run)[1]
    errors = typed(*run)[1]

    assert "Starting" not in errors
    assert "Nothing to run" in errors
