"""Engine: the protocol by which a run starts and ends its workers."""

from __future__ import annotations

from typing import Protocol

from ..core.records import Attempt
from ..execution.job_control import Suspendable


class Engine(Protocol):
    """Runs workers. Each worker fetches its next attempt from the run, executes it and finishes it there."""

    clean_up: float  # seconds for a cancelled attempt to end before it is abandoned

    @property
    def suspension(self) -> Suspendable | None:
        """The part of the engine that runs outside this process and must be suspended with it, if any."""
        ...

    def start(self, workers: int) -> None:
        """Start *workers* workers."""
        ...

    def replace(self) -> None:
        """Start one more worker, for one that was abandoned."""
        ...

    def cancel(self, attempt: Attempt) -> bool:
        """Cancel a running attempt. False: it cannot be stopped, only abandoned."""
        ...

    def kill(self) -> None:
        """Kill the commands that run on this machine, and wait until they are reaped: the process ends."""
        ...

    def close(self) -> None:
        """Close the engine: the run is over. Must not wait for abandoned attempts."""
        ...
