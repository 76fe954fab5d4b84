"""The log of an item says how each attempt ended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentos import Command, Credential, CredentialCoordinator, ParallelCoordinator, RateLimited
from agentos.runs.output.capture import OutputCapture

from ..sample_runs import crashed, run


def log_of(folder: Path, item_id: str) -> list[str]:
    """The log without times: as they differ, each is written T."""
    text = (folder / "logs" / f"{item_id}.log").read_text()
    return [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|(?<=after )[\d.]+ m?s", "T", line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("script", "options", "lines"),
    [
        ("echo one", {}, ["one", "--- attempt 1 done after T ---"]),
        ("echo one; echo no >&2; exit 3", {}, ["one", "no", "--- attempt 1 failed after T: exit 3: no ---"]),
        ("echo one; kill -9 $$", {}, ["one", "--- attempt 1 killed by SIGKILL after T ---"]),
        ("echo one; sleep 60", {"timeout": 0.3}, ["one", "--- attempt 1 timed out after 0.3s ---"]),
    ],
)
def test_a_command_ends_with_its_exit_code_or_signal(
    tmp_path: Path, script: str, options: dict[str, Any], lines: list[str]
) -> None:
    command = Command(["sh", "-c", script], outputs=OutputCapture(tmp_path / "logs"))

    ParallelCoordinator(1, retries=0, **options).execute_parallel(["a"], command, str)

    assert log_of(tmp_path, "a") == ["--- attempt 1, T ---", *lines]


def test_a_function_ends_with_its_traceback_and_each_attempt_is_there(tmp_path: Path) -> None:
    errors: list[Exception] = [KeyError("nope"), ConnectionError("gone"), RateLimited(0.001)]

    def worker(item: str, credential: str) -> None:
        raise errors.pop()

    worker.outputs = OutputCapture(tmp_path / "logs")  # type: ignore[attr-defined]
    pool = CredentialCoordinator([Credential("sk-first-0123456789", name="k")])

    ParallelCoordinator(1, pool).execute_parallel(["a"], worker, str)

    lines = log_of(tmp_path, "a")
    assert [line for line in lines if line.startswith("--- ")] == [
        "--- attempt 1, T, key k ---",
        lines[1],
        "--- attempt 2, T, key k ---",
        next(line for line in lines if line.startswith("--- attempt 2 failed after T: ConnectionError: gone (")),
        "--- attempt 3, T, key k ---",
        lines[-1],
    ]
    assert re.match(r"--- attempt 1 rate-limited until \d\d:\d\d:\d\d after T: ", lines[1])
    assert re.match(r"--- attempt 3 failed after T: KeyError: 'nope' \(.*test_log_ends\.py:\d+ in ", lines[-1])
    assert lines[-2] == "KeyError: 'nope'"


def test_an_attempt_that_ended_with_kill_9_of_the_run_reads_interrupted_when_it_is_resumed(tmp_path: Path) -> None:
    crashed(tmp_path / "r")
    command = Command(["echo", "hello", "{}"], outputs=OutputCapture(tmp_path / "logs"))

    run(tmp_path / "r", ["a", "b", "bad-1", "slow", "later"], command)  # type: ignore[arg-type]

    assert log_of(tmp_path, "slow") == [
        "--- attempt 1, T ---",
        "--- attempt 1 interrupted: the run was killed ---",
        "--- attempt 2, T ---",
        "hello slow",
        "--- attempt 2 done after T ---",
    ]
