"""The ready-made rich_display, on terminals and elsewhere."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Never

import pytest
from rich.console import Console

from agentos.pool.snapshot import CredentialState
from agentos.runs.display import rich_display
from agentos.runs.display.rich_display import RichProgress
from agentos.runs.progress import Progress
from agentos.runs.results import ProgressStats, WorkflowResult

from ..terminal_screen import FakeTerminal


class TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True


def stats(completed: int = 0, total: int | None = 10, *, elapsed: float = 5.0, failed: int = 0) -> ProgressStats:
    return ProgressStats(
        total=total,
        completed=completed,
        failed=failed,
        success_count=completed - failed,
        start_time=0.0,
        end_time=elapsed,
    )


def started(total: int | None = 10) -> Progress:
    return Progress("run_started", stats(0, total, elapsed=0.0), message="Starting 10 items")


def finished(counts: ProgressStats, item_id: str = "a", error: str | None = None) -> Progress:
    return Progress("item_finished", counts, item_id=item_id, result=WorkflowResult(item_id, error is None, error))


def terminal(**options: object) -> Console:
    given = {"file": io.StringIO(), "force_terminal": True, "width": 100, "_environ": {"TERM": "xterm"}, **options}
    return Console(**given)  # type: ignore[arg-type]


def plain() -> Console:
    return Console(file=io.StringIO(), width=40, _environ={})


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drawn(shown: RichProgress, width: int = 101, height: int = 40) -> list[str]:
    """What the live region looks like now."""
    return ["".join(text for text, _ in row).rstrip() for row in shown._rows(width, height)]


def test_the_live_region_shows_how_far_what_runs_and_what_failed() -> None:
    shown = RichProgress(terminal())
    counts = replace(stats(5, failed=1), retried=2, limited=3, cached=1)

    shown(started())
    shown(finished(counts, "doc-4", "ValueError: no such page\nat line 3"))
    shown(Progress("item_retried", counts, item_id="doc-5", running=("doc-5", "doc-6")))
    bar, told, *rest = drawn(shown)
    shown(Progress("stopping", counts, message="SIGINT: waiting for 2 items"))
    stopping = drawn(shown)

    assert bar.startswith("━━━")
    assert bar.endswith("5/10 (50.0%)  0:00:05")
    assert told.startswith("done 4, failed 1, retried 2, rate-limited 3, cached 1, running 2 ")
    assert "about 0:00:06 left" in told
    assert rest == ["running  doc-5 0:00  doc-6 0:00", "failed   doc-4: ValueError: no such page"]
    assert "left" not in stopping[1]
    assert stopping[2:] == [*rest, "SIGINT: waiting for 2 items"]
    shown(Progress("run_finished", counts))


def test_what_it_is_given_to_show_more_is_shown() -> None:
    began = time.time() - 90.0
    shown = RichProgress(
        terminal(),
        name="night",
        keys=lambda: [CredentialState("alice", state="dead", why="401"), CredentialState("bob")],
        parallel=2,
        waiting=lambda: 0,
        running=lambda: [("doc-1", began), ("doc-2", began)],
        last_line={"doc-1": "Reading"}.get,
        forecast=lambda count: 100.0 * count,
    )

    shown(started())
    shown(finished(stats(4)))

    name, _, told, *rest = drawn(shown)
    assert name == "night"
    assert "about 0:10:00 left" in told
    assert rest == [
        "bound by: -j 2 (all workers busy)",
        "keys     alice  dead                 401",
        "         bob    available  ────────",
        "running  doc-1  1:30  Reading",
        "         doc-2  1:30",
    ]
    shown.close()


def test_whoever_fails_to_tell_is_left_out_of_the_picture() -> None:
    def fails(*_: object) -> Never:
        raise RuntimeError

    shown = RichProgress(terminal(), keys=fails, running=fails, last_line=fails, forecast=fails)
    shown(replace(started(), running=("doc-1",)))
    shown(Progress("item_retried", stats(5), running=("doc-1",)))

    _, told, *rest = drawn(shown)

    assert "about 0:00:05 left" in told
    assert rest == ["running  doc-1 0:00"]
    shown.close()


def test_an_item_that_finished_is_no_longer_shown_as_running() -> None:
    shown = RichProgress(terminal())
    shown(replace(started(), running=("a", "b")))

    shown(finished(stats(1), "a"))

    assert "running  b 0:00" in drawn(shown)
    shown(Progress("run_finished", stats(1)))


def test_an_item_runs_since_it_was_first_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = RichProgress(terminal())
    now = time.time()
    for later, ids in enumerate([("a",), ("a", "b"), ("b",)]):
        monkeypatch.setattr(time, "time", lambda later=later: now + 10.0 * later)
        shown(Progress("item_retried", stats(), running=ids))

    assert "running  b 0:10" in drawn(shown)
    shown.close()


def test_a_hold_is_shown_until_the_run_goes_on() -> None:
    shown = RichProgress(terminal())
    shown(started())

    shown(Progress("held", stats(), message="the disk is full"))
    held = drawn(shown)
    shown(Progress("going_on", stats()))

    assert "the disk is full" in held
    assert "the disk is full" not in drawn(shown)
    shown(Progress("run_finished", stats(1)))


def test_the_end_of_the_run_clears_the_region_and_leaves_failures_and_a_summary() -> None:
    screen = FakeTerminal(100)
    shown = RichProgress(terminal(file=screen, color_system=None), name="night", failures=1)
    shown(started())
    shown(finished(stats(1, failed=1), "doc-1", "first"))
    shown(finished(stats(2, failed=2), "doc-2", "second"))

    shown(Progress("run_finished", stats(10, failed=2)))

    assert screen.shown == [
        "failed   doc-2: second",
        "night: 8 of 10 done, 2 failed",
        "took 0:00:05, 2.0 items/s",
    ]
    assert screen.cursor_is_shown
    assert not any(thread.name == "agentos-display" for thread in threading.enumerate())


def test_lines_pass_above_the_region_and_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("_GATHER", "_LONGEST_GONE"):
        monkeypatch.setattr(f"agentos.runs.display.live_region.{patience}", 60.0)  # however slow the console is
    screen, out = FakeTerminal(100), io.StringIO()
    console = terminal(file=screen, color_system=None)
    shown = RichProgress(console)
    shown(started())

    shown.write_above("stdout", "[a] one")
    shown.write_above("stderr", "[b] two\n")
    console.print("three, printed by somebody who has the same console")
    shown(Progress("run_finished", stats(10)))
    shown.write_above("stderr", "four")
    monkeypatch.setattr(sys, "stdout", out)
    shown.write_above("stdout", "five")

    assert screen.shown[:3] == ["[a] one", "[b] two", "three, printed by somebody who has the same console"]
    assert screen.shown[-1] == "four"
    assert out.getvalue() == "five\n"


def test_after_it_was_closed_nothing_is_shown_until_another_run_starts() -> None:
    screen = FakeTerminal(100)
    shown = RichProgress(terminal(file=screen, color_system=None))
    shown(started())
    shown.close()
    shown.close()

    shown(finished(stats(1)))
    shown(Progress("run_finished", stats(1)))
    closed = screen.shown
    shown(started())
    again = screen.shown
    shown.close()

    assert (closed, screen.cursor_is_shown) == ([""], True)
    assert "done 0, failed 0" in again[1]


def test_a_second_run_begins_afresh() -> None:
    console = terminal()
    shown = RichProgress(console)
    shown(started())
    shown(finished(stats(1, failed=1), "doc-1", "first"))
    shown(Progress("run_finished", stats(1, 1, failed=1)))

    shown(started())

    assert not any("doc-1" in line for line in drawn(shown))
    shown(Progress("run_finished", stats(10)))
    assert written(console).count("took 0:00:05") == 2


def test_a_run_that_starts_over_an_unfinished_one_takes_its_place() -> None:
    console = terminal()
    shown = RichProgress(console)
    shown(started())
    shown(started())
    shown(Progress("run_finished", stats(10)))

    assert written(console).count("\x1b[?25l") == written(console).count("\x1b[?25h") == 2


def test_without_failures_to_show_none_is_shown() -> None:
    shown = RichProgress(terminal(), failures=0)
    shown(started())
    shown(finished(stats(1, failed=1), "doc-1", "first"))

    assert not any("doc-1" in line for line in drawn(shown))
    shown(Progress("run_finished", stats(10)))


@pytest.mark.parametrize("failures", [-1, 1.5, True])
def test_a_senseless_number_of_failures_is_refused(failures: int) -> None:
    with pytest.raises(ValueError, match="failures"):
        RichProgress(failures=failures)


# -- what items bring along -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("brought", "shown_as"),
    [
        ("[bold red]x[/]", "[bold red]x[/]"),
        (":boom:", ":boom:"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;ZXZpbA==\x1b\\x", "x"),
        ("\x9b2Jx", "x"),
        ("\x1bcx", "x"),
        ("a\x00b\x08c\x7fd", "abcd"),
        ("a\rb\tc", "a b c"),
        ("a\u202eb\u200bc", "abc"),
        ("a\udcffb", "ab"),
        ("x" * 60, "x" * 37 + "..."),
        ("文" * 3, "文" * 3),
    ],
)
def test_ids_and_errors_are_shown_as_text_and_nothing_else(brought: str, shown_as: str) -> None:
    console = terminal(color_system=None)
    shown = RichProgress(console)
    shown(replace(started(), running=(brought,)))
    shown(finished(stats(1, failed=1), brought, "Error"))
    first = drawn(shown)
    shown(finished(stats(1, failed=1), "b", f"Error {brought}"))
    second = drawn(shown)
    shown(Progress("run_finished", stats(1, failed=1)))

    assert f"failed   {shown_as}: Error" in first
    if len(brought) < 60 and "\r" not in brought:
        assert f"         b: Error {shown_as}" in second


def test_a_console_that_knows_only_ascii_gets_only_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    console = Console(file=stream, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    shown = RichProgress(console)
    shown(replace(started(), running=("naïve",)))
    shown(finished(stats(1, failed=1), "文", "Fehler: ü"))
    shown(Progress("run_finished", stats(10, failed=1)))

    stream.flush()
    assert b"failed   " in stream.buffer.getvalue()
    assert b"\\u6587: Fehler: \\xfc" in stream.buffer.getvalue()


def test_long_lists_and_long_errors_take_one_line_each() -> None:
    shown = RichProgress(terminal())
    shown(replace(started(), running=("x" * 10_000, "b")))
    shown(finished(stats(1, failed=1), "a", "word " * 10_000))

    *_, running, another, failed = drawn(shown, width=61)

    assert running == f"running  {'x' * 37}... 0:00"
    assert another.split() == ["b", "0:00"]
    assert failed.startswith("failed   a: word word")
    assert failed.endswith("...")
    shown(Progress("run_finished", stats(10)))


def test_no_color_is_respected() -> None:
    console = terminal(_environ={"TERM": "xterm", "NO_COLOR": "1"})
    shown = RichProgress(console)
    shown(started())
    shown(finished(stats(1, failed=1), "a", "b"))
    shown(Progress("run_finished", stats(10)))

    assert "\x1b[31m" not in written(console)
    assert "\x1b[32m" not in written(console)


# -- elsewhere ------------------------------------------------------------------------------------------------


def test_off_a_terminal_there_are_plain_lines() -> None:
    console = plain()
    shown = RichProgress(console, name="night")

    shown(started())
    shown(finished(stats(1, failed=1), "doc-1", "first"))
    shown(Progress("run_finished", stats(10, failed=1)))

    assert written(console).splitlines() == [
        "Starting 10 items",
        "1/10 (10.0%): done 0, failed 1, 0:00:05, time left not known",
        "failed doc-1: first",
        "night: 9 of 10 done, 1 failed",
        "took 0:00:05, 2.0 items/s",
    ]


@pytest.mark.parametrize("out_is_a_terminal", [True, False])
def test_by_default_there_are_plain_lines_if_standard_output_is_a_pipe(
    out_is_a_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    err = TerminalText()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "stdout", TerminalText() if out_is_a_terminal else io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    shown = RichProgress()
    shown(started())
    shown(Progress("run_finished", stats(10)))

    assert ("\x1b" in err.getvalue()) == out_is_a_terminal
    assert "10 of 10 done" in err.getvalue()


def test_a_dumb_terminal_gets_plain_lines() -> None:
    console = terminal(_environ={"TERM": "dumb"})
    shown = RichProgress(console)
    shown(started())
    shown(Progress("run_finished", stats(10)))

    assert "\x1b" not in written(console)


# -- streams that go away -------------------------------------------------------------------------------------


class Breaking(io.StringIO):
    """A stream that fails from some moment on."""

    error: BaseException | None = None

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)

    def flush(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left"), ValueError("closed file")])
@pytest.mark.parametrize("force_terminal", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_stream_that_breaks_silences_the_display(error: BaseException, force_terminal: bool, at_once: bool) -> None:
    stream = Breaking()
    out, err = sys.stdout, sys.stderr
    shown = RichProgress(Console(file=stream, force_terminal=force_terminal, _environ={"TERM": "xterm"}))
    if at_once:
        stream.error = error

    shown(started())
    stream.error = error
    shown.write_above("stderr", "a line")
    for number in range(10):
        shown(finished(stats(number, failed=number), f"doc-{number}", "Error"))
    shown(Progress("run_finished", stats(10)))
    shown(started())
    shown(Progress("run_finished", stats(10)))

    assert (sys.stdout, sys.stderr) == (out, err)


def test_a_broken_pipe_of_the_process_itself_ends_nothing() -> None:
    script = """
import sys
from agentos.runs.display.rich_display import RichProgress
from agentos.runs.progress import Progress
from agentos.runs.results import ProgressStats
sys.stdin.read()
shown = RichProgress()
shown(Progress("run_started", ProgressStats(total=1), message="x"))
shown(Progress("run_finished", ProgressStats(total=1)))
print("went on")
"""
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writer, text=True
    )
    os.close(writer)
    os.close(reader)
    out, _ = child.communicate(timeout=50)

    assert out == "went on\n"


def test_prints_of_workers_to_a_file_stay_in_that_file(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal()
    shown = RichProgress(console)
    shown(started())
    print("mine")  # noqa: T201
    shown(Progress("run_finished", stats(10)))

    assert capsys.readouterr().out == "mine\n"
    assert "mine" not in written(console)


def test_without_rich_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, rich_display.__name__)

    with pytest.raises(ModuleNotFoundError, match="pip install rich"):
        importlib.import_module(rich_display.__name__)
