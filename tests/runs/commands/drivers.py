"""Runs of commands in processes of their own that share one key, and what their commands wrote down of its use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
TTL = 3.0


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"it did not come to this: {what}"
        time.sleep(0.01)


class Driver:
    """One run, in a process of its own."""

    def __init__(self, folder: Path, name: str, *, as_a_job: bool = False, **told: Any) -> None:
        """*as_a_job*: of this process, as of a shell; the system does not stop others on SIGTSTP."""
        self._folder = folder
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.commands.suspended_child", json.dumps({"name": name, **told})],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=not as_a_job,
            process_group=0 if as_a_job else None,
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

    @property
    def helper(self) -> int:
        """The process id of its helper."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (found,) = [
            pid for pid in map(int, children) if "helper_process.py" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        return found

    def kill_with_helper(self) -> None:
        """Kill both, in an order in which neither notices the end of the other."""
        helper = self.helper
        self.signal(signal.SIGSTOP)
        os.kill(helper, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        self.process.wait()

    def let_go(self) -> None:
        (self._folder / f"{self.name}.go").touch()

    def results(self) -> list[list[Any]]:
        out, _ = self.process.communicate(timeout=PATIENCE)
        found: list[list[Any]] = json.loads(out)
        return found


def shared(tmp_path: Path) -> dict[str, Any]:
    return {"store": f"sqlite:///{tmp_path / 'pool.sqlite'}", "ttl": TTL}


def ticks(tmp_path: Path) -> list[str]:
    path = tmp_path / "ticks"
    return path.read_text().split() if path.exists() else []


def assert_nobody_used_the_key_while(name: str, found: list[str]) -> None:
    """What the commands themselves wrote down: between the first and the last use by *name* there is no other."""
    first, last = found.index(name), len(found) - 1 - found[::-1].index(name)
    assert set(found[first : last + 1]) == {name}
