"""The joblog has GNU parallel's nine columns, one line a job, also when a run goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentos.runs.exports.joblog import JobLog
from agentos.workflows.parallel import WorkflowResult

HEADER = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand"


def ended(index: int = 0, success: bool = True, **metadata: Any) -> WorkflowResult:
    return WorkflowResult("a", success, duration=1.25, index=index, metadata=metadata)


def columns(path: Path) -> list[list[str]]:
    header, *jobs = path.read_text().splitlines()
    assert header == HEADER
    return [line.split("\t") for line in jobs]


def logged(path: Path, *results: WorkflowResult, command: str = "echo a") -> list[list[str]]:
    log = JobLog(path)
    for result in results:
        log.add(result, command=command, started_at=1_794_755_700.5534, received=2)
    log.close()
    return columns(path)


def test_a_job_has_nine_columns(tmp_path: Path) -> None:
    (job,) = logged(tmp_path / "jobs", ended(index=4, exit=0, signal=None))

    assert job == ["5", ":", "1794755700.553", "     1.250", "0", "2", "0", "0", "echo a"]


@pytest.mark.parametrize(
    ("metadata", "success", "exit_and_signal"),
    [
        ({"exit": 3, "signal": None}, False, ["3", "0"]),
        ({"exit": None, "signal": 9}, False, ["0", "9"]),
        ({"exit": None, "signal": None}, False, ["-1", "0"]),
        ({"exit": -1, "signal": 15}, False, ["-1", "15"]),
        ({"error_type": "ValueError"}, False, ["1", "0"]),
        ({}, True, ["0", "0"]),
    ],
)
def test_how_a_job_ended_is_told_as_parallel_does(
    tmp_path: Path, metadata: dict[str, Any], success: bool, exit_and_signal: list[str]
) -> None:
    (job,) = logged(tmp_path / "jobs", ended(success=success, **metadata))

    assert job[6:8] == exit_and_signal


def test_a_run_that_goes_on_appends_without_a_second_header(tmp_path: Path) -> None:
    logged(tmp_path / "jobs", ended(0), ended(1))
    jobs = logged(tmp_path / "jobs", ended(2))

    assert [job[0] for job in jobs] == ["1", "2", "3"]


def test_results_of_an_earlier_run_are_not_logged_again(tmp_path: Path) -> None:
    again = ended(0)
    again.cached = True

    assert [job[0] for job in logged(tmp_path / "jobs", again, ended(1))] == ["2"]


def test_a_command_with_tabs_and_newlines_is_still_one_line(tmp_path: Path) -> None:
    (job,) = logged(tmp_path / "jobs", ended(), command="printf 'a\n\tb'\r\0")

    assert job[8:] == ["printf 'a  b'  "]


def test_a_torn_last_line_is_closed_before_the_next(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text(f"{HEADER}\n1\t:\t17")

    jobs = logged(tmp_path / "jobs", ended(1))

    assert [len(job) for job in jobs] == [3, 9]


def test_a_place_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = JobLog(tmp_path)
    log.add(ended(), command="echo", started_at=0.0)
    log.close()

    assert "the joblog" in caplog.text


# What GNU parallel 20221122 wrote for: parallel --joblog FILE 'exit {}' ::: 3
THEIRS = f"{HEADER}\n1\t:\t1794764403.299\t     0.003\t0\t0\t3\t0\texit 3\n"


def test_a_line_has_the_shape_of_gnu_parallels(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text(THEIRS)
    (theirs,) = columns(tmp_path / "theirs")
    (ours,) = logged(tmp_path / "ours", ended(exit=3, signal=None), command="exit 3")

    assert ours[:2] == theirs[:2]
    assert [re.sub(r"\d", "0", each) for each in ours[2:4]] == [re.sub(r"\d", "0", each) for each in theirs[2:4]]
    assert ours[6:] == theirs[6:]
