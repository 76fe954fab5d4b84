"""The ready-made display, on terminals and elsewhere."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from agentos.runs import display
from agentos.runs.display import RichProgress
from agentos.runs.progress import Progress
from agentos.runs.results import ProgressStats, WorkflowResult


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


def drawn(shown: RichProgress, width: int = 100) -> list[str]:
    """What the live region looks like now."""
    paper = Console(file=io.StringIO(), width=width, _environ={})
    paper.print(shown._draw())
    return [line.rstrip() for line in written(paper).splitlines()]


def test_the_live_region_shows_how_far_what_runs_and_what_failed() -> None:
    console = terminal()
    shown = RichProgress(console)
    counts = replace(stats(5, failed=1), retried=2, limited=3, cached=1)

    shown(started())
    shown(finished(counts, "doc-4", "ValueError: no such page\nat line 3"))
    shown(Progress("item_retried", counts, item_id="doc-5", running=("doc-5", "doc-6")))
    shown(Progress("stopping", counts, message="SIGINT: waiting for 2 items"))

    bar, *rest = drawn(shown)
    assert bar.startswith("━━━")
    assert bar.endswith("5/10 (50.0%)  0:00:05  about 0:00:06 left")
    assert rest == [
        "done 4, failed 1, retried 2, limited 3, cached 1",
        "running  doc-5, doc-6",
        "failed   doc-4: ValueError: no such page",
        "SIGINT: waiting for 2 items",
    ]
    shown(Progress("run_finished", counts))


def test_an_item_that_finished_is_no_longer_shown_as_running() -> None:
    shown = RichProgress(terminal())
    shown(replace(started(), running=("a", "b")))

    shown(finished(stats(1), "a"))

    assert "running  b" in drawn(shown)
    shown(Progress("run_finished", stats(1)))


def test_a_hold_is_shown_until_the_run_goes_on() -> None:
    shown = RichProgress(terminal())
    shown(started())

    shown(Progress("held", stats(), message="the disk is full"))
    held = drawn(shown)
    shown(Progress("going_on", stats()))

    assert "the disk is full" in held
    assert "the disk is full" not in drawn(shown)
    shown(Progress("run_finished", stats(1)))


def test_an_input_of_unknown_length_has_a_bar_but_no_end() -> None:
    shown = RichProgress(terminal())

    shown(started(None))
    shown(finished(stats(7, None)))

    assert drawn(shown)[0].endswith("  7  0:00:05  time left not known")
    shown(Progress("run_finished", stats(7)))


def test_the_end_of_the_run_clears_the_region_and_leaves_failures_and_a_summary() -> None:
    console = terminal(color_system=None)
    shown = RichProgress(console, failures=1)
    shown(started())
    shown(finished(stats(1, failed=1), "doc-1", "first"))
    shown(finished(stats(2, failed=2), "doc-2", "second"))
    drawing = [thread for thread in threading.enumerate() if "_RefreshThread" in type(thread).__name__]

    shown(Progress("run_finished", stats(10, failed=2)))

    assert written(console).endswith(
        "failed   doc-2: second\nExecution complete: total 10, succeeded 8, failed 2, duration 5.00s\n"
    )
    assert written(console).count("\x1b[?25l") == written(console).count("\x1b[?25h") == 1, "the cursor is back"
    for thread in drawing:
        thread.join(20.0)
        assert not thread.is_alive()


def test_a_second_run_begins_afresh() -> None:
    console = terminal()
    shown = RichProgress(console)
    shown(started())
    shown(finished(stats(1, failed=1), "doc-1", "first"))
    shown(Progress("run_finished", stats(1, 1, failed=1)))

    shown(started())

    assert not any("doc-1" in line for line in drawn(shown))
    shown(Progress("run_finished", stats(10)))
    assert written(console).count("Execution complete") == 2


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
        assert f"failed   b: Error {shown_as}" in second


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
    shown = RichProgress(terminal(width=30))
    shown(replace(started(), running=tuple(f"document-number-{number}" for number in range(20))))
    shown(finished(stats(1, failed=1), "a", "word " * 10_000))

    lines = drawn(shown, width=30)

    assert "running  document-number-0,..." in lines
    assert len([line for line in lines if line.startswith("failed ")]) == 1
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


def test_off_a_terminal_a_line_is_said_at_each_tenth_and_at_both_ends() -> None:
    console = plain()
    shown = RichProgress(console)

    shown(started(1000))
    for number in range(1, 251):
        shown(finished(stats(number, 1000)))
    shown(Progress("stopping", stats(250, 1000), message="stop"))
    shown(Progress("run_finished", stats(250, 1000)))

    assert written(console).splitlines() == [
        "Starting 10 items",
        "100/1000 (10.0%): done 100, failed 0, 0:00:05, about 0:00:45 left",
        "200/1000 (20.0%): done 200, failed 0, 0:00:05, about 0:00:20 left",
        "stop",
        "Execution complete: total 1000, succeeded 250, failed 0, duration 5.00s",
    ]


def test_off_a_terminal_a_slow_run_says_a_line_every_30_seconds() -> None:
    console = plain()
    shown = RichProgress(console)

    shown(started(None))
    for second in range(1, 100):
        shown(finished(stats(second, None, elapsed=second)))
    shown(Progress("run_finished", stats(100, None, elapsed=100)))

    said = [line.split(":")[0] for line in written(console).splitlines()]
    assert said == ["Starting 10 items", "30", "60", "90", "Execution complete"]


def test_a_dumb_terminal_gets_plain_lines() -> None:
    console = terminal(_environ={"TERM": "dumb"})
    shown = RichProgress(console)
    shown(started())
    shown(Progress("run_finished", stats(10)))

    assert "\x1b[?25l" not in written(console)


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
def test_a_stream_that_breaks_silences_the_display(
    error: BaseException, force_terminal: bool, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_broken_pipe(console: Console) -> None:
        raise SystemExit(1)  # rich's own also turns standard output of this process into /dev/null

    monkeypatch.setattr(Console, "on_broken_pipe", on_broken_pipe)
    stream = Breaking()
    out, err = sys.stdout, sys.stderr
    shown = RichProgress(Console(file=stream, force_terminal=force_terminal, _environ={"TERM": "xterm"}))
    if at_once:
        stream.error = error

    shown(started())
    stream.error = error
    if shown._live is not None:
        shown._live.refresh()
    for number in range(10):
        shown(finished(stats(number, failed=number), f"doc-{number}", "Error"))
    shown(Progress("run_finished", stats(10)))
    shown(started())
    shown(Progress("run_finished", stats(10)))

    assert (sys.stdout, sys.stderr) == (out, err)


def test_a_broken_pipe_of_the_process_itself_ends_nothing() -> None:
    script = """
import sys
from agentos.runs.display import RichProgress
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
    monkeypatch.delitem(sys.modules, display.__name__)

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'agentos-parallel\[display\]'"):
        importlib.import_module(display.__name__)
