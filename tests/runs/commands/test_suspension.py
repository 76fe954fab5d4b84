"""Runs that are stopped by Ctrl-Z or ``kill -STOP``: their commands stop with them, and no key has two users."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ...process_state import is_stopped, state_of
from .drivers import TTL, Driver, assert_nobody_used_the_key_while, shared, ticks, until


def test_a_stopped_run_loses_its_key_only_after_its_commands_are_stopped(
    start: Callable[..., Driver], tmp_path: Path
) -> None:
    stopped = start("stopped", **shared(tmp_path))
    command = stopped.wait_for_command()
    stopped.signal(signal.SIGSTOP)
    until(lambda: is_stopped(command), "the command is stopped like its driver")
    other = start("other", **shared(tmp_path))
    until(lambda: ticks(tmp_path).count("other") > 5, "the other run uses the key")

    stopped.signal(signal.SIGCONT)  # while the other run has its key
    until(lambda: state_of(command) in "XZ", "the command that has lost its key is killed")
    other.let_go()
    assert other.results() == [["item", True, 1, None]]
    stopped.wait_for_command(2)
    stopped.let_go()

    assert stopped.results() == [["item", True, 2, None]]  # with retries=0: what was interrupted has cost no try
    assert_nobody_used_the_key_while("other", ticks(tmp_path))


def test_a_continued_run_takes_its_key_again_and_its_command_goes_on(
    start: Callable[..., Driver], tmp_path: Path
) -> None:
    stopped = start("stopped", **shared(tmp_path))
    command = stopped.wait_for_command()
    stopped.signal(signal.SIGSTOP)
    other = start("other", **shared(tmp_path))
    until(lambda: ticks(tmp_path).count("other") > 5, "the other run uses the key")
    assert is_stopped(command)
    other.let_go()
    assert other.results() == [["item", True, 1, None]]
    before = len(ticks(tmp_path))

    stopped.signal(signal.SIGCONT)
    until(lambda: len(ticks(tmp_path)) > before, "the command goes on")
    stopped.let_go()

    assert stopped.results() == [["item", True, 1, None]]
    assert stopped.commands == [command]
    assert_nobody_used_the_key_while("other", ticks(tmp_path))


def test_time_in_which_a_command_was_stopped_counts_for_no_timeout(
    start: Callable[..., Driver], tmp_path: Path
) -> None:
    # A silent command, and both timeouts long over by the time the run is continued.
    script = 'echo $$ >> "$1.pids"; while [ ! -e "$1.go" ]; do sleep 0.02; done'
    stopped = start("stopped", script=script, timeout=2 * TTL, idle_timeout=2 * TTL, **shared(tmp_path))
    command = stopped.wait_for_command()
    stopped.signal(signal.SIGSTOP)
    until(lambda: is_stopped(command), "the command is stopped like its driver")
    stopped_at = time.monotonic()
    until(lambda: time.monotonic() > stopped_at + 2 * TTL, "both timeouts would be over")

    stopped.let_go()
    stopped.signal(signal.SIGCONT)

    assert stopped.results() == [["item", True, 1, None]]


@pytest.mark.parametrize("function", [False, True])
def test_time_in_which_ctrl_z_stopped_a_run_counts_for_no_timeout(
    start: Callable[..., Driver], tmp_path: Path, function: bool
) -> None:
    stopped = start("stopped", as_a_job=True, function=function, timeout=TTL)
    worker = stopped.wait_for_command()
    stopped.signal(signal.SIGTSTP)
    until(lambda: is_stopped(worker) and is_stopped(stopped.process.pid), "driver and worker are stopped")
    stopped_at = time.monotonic()
    until(lambda: time.monotonic() > stopped_at + TTL, "the timeout would be over")

    stopped.let_go()
    stopped.signal(signal.SIGCONT)

    assert stopped.results() == [["item", True, 1, None]]


def test_commands_of_a_suspended_run_that_is_killed_are_killed_without_going_on(
    start: Callable[..., Driver], tmp_path: Path
) -> None:
    stopped = start("stopped", **shared(tmp_path))
    command = stopped.wait_for_command()
    stopped.signal(signal.SIGSTOP)
    until(lambda: is_stopped(command), "the command is stopped like its driver")
    before = ticks(tmp_path)

    stopped.signal(signal.SIGKILL)

    until(lambda: state_of(command) in "XZ", "the command is killed")
    assert ticks(tmp_path) == before
