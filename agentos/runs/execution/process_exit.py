"""Register the owner of the process exit: the command sets one, a program that uses the library does not.

In the command a forced stop ends the process, whatever threads are left: workers are not awaited, commands and child
processes are killed, and leases are released. In a program that continues, none of this may be done.
"""

from __future__ import annotations

import os
from typing import Protocol


class ProcessExitOwner(Protocol):
    """The owner of the process exit, as runs see it. Called from any thread; must not block for long."""

    def on_first_signal(self) -> None:
        """A run has accepted the first signal."""
        ...

    def begin(self, signum: int) -> None:
        """A run must end at once because of *signum*: the process ends within a second. Idempotent."""
        ...

    def on_workers_abandoned(self) -> None:
        """A run no longer waits for workers, and its commands are dead: kill the other child processes."""
        ...


owner: ProcessExitOwner | None = None  # None: runs must not end the process

# Child processes of agentos that end by themselves when this process does.
OWN_CHILDREN: set[int] = set()


def _after_fork_in_child() -> None:
    """Reset in a forked child: the owner and its child processes belong to the parent."""
    global owner
    owner = None
    OWN_CHILDREN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
