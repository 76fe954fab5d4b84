"""Who ends the process, if it ends with its run: the command does, a program that uses the library does not.

In the command a forced stop is the end of the process, whatever threads are left. Then nobody waits for a worker, the
commands and child processes are killed, and leases are returned. In a program that goes on, none of this may be done.
"""

from __future__ import annotations

import os
from typing import Protocol


class ProcessExitOwner(Protocol):
    """The owner of this process, as its runs see it. Called from any thread; nothing here may block for long."""

    def on_first_signal(self) -> None:
        """A run has heeded the first signal."""
        ...

    def begin(self, signum: int) -> None:
        """A run must end at once because of *signum*: the process has a second left. Again: changes nothing."""
        ...

    def on_workers_abandoned(self) -> None:
        """A run waits for no worker any more, and its commands are dead: end the other child processes."""
        ...


owner: ProcessExitOwner | None = None  # None: the process is not ours to end

# Child processes that are part of agentos, and end by themselves when this process does.
OWN_CHILDREN: set[int] = set()


def _after_fork_in_child() -> None:
    """The owner, and the processes it has started, are the parent's."""
    global owner
    owner = None
    OWN_CHILDREN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
