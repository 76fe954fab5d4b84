"""Runs that are stopped by Ctrl-Z or ``kill -STOP``: their commands stop with them, and no key has two users."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
TTL = 3.0


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"it did not come to this: {what}"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


class Driver:
    """One run, in a process of its own."""

    def __init__(self, folder: Path, name: str, **told: Any) -> None:
        self._folder = folder
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.commands.suspended_child", json.dumps({"name": name, **told})],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def commands(self) -> list[int]:
        """The process ids of its commands, in the order of their start."""
        path = self._folder / f"{self.name}.pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def wait_for_command(self, number: int = 1) -> int:
        until(lambda: len(self.commands) >= number, f"command {number} of {self.name} has begun")
        return self.commands[number - 1]

    def let_go(self) -> None:
        (self._folder / f"{self.name}.go").touch()

    def results(self) -> list[list[Any]]:
        out, _ = self.process.communicate(timeout=PATIENCE)
        found: list[list[Any]] = json.loads(out)
        return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    started: list[Driver] = []

    def begin(name: str, **told: Any) -> Driver:
        started.append(Driver(tmp_path, name, **told))
        return started[-1]

    yield begin
    for driver in started:
        driver.process.kill()
        driver.process.wait()
        assert driver.process.stdout is not None
        driver.process.stdout.close()
    commands = [pid for driver in started for pid in driver.commands]
    until(lambda: all(state_of(pid) in "XZ" for pid in commands), "no command is left")


def shared(tmp_path: Path) -> dict[str, Any]:
    return {"store": f"sqlite:///{tmp_path / 'pool.sqlite'}", "ttl": TTL}


def ticks(tmp_path: Path) -> list[str]:
    path = tmp_path / "ticks"
    return path.read_text().split() if path.exists() else []


def assert_nobody_used_the_key_while(name: str, found: list[str]) -> None:
    """What the commands themselves wrote down: between the first and the last use by *name* there is no other."""
    first, last = found.index(name), len(found) - 1 - found[::-1].index(name)
    assert set(found[first : last + 1]) == {name}


def test_a_stopped_run_loses_its_key_only_after_its_commands_are_stopped(
    start: Callable[..., Driver], tmp_path: Path
) -> None:
    stopped = start("stopped", **shared(tmp_path))
    command = stopped.wait_for_command()
    stopped.signal(signal.SIGSTOP)
    until(lambda: state_of(command) == "T", "the command is stopped like its driver")
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
    assert state_of(command) == "T"
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
    until(lambda: state_of(command) == "T", "the command is stopped like its driver")
    stopped_at = time.monotonic()
    until(lambda: time.monotonic() > stopped_at + 2 * TTL, "both timeouts would be over")

    stopped.let_go()
    stopped.signal(signal.SIGCONT)

    assert stopped.results() == [["item", True, 1, None]]


def test_commands_of_a_suspended_run_that_is_killed_are_killed_without_going_on(
    start: Callable[..., Driver], tmp_path: Path
) -> None:
    stopped = start("stopped", **shared(tmp_path))
    command = stopped.wait_for_command()
    stopped.signal(signal.SIGSTOP)
    until(lambda: state_of(command) == "T", "the command is stopped like its driver")
    before = ticks(tmp_path)

    stopped.signal(signal.SIGKILL)

    until(lambda: state_of(command) in "XZ", "the command is killed")
    assert ticks(tmp_path) == before
