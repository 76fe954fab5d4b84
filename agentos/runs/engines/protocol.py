"""What a run wants of the place where its workers run."""

from __future__ import annotations

from typing import Protocol

from ..core.records import Attempt
from ..execution.job_control import Suspendable


class Engine(Protocol):
    """Runs workers. Each fetches its next attempt from the run itself, runs it, and hands in what came of it."""

    clean_up: float  # how long an attempt that was asked to end may take to; then it is left behind

    @property
    def suspension(self) -> Suspendable | None:
        """What runs outside this process, and has to stop with it; None: nothing does."""
        ...

    def start(self, workers: int) -> None:
        """Let so many workers begin."""
        ...

    def replace(self) -> None:
        """One more worker, for one that was left behind."""
        ...

    def cancel(self, attempt: Attempt) -> bool:
        """Ask a running attempt to end. False: it cannot be stopped here, only left behind."""
        ...

    def kill(self) -> None:
        """The process ends: kill the commands that run on this machine, and wait until they are reaped."""
        ...

    def close(self) -> None:
        """The run is over. Must not wait for what was left behind."""
        ...
