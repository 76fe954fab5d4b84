"""A run as Markdown and as a trace."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentos.cli.exit_codes import ExitCode
from agentos.cli.main import main
from agentos.page.head_facts import FailureFacts, HeadFacts, build_head
from agentos.page.markdown import MOST, build_markdown, escape
from agentos.page.perfetto import write_trace
from agentos.runs.report.run_report import build_report

from .recorded_rows import ROWS, write_rows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".agentos" / "runs").mkdir(parents=True)
    write_rows(tmp_path / ".agentos" / "runs" / "night", *ROWS)
    return tmp_path / ".agentos" / "runs" / "night"


def read_head(folder: Path) -> HeadFacts:
    return build_head(build_report(folder), 1e9)


def test_markdown_has_the_figures_of_the_run(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["show", "night", "--markdown"]) == ExitCode.OK

    text = capfdbinary.readouterr().out.decode()
    assert text.startswith("## night: ended with items left\n")
    assert "| 2 of 5 items | 2 (1 cause) | 1 (1 interrupted) |" in text
    assert "| 2 | KeyError: 'x' | work.py:12 in ask | bad-1 |" in text
    assert "```text\nTraceback ...\n```" in text


def test_markdown_stays_below_its_bound_and_says_what_it_left_out(folder: Path) -> None:
    many = tuple(FailureFacts(1, "x" * 300, "", "é" * 300, "y" * 60_000) for _ in range(50))

    text = build_markdown(replace(read_head(folder), failures=many))

    assert len(text.encode()) <= MOST
    assert text.endswith("`agentos report` has it.*\n")


def test_texts_of_a_run_are_not_markup() -> None:
    assert escape("<b>*x*</b> | @all [a](b) `c`") == "&lt;b\\>\\*x\\*&lt;/b\\> \\| &#64;all \\[a\\](b) \\`c\\`"
    assert escape("# heading\nnext") == "\\# heading next"


def test_markdown_is_for_the_whole_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "night", "--markdown", "--json"]) == ExitCode.USAGE
    assert "--markdown shows the whole run" in capsys.readouterr().err


def test_each_attempt_is_a_bar_and_bars_of_a_track_do_not_overlap(folder: Path) -> None:
    stream = io.StringIO()
    write_trace(folder, stream)

    events = json.loads(stream.getvalue())["traceEvents"]

    bars = [event for event in events if event["ph"] == "X"]
    assert sorted(bar["name"] for bar in bars) == ["a", "bad-1", "bad-2", "cut", "slow", "slow", "slow"]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["429"]
    tracks: dict[tuple[int, int], int] = {}
    for bar in sorted(bars, key=lambda each: each["ts"]):
        track = bar["pid"], bar["tid"]
        assert bar["ts"] >= tracks.get(track, 0)
        tracks[track] = bar["ts"] + bar["dur"]
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {"run night", "k-1", "k-2"}


def test_a_trace_is_written_beside_you_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "night", "--perfetto"]) == ExitCode.OK

    assert capsys.readouterr().out == "wrote night.trace.json\n"
    assert json.loads(Path("night.trace.json").read_text())["traceEvents"]
