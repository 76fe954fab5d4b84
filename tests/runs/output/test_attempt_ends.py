"""The lines with which a log begins and ends each attempt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agentos.runs.output.attempt_ends import PendingEnds, format_end
from agentos.runs.output.capture import OutputCapture

AT = time.mktime((2026, 11, 16, 3, 12, 40, 0, 0, -1))


@pytest.mark.parametrize(
    ("kind", "error", "facts", "line"),
    [
        ("done", None, {}, "done after 2.3 s"),
        (
            "failed",
            "'nope'",
            {"error_type": "KeyError", "place": "work.py:3 in ask"},
            "failed after 2.3 s: KeyError: 'nope' (work.py:3 in ask)",
        ),
        (
            "retry",
            "exit 3: boom",
            {"error_type": "CommandFailed"},
            "failed after 2.3 s: exit 3: boom; the item is retried",
        ),
        (
            "failed",
            "killed by SIGKILL",
            {"error_type": "CommandFailed", "signal": 9, "code": "SIGKILL"},
            "killed by SIGKILL after 2.3 s",
        ),
        ("failed", "timed out after 5s", {"error_type": "TimeoutError"}, "timed out after 5s"),
        (
            "limited",
            "too many",
            {"error_type": "RateLimitError", "trouble": "limited", "until": AT},
            "rate-limited until 03:12:40 after 2.3 s: RateLimitError: too many; the item waits",
        ),
        ("limited", "no", {"trouble": "rejected"}, "rejected after 2.3 s: no; the item waits"),
        ("limited", "no", {"trouble": "unreachable"}, "got no answer after 2.3 s: no; the item waits"),
        ("interrupted", "interrupted: SIGINT", {}, "interrupted after 2.3 s: SIGINT"),
    ],
)
def test_a_line_says_how_the_attempt_ended_and_how_long_it_took(
    kind: str, error: str | None, facts: dict[str, Any], line: str
) -> None:
    assert format_end(1, kind, 2.3, error, facts) == f"--- attempt 1 {line} ---"


def test_a_failure_ends_with_its_traceback() -> None:
    facts = {"error_type": "KeyError", "traceback": "Traceback ...\n  File \x1b[31m\nKeyError: 'x'\n"}

    assert format_end(2, "failed", 1.0, "'x'", facts).splitlines()[:3] == [
        "Traceback ...",
        "  File ",
        "KeyError: 'x'",
    ]


def log_of(folder: Path, item_id: str = "a") -> list[str]:
    path = folder / f"{item_id}.log"
    return path.read_text().splitlines() if path.exists() else []


def ended(outputs: OutputCapture, number: int, kind: str, **facts: Any) -> None:
    create = outputs.note_end("a", number, "k", kind, 1.0, "no", facts)
    if create is not None:
        outputs.write_ends("a", create=create)


def printed(outputs: OutputCapture, number: int, text: bytes) -> None:
    output = outputs.open("a", 0, number, "k")
    output.write("stdout", text)
    output.finish()


HEADINGS = [f"--- attempt {number}, 2026-11-16 03:12:40, key k ---" for number in range(4)]
EARLIER = [f"--- attempt {number}, 2026-11-16 03:12:39, key k ---" for number in range(4)]  # when a silent one began


@pytest.fixture
def outputs(tmp_path: Path) -> OutputCapture:
    return OutputCapture(tmp_path, wall=lambda: AT)


def test_an_attempt_that_printed_something_ends_with_how_it_ended(tmp_path: Path, outputs: OutputCapture) -> None:
    printed(outputs, 1, b"one\ntwo")
    ended(outputs, 1, "done")

    assert log_of(tmp_path) == [HEADINGS[1], "one", "two", "--- attempt 1 done after 1.0 s ---"]


def test_an_item_that_is_done_at_once_and_prints_nothing_has_no_log(tmp_path: Path, outputs: OutputCapture) -> None:
    ended(outputs, 1, "done")

    assert log_of(tmp_path) == []


def test_an_item_that_failed_has_a_log_even_if_it_printed_nothing(tmp_path: Path, outputs: OutputCapture) -> None:
    ended(outputs, 1, "failed", traceback="Traceback ...\n")

    assert log_of(tmp_path) == [EARLIER[1], "Traceback ...", "--- attempt 1 failed after 1.0 s: no ---"]


def test_silent_attempts_are_in_the_log_of_an_item_that_prints_later(tmp_path: Path, outputs: OutputCapture) -> None:
    ended(outputs, 1, "limited")
    ended(outputs, 2, "retry")
    assert log_of(tmp_path) == []

    printed(outputs, 3, b"at last\n")
    ended(outputs, 3, "done")

    assert log_of(tmp_path) == [
        EARLIER[1],
        "--- attempt 1 rate-limited after 1.0 s: no; the item waits ---",
        EARLIER[2],
        "--- attempt 2 failed after 1.0 s: no; the item is retried ---",
        HEADINGS[3],
        "at last",
        "--- attempt 3 done after 1.0 s ---",
    ]


def test_a_silent_end_is_added_to_a_log_that_exists(tmp_path: Path, outputs: OutputCapture) -> None:
    printed(outputs, 1, b"one\n")
    ended(outputs, 1, "limited")
    ended(outputs, 2, "done")

    assert log_of(tmp_path)[-2:] == [EARLIER[2], "--- attempt 2 done after 1.0 s ---"]


def test_the_next_attempt_never_prints_before_the_end_of_the_last(tmp_path: Path, outputs: OutputCapture) -> None:
    printed(outputs, 1, b"one\n")
    outputs.note_end("a", 1, "k", "retry", 1.0, "no", {})  # its thread has not written it yet
    printed(outputs, 2, b"two\n")
    outputs.write_ends("a", create=True)

    assert log_of(tmp_path) == [
        HEADINGS[1],
        "one",
        "--- attempt 1 failed after 1.0 s: no; the item is retried ---",
        HEADINGS[2],
        "two",
    ]


def test_an_attempt_that_was_killed_with_the_run_reads_interrupted_after_a_resume(
    tmp_path: Path, outputs: OutputCapture
) -> None:
    printed(outputs, 1, b"half a li")
    resumed = OutputCapture(tmp_path, wall=lambda: AT)
    resumed.note_killed("a", 1, AT, "k")
    printed(resumed, 2, b"two\n")

    assert log_of(tmp_path) == [
        HEADINGS[1],
        "half a li",
        "--- attempt 1 interrupted: the run was killed ---",
        HEADINGS[2],
        "two",
    ]


def test_one_that_printed_nothing_before_it_was_killed_is_listed_too(tmp_path: Path, outputs: OutputCapture) -> None:
    outputs.note_killed("a", 1, AT, "k")
    printed(outputs, 2, b"two\n")

    assert log_of(tmp_path)[:2] == [HEADINGS[1], "--- attempt 1 interrupted: the run was killed ---"]


def test_an_attempt_whose_start_was_not_recorded_reads_interrupted_too(tmp_path: Path, outputs: OutputCapture) -> None:
    printed(outputs, 1, b"one\n")
    printed(OutputCapture(tmp_path, wall=lambda: AT), 1, b"again\n")

    assert log_of(tmp_path)[2] == "--- the attempt above was interrupted ---"


def test_of_many_silent_attempts_the_last_are_kept() -> None:
    ends = PendingEnds()
    for number in range(100):
        ends.add("a", f"begin {number}", f"end {number}", printed=False)

    assert ends.take("a", b"").startswith(b"begin 80\nend 80\n")
