"""Find and end commands that outlived an earlier session of a run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .helper_process import find_by_variable

_TIME_TO_END = 2.0
_POLL_INTERVAL = 0.02


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process that an item's command left behind when its run was killed."""

    pid: int
    item_id: str
    program: str

    def __str__(self) -> str:
        return f"{self.program} (pid {self.pid}, item {self.item_id})"


def find_orphans(folder: Path) -> list[Orphan]:
    """Return the processes that still run for items of the run with checkpoints in *folder*. Needs /proc."""
    return [
        Orphan(pid, variables.get("AGENTOS_ITEM_ID", "?"), _find_program(pid))
        for pid, variables in find_by_variable("AGENTOS_WORKFLOW_DB", f"{folder}{os.sep}")
    ]


def end_orphans(orphans: Sequence[Orphan]) -> None:
    """Ask the processes to end and kill those that do not: their items run again soon, with other keys."""
    for orphan in orphans:
        _signal(orphan.pid, signal.SIGTERM)
    until = time.monotonic() + _TIME_TO_END
    left = list(orphans)
    while left and time.monotonic() < until:
        time.sleep(_POLL_INTERVAL)
        left = [orphan for orphan in left if _is_alive(orphan.pid)]
    for orphan in left:
        _signal(orphan.pid, signal.SIGKILL)


def _find_program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "a process"


def _is_alive(pid: int) -> bool:
    try:
        # A zombie has ended, even if it has not been reaped.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it has ended, or belongs to another user
