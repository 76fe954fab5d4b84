"""`agentos report`: one file about a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentos.cli.exit_codes import ExitCode
from agentos.cli.main import main

from ...page.report_reader import read_data
from ...runs.sample_runs import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run(tmp_path / ".agentos" / "runs" / "night", ["a", "b", "bad-1"])
    return tmp_path


def test_a_report_is_written_beside_you_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == ExitCode.OK

    assert capsys.readouterr().out == "wrote night.html\n"
    assert read_data(folder / "night.html")[0]["report"]["counts"]["done"] == 2


def test_its_numbers_are_those_of_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", "night", "-o", "there.html"])
    capsys.readouterr()
    main(["show", "night", "--json"])
    told = json.loads(capsys.readouterr().out)

    found = read_data(folder / "there.html")[0]["report"]

    for name in ("failures", "retry_cause"):
        found.pop(name), told.pop(name)
    assert found == told


def test_a_report_goes_to_standard_output_for_a_dash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "night", "-o", "-"]) == ExitCode.OK

    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_a_report_that_cannot_be_written_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "night", "-o", str(folder / "no" / "r.html")]) == ExitCode.OUTPUT
    assert "cannot be written" in capsys.readouterr().err
    assert main(["report", "night", "-o", str(folder)]) == ExitCode.USAGE
    assert "is a folder" in capsys.readouterr().err


def test_a_run_records_what_bounded_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--name", "bound", "--progress", "none", "--", "true", ":::", "a", "b"]) == ExitCode.OK
    main(["report", "bound"])

    facts, _ = read_data(folder / "bound.html")

    assert sum(facts["report"]["bounds"]["by"].values()) > 0


def test_a_run_writes_its_report_at_the_end_and_names_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["run", "--name", "r", "--report", "r.html", "--", "sh", "-c", "test {} != b", ":::", "a", "b"]

    assert main(typed) == ExitCode.SOME_FAILED

    assert "report: r.html\n" in capsys.readouterr().err
    assert read_data(folder / "r.html")[0]["report"]["state"]["word"] == "finished"
    assert main([*typed[:5], "--retry-failed", *typed[5:]]) == ExitCode.SOME_FAILED  # it replaces its own file


def test_a_report_does_not_overwrite_another_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "notes.html").write_text("<html>mine</html>")

    assert main(["run", "--report", "notes.html", "--", "true", ":::", "a"]) == ExitCode.USAGE

    assert "does not hold a report" in capsys.readouterr().err
    assert (folder / "notes.html").read_text() == "<html>mine</html>"
