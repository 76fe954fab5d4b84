"""The context of a remote worker has what a local one has."""

from __future__ import annotations

import logging
import socket
import threading
from enum import IntEnum
from pathlib import Path

import pytest

from agentos import Context, Usage
from agentos.runs.context import CheckpointFolder
from agentos.runs.remote.assignment import Assignment
from agentos.runs.remote.attempt_report import LogLine
from agentos.runs.remote.worker_context import RemoteContext
from agentos.runs.remote.worker_lease import LeaseMessage

from .sample_assignments import assignment


@pytest.fixture
def lines() -> list[LogLine]:
    return []


def context_of(made: Assignment, lines: list[LogLine], messages: list[LeaseMessage] | None = None) -> RemoteContext:
    sent: list[LeaseMessage] = [] if messages is None else messages
    return RemoteContext(made, None, threading.Event(), lines.append, sent.append)


def test_it_has_every_attribute_of_the_context_at_home(lines: list[LogLine]) -> None:
    at_home = Context("item-1", 3, None, threading.Event(), CheckpointFolder(None), 5)
    there = context_of(assignment(attempt=3, index=5), lines)

    public = {name for name in dir(at_home) if not name.startswith("_")}

    assert public == {name for name in dir(there) if not name.startswith("_")}
    assert (there.item_id, there.attempt, there.index) == (at_home.item_id, at_home.attempt, at_home.index)


def test_without_a_lease_usage_is_sent_for_the_result_but_settles_nothing(lines: list[LogLine]) -> None:
    messages: list[LeaseMessage] = []

    assert context_of(assignment(), lines, messages).settle(input_tokens=3, output_tokens=2) is False
    assert [message.billed for message in messages] == [Usage(input=3, output=2)]


def test_what_is_logged_goes_home_with_the_items_id(lines: list[LogLine]) -> None:
    context = context_of(assignment(log_level=logging.INFO), lines)

    context.log.info("page %d", 3)
    context.log.debug("nobody wants to know")

    assert [(line.level, line.text) for line in lines] == [(logging.INFO, "[item-1] page 3")]


def test_a_level_of_the_workers_own_is_a_number_at_home(lines: list[LogLine]) -> None:
    class Level(IntEnum):
        NOTABLE = 35

    context_of(assignment(), lines).log.log(Level.NOTABLE, "so")

    assert (lines[0].level, type(lines[0].level)) == (35, int)


def test_a_logged_exception_has_its_traceback(lines: list[LogLine]) -> None:
    context = context_of(assignment(), lines)

    try:
        raise ValueError("oh no")
    except ValueError:
        context.log.exception("it went wrong")

    assert "it went wrong" in lines[0].text
    assert "ValueError: oh no" in lines[0].text


def test_log_lines_beyond_the_limit_are_dropped_with_a_warning(lines: list[LogLine]) -> None:
    context = context_of(assignment(), lines)

    for number in range(3_000):
        context.log.warning("x" * 20_000 if number == 0 else "line")

    assert len(lines) == 1_001
    assert len(lines[0].text) == 10_000
    assert lines[-1].text == "it logged more than 1000 lines; the rest is left out"


def test_its_log_is_of_this_attempt_alone(lines: list[LogLine], caplog: pytest.LogCaptureFixture) -> None:
    """In a process where the driver is too, a line would else be told twice."""
    context_of(assignment(), lines).log.warning("once")

    assert len(lines) == 1
    assert caplog.records == []


def test_the_checkpoint_is_the_drivers_where_its_folder_is_on_this_machine(
    tmp_path: Path, lines: list[LogLine]
) -> None:
    context = context_of(assignment(checkpoint=str(tmp_path / "item-1")), lines)

    assert context.checkpoint == tmp_path / "item-1"


@pytest.mark.parametrize("path", [None, "/nowhere/at/all/item-1"])
def test_elsewhere_the_checkpoint_says_on_which_machine_it_is_missing(path: str | None, lines: list[LogLine]) -> None:
    context = context_of(assignment(checkpoint=path), lines)

    with pytest.raises(FileNotFoundError, match=f"not on {socket.gethostname()}: put the run's journal on a disk"):
        _ = context.checkpoint
