"""What the system says of a process."""

from __future__ import annotations

from pathlib import Path


def state_of(pid: int) -> str:
    """The letter of /proc, or "X" for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_stopped(pid: int) -> bool:
    """Whether it runs no instruction until SIGCONT.

    A shell that starts a command by vfork is shown as "D", not "T", while the child it waits for is stopped before
    its exec.
    """
    state = state_of(pid)
    return state == "T" or (state == "D" and any(state_of(child) == "T" for child in _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
