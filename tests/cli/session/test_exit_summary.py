"""The exit code of a run, and the command to type next."""

from __future__ import annotations

import pytest

from agentos import Cause, ProgressStats
from agentos.cli.exit_codes import ExitCode
from agentos.cli.session.exit_summary import build_next_steps, describe_retry, exit_code


def stats(**facts: object) -> ProgressStats:
    return ProgressStats(**{"total": 10, "completed": 10, "success_count": 10, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({}, ExitCode.OK),
        ({"failed": 1}, ExitCode.SOME_FAILED),
        ({"cause": Cause.HALT, "failed": 1}, ExitCode.HALTED),
        ({"cause": Cause.DEADLINE}, ExitCode.HALTED),
        ({"cause": Cause.CREDENTIALS, "failed": 1}, ExitCode.NO_CREDENTIAL),
        ({"cause": Cause.PARKED}, ExitCode.PARKED),
        ({"cause": Cause.FAULT}, ExitCode.INTERNAL),
        ({"cause": Cause.SIGNAL, "stopped_by": "SIGINT", "failed": 1}, ExitCode.INTERRUPTED),
        ({"cause": Cause.SIGNAL, "stopped_by": "SIGTERM"}, ExitCode.TERMINATED),
    ],
)
def test_the_code_says_what_a_script_should_do_next(facts: dict[str, object], code: ExitCode) -> None:
    assert exit_code(stats(**facts)) is code


def test_a_second_signal_decides_whatever_the_counts_are() -> None:
    assert exit_code(stats(), KeyboardInterrupt()) is ExitCode.INTERRUPTED
    assert exit_code(stats(), SystemExit(143)) is ExitCode.TERMINATED


def words(code: ExitCode = ExitCode.OK, *, retried: bool = False, **facts: object) -> str:
    return "\n".join(
        build_next_steps(
            stats(**facts), code, name="nightly", again="agentos run x", retry="agentos retry nightly", retried=retried
        )
    )


def test_nothing_is_left_to_say_when_all_was_done_now() -> None:
    assert words() == ""


def test_a_finished_run_says_that_it_is_and_how_to_run_it_again() -> None:
    assert words(cached=10) == "all 10 done; --fresh runs again"
    assert "all 10 finished (2 failed)" in words(cached=10, failed=2)


def test_failures_can_be_looked_at_and_run_again() -> None:
    assert "agentos show nightly" in words(failed=2)
    assert "agentos retry nightly" in words(failed=2)
    assert "agentos retry" not in words(failed=2, retried=True)


@pytest.mark.parametrize(
    ("left", "failed", "text"),
    [
        (0, 1, "retry the failed item"),
        (0, 1_200, "retry the 1,200 failed items"),
        (9, 2, "run the 9 unfinished items and retry the 2 failed ones"),
        (1, 1, "run the unfinished item and retry the failed one"),
    ],
)
def test_a_retry_is_described_by_all_that_it_runs(left: int, failed: int, text: str) -> None:
    assert describe_retry(left, failed) == text
    first, second, *_ = words(failed=failed, completed=10 - left, total=10).splitlines()
    assert second == f"{text}:  agentos retry nightly"
    assert first.index("agentos") == second.index("agentos")


def test_what_is_left_goes_on_by_the_same_command() -> None:
    assert "3 items left; resume with the same command:  agentos run x" in words(completed=7)


def test_a_parked_run_says_from_when_on() -> None:
    said = words(ExitCode.PARKED, completed=7, wakes_at=1_800_000_000.0)

    assert "3 items waiting for rate limits that end at" in said
    assert "agentos run x" in said


def test_without_a_usable_key_the_keys_come_first() -> None:
    assert "agentos keys" in words(ExitCode.NO_CREDENTIAL, completed=7)


@pytest.mark.parametrize("cause", [Cause.SIGNAL, Cause.DEADLINE])
def test_a_stop_that_came_too_late_to_leave_anything_out_changes_nothing(cause: Cause) -> None:
    facts = {"cause": cause, "stopped_by": "SIGTERM"}

    assert exit_code(stats(**facts), total=10) is ExitCode.OK
    assert exit_code(stats(failed=1, **facts), total=10) is ExitCode.SOME_FAILED
    assert exit_code(stats(completed=9, **facts), total=10) is not ExitCode.OK
    assert exit_code(stats(**facts)) is not ExitCode.OK, "more might have come on standard input"
