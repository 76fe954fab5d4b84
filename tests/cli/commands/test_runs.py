"""`agentos runs` prints one line per run, in whatever state its folder is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentos.cli.commands.runs import runs

from ...runs.sample_runs import Child, card, crashed, run, stop_after
from ..invoke import call


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTOS_BASE_DIR", str(tmp_path / ".agentos"))
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path / ".agentos"


def test_runs_are_listed_the_newest_first(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(base / "runs" / "first", ["a", "bad-1"])
    stop_after(base / "runs" / "second", ["a", "b", "c"], 1)

    assert call(runs) == 0

    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "done", "failed", "left", "started", "ran", "for"]
    assert [row.split()[0] for row in rows] == ["second", "first"]
    assert rows[0].split()[1:9] == ["stopped", "by", "shutdown()", "1", "0", "2", "just", "now"]
    assert rows[1].split()[1:5] == ["finished", "1", "1", "0"]


def test_running_crashed_broken_and_unbegun_runs_have_different_states(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crashed(base / "runs" / "crashed")
    card(base / "runs" / "unbegun", cwd=base)
    (base / "runs" / "broken").mkdir()
    (base / "runs" / "broken" / "journal.sqlite").write_text("no database at all")
    with Child(base / "runs" / "on") as child:
        assert call(runs, "--json") == 0

        found = {each["name"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}

        assert {name: each["state"]["text"] for name, each in found.items()} == {
            "on": f"running as pid {child.pid}",
            "crashed": "crashed",
            "unbegun": "not started",
            "broken": "unreadable",
        }
    assert (found["crashed"]["done"], found["crashed"]["failed"], found["crashed"]["left"]) == (2, 1, 2)


def test_problems_of_a_run_are_printed_beside_the_table(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "runs" / "broken").mkdir(parents=True)
    (base / "runs" / "broken" / "journal.sqlite").write_text("no database at all")

    assert call(runs) == 0

    told = capsys.readouterr()
    assert "unreadable" in told.out
    assert "broken" in told.err


def test_no_runs_is_no_error(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(runs) == 0
    assert "there are no runs" in capsys.readouterr().err
    assert call(runs, "--json") == 0
    assert capsys.readouterr().out == ""


def test_colours_do_not_move_the_columns(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(base / "runs" / "done", ["a"])
    call(runs)
    plain = capsys.readouterr().out

    call(runs, "--color", "always")

    coloured = capsys.readouterr().out
    assert "\x1b[32mfinished\x1b[0m" in coloured
    assert coloured.splitlines()[1].replace("\x1b[32m", "").replace("\x1b[0m", "") == plain.splitlines()[1]
