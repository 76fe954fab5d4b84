"""The kind of progress output for each mode and stream."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading

import pytest

from agentos.cli.terminal import progress_mode
from agentos.cli.terminal.progress_mode import build_reporter
from agentos.cli.usage_error import UsageError
from agentos.runs.progress import Progress
from agentos.runs.results import ProgressStats, WorkflowResult


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def stats(completed: int = 0) -> ProgressStats:
    return ProgressStats(total=10, completed=completed, success_count=completed, start_time=0.0, end_time=5.0)


STARTED = Progress("run_started", stats(), message="Starting 10 items")
FINISHED = Progress("run_finished", stats(10))
XTERM = {"TERM": "xterm"}


def shown(mode: str, stream: io.StringIO, environ: dict[str, str], colour_flag: str = "auto") -> str:
    report = build_reporter(mode, stream=stream, environ=environ, run_name="night", colour_flag=colour_flag)
    report(STARTED)
    report(FINISHED)
    report.close()
    report.close()
    return stream.getvalue()


PLAIN = "Starting 10 items\nnight: 10 of 10 done, 0 failed\ntook 0:00:05, 2.0 items/s\n"


@pytest.mark.parametrize("mode", ["auto", "bar"])
def test_on_a_terminal_there_is_a_live_display(mode: str) -> None:
    text = shown(mode, Terminal(), XTERM)

    assert "\x1b[?25l" in text
    assert text.endswith("\x1b[1mnight: 10 of 10 done, 0 failed\x1b[0m\ntook 0:00:05, 2.0 items/s\n")


@pytest.mark.parametrize(
    ("mode", "stream", "environ"),
    [
        ("auto", io.StringIO, XTERM),
        ("bar", io.StringIO, XTERM),
        ("plain", io.StringIO, XTERM),
        ("plain", Terminal, XTERM),
        ("auto", Terminal, {"TERM": "dumb"}),
        ("bar", Terminal, {"TERM": "dumb"}),
        ("auto", io.StringIO, {"FORCE_COLOR": "1"}),
    ],
)
def test_elsewhere_there_are_plain_lines(mode: str, stream: type[io.StringIO], environ: dict[str, str]) -> None:
    assert shown(mode, stream(), environ) == PLAIN


@pytest.mark.parametrize(("mode", "drawn"), [("auto", False), ("bar", True)])
def test_with_standard_output_in_a_pipe_only_a_typed_bar_is_drawn(mode: str, drawn: bool) -> None:
    stream = Terminal()
    report = build_reporter(mode, stream=stream, stdout=io.StringIO(), environ=XTERM, run_name="night")
    report(STARTED)
    report(FINISHED)
    report.close()

    assert ("\x1b" in stream.getvalue()) == drawn
    assert (stream.getvalue() == PLAIN) == (not drawn)
    assert (report.write_above is not None) == drawn


def test_without_rich_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "agentos.runs.display.rich_display", raising=False)

    assert shown("auto", Terminal(), XTERM) == PLAIN


def test_none_is_silent() -> None:
    assert shown("none", Terminal(), XTERM) == ""


def test_another_mode_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="'fancy'") as refused:
        build_reporter("fancy", stream=io.StringIO(), environ={})

    assert refused.value.hint == "give one of auto, bar, plain, json, none"


@pytest.mark.parametrize("mode", progress_mode.MODES)
def test_a_wrong_colour_is_refused_in_each_mode(mode: str) -> None:
    with pytest.raises(UsageError, match="--color"):
        build_reporter(mode, stream=io.StringIO(), environ={}, colour_flag="pink")


@pytest.mark.parametrize(
    ("environ", "flag", "is_green"),
    [
        (XTERM, "auto", True),
        ({**XTERM, "NO_COLOR": "1"}, "auto", False),
        ({**XTERM, "NO_COLOR": "1"}, "always", True),
        (XTERM, "never", False),
    ],
)
def test_colours_of_the_display_follow_flag_and_environment(environ: dict[str, str], flag: str, is_green: bool) -> None:
    text = shown("bar", Terminal(), environ, colour_flag=flag)

    assert ("\x1b[32m" in text) is is_green


def test_json_is_one_object_for_each_event() -> None:
    stream = io.StringIO()
    report = build_reporter("json", stream=stream, environ={})
    failed = WorkflowResult(
        "dök", False, "exit 3: no", 1.25, value={"private": "value"}, outcome="failed", credential="alice", attempts=2
    )

    report(STARTED)
    report(Progress("item_finished", stats(1), item_id="dök", result=failed))
    report(Progress("stopping", stats(1), message="Stopping because of SIGINT"))

    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert stream.getvalue().isascii()
    assert (first["kind"], first["total"], first["message"]) == ("run_started", 10, "Starting 10 items")
    assert {key: second[key] for key in ("item", "outcome", "error", "duration", "credential", "attempts", "done")} == {
        "item": "dök",
        "outcome": "failed",
        "error": "exit 3: no",
        "duration": 1.25,
        "credential": "alice",
        "attempts": 2,
        "done": 1,
    }
    assert "private" not in stream.getvalue()
    assert third["message"] == "Stopping because of SIGINT"


@pytest.mark.parametrize("mode", progress_mode.MODES)
def test_a_closed_stream_disturbs_nobody(mode: str) -> None:
    stream = io.StringIO()
    report = build_reporter(mode, stream=stream, environ=XTERM)
    stream.close()

    report(STARTED)
    report(FINISHED)
    report.close()


def test_only_a_live_display_has_lines_pass_above_it() -> None:
    stream = Terminal()
    live = build_reporter("bar", stream=stream, environ=XTERM)
    live(STARTED)
    assert live.write_above is not None
    live.write_above("stdout", "a line")
    live.close()

    assert "a line\n" in stream.getvalue()
    for mode in ("plain", "json", "none"):
        assert build_reporter(mode, stream=stream, environ=XTERM).write_above is None


def test_a_live_display_leaves_the_streams_of_the_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands route what is printed themselves."""
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    live = build_reporter("bar", stream=Terminal(), environ=XTERM)
    live(STARTED)

    assert sys.stdout is out
    live.close()


def test_plain_lines_go_on_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    ticked = threading.Event()
    monkeypatch.setattr(progress_mode, "_TICK", 0.001)
    monkeypatch.setattr("agentos.runs.display.plain_lines.PlainProgress.tick", lambda lines: ticked.set())
    report = build_reporter("plain", stream=io.StringIO(), environ={})

    report(STARTED)

    assert ticked.wait(20.0)
    report.close()


@pytest.mark.parametrize("mode", ["plain", "json", "none", "auto"])
def test_off_a_terminal_rich_is_not_even_imported(mode: str) -> None:
    script = f"""
import io, sys
from agentos.cli.terminal.progress_mode import build_reporter
build_reporter({mode!r}, stream=io.StringIO(), environ={{}})
sys.exit("rich" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=150, check=False).returncode == 0
