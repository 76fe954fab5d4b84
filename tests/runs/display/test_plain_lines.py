"""Progress in plain lines."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from agentos.pool.snapshot import CredentialState
from agentos.runs.display.plain_lines import PlainProgress
from agentos.runs.progress import Progress
from agentos.runs.results import ProgressStats, WorkflowResult

NOW = 1_763_220_600.0  # 15:30 UTC


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


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


def finished(counts: ProgressStats, error: str | None = None) -> Progress:
    return Progress("item_finished", counts, item_id="a", result=WorkflowResult("a", error is None, error))


def test_a_line_is_said_at_each_tenth_and_at_both_ends() -> None:
    stream = io.StringIO()
    said = PlainProgress(stream, name="night", now=lambda: NOW)

    said(started(1000))
    for number in range(1, 251):
        said(finished(stats(number, 1000, elapsed=number / 20)))
    said(Progress("stopping", stats(250, 1000), message="stop (once more to lose it)"))
    said(Progress("run_finished", stats(250, 1000)))

    assert stream.getvalue().splitlines() == [
        "Starting 10 items",
        "100/1000 (10.0%): done 100, failed 0, 0:00:05, about 0:00:45 left, done at 15:30",
        "200/1000 (20.0%): done 200, failed 0, 0:00:10, about 0:00:45 left, done at 15:30",
        "stop (once more to lose it)",
        "night: 250 of 1000 done, 0 failed",
        "took 0:00:05, 50 items/s",
        "left over: 750 not begun",
    ]


def test_tenths_that_come_faster_than_anybody_reads_are_one_line() -> None:
    stream = io.StringIO()
    said = PlainProgress(stream, name="night", now=lambda: NOW)

    said(started(10))
    for number in range(1, 11):
        said(finished(stats(number, 10, elapsed=number * 0.3)))

    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == ["Starting 10 items", "7/10 (70.0%)"]


def test_a_slow_run_says_a_line_every_30_seconds() -> None:
    stream = io.StringIO()
    said = PlainProgress(stream)

    said(started(None))
    for second in range(1, 100):
        said(finished(stats(second, None, elapsed=second)))

    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == ["Starting 10 items", "30", "60", "90"]


def test_while_nothing_happens_a_tick_tells_what_is_waited_for() -> None:
    stream = io.StringIO()
    keys = [CredentialState("k", state="cooling", rate_limited_until=NOW + 240.0)]
    said = PlainProgress(stream, keys=lambda: keys, forecast=lambda count: 600.0, now=lambda: NOW)
    said.tick()
    said(started())
    said.tick()
    said(finished(stats(9, elapsed=20.0)))
    said.tick()
    said._events.stats.end_time = 51.0

    said.tick()
    said.tick()

    assert stream.getvalue().splitlines()[2:] == [
        "9/10 (90.0%): done 9, failed 0, 0:00:51, about 0:10:00 left, done at 15:40; "
        "standing still, bound by: cooldowns (the only key; next at 15:34, in 4 min)"
    ]


def test_a_line_tells_the_speed_and_what_bounds_it() -> None:
    stream, now = io.StringIO(), [NOW]
    said = PlainProgress(stream, parallel=2, running=lambda: ["a", "b"], waiting=lambda: 0, now=lambda: now[0])

    said(started(100))
    for second in range(1, 11):
        now[0] = NOW + second
        said(finished(stats(second, 100, elapsed=float(second))))

    assert stream.getvalue().splitlines()[1].endswith("; 60 items/min, bound by: -j 2 (all workers busy)")


def test_a_run_that_stops_is_not_said_to_have_time_left() -> None:
    stream = io.StringIO()
    said = PlainProgress(stream)
    said(started())
    said(Progress("stopping", stats(4), message="stop"))

    assert stream.getvalue().splitlines()[1:] == ["stop", "4/10 (40.0%): done 4, failed 0, 0:00:05"]


def test_the_last_failures_are_told_at_the_end() -> None:
    stream = io.StringIO()
    said = PlainProgress(stream, failures=2)
    said(started())
    for number in range(3):
        said(finished(stats(1, 100, failed=1), f"exit {number}: \x1b[31mno\x1b[0m\nmore"))

    said(Progress("run_finished", stats(10, failed=3)))

    assert [line for line in stream.getvalue().splitlines() if line.startswith("failed")] == [
        "failed a: exit 1: no",
        "failed a: exit 2: no",
    ]


def test_after_it_was_closed_nothing_is_said_until_another_run_starts() -> None:
    stream = io.StringIO()
    said = PlainProgress(stream)
    said(started())
    said.close()

    said(finished(stats(5)))
    said(Progress("run_finished", stats(10)))
    said.tick()
    said(started())

    assert stream.getvalue().splitlines() == ["Starting 10 items"] * 2


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left"), ValueError("closed file")])
def test_a_stream_that_breaks_silences_it(error: Exception) -> None:
    class Broken(io.StringIO):
        tried = 0

        def write(self, text: str) -> int:
            self.tried += 1
            raise error

    stream = Broken()
    said = PlainProgress(stream)

    said(started())
    said(finished(stats(5)))
    said(Progress("run_finished", stats(10)))

    assert stream.tried == 1


def test_a_stream_that_knows_only_ascii_gets_only_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    said = PlainProgress(stream, name="nächtlich")
    said(started())
    said(Progress("run_finished", stats(10)))

    assert isinstance(stream.buffer, io.BytesIO)
    assert b"n\\xe4chtlich: 10 of 10 done" in stream.buffer.getvalue()


def test_a_program_without_standard_error_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    said = PlainProgress()

    said(started())
    said(Progress("run_finished", stats(10)))


def test_it_needs_no_rich() -> None:
    script = "import sys, agentos.runs.display.plain_lines; sys.exit('rich' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], timeout=50, check=False).returncode == 0
