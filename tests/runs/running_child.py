"""`python -m tests.runs.running_child FOLDER`: a run whose last item waits for the end of standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from agentos.workflows.parallel import ParallelCoordinator

from .sample_runs import by_fate, by_name


def work(item: str, credential: str | None) -> object:
    if item == "slow":
        sys.stdout.write("running\n")
        sys.stdout.flush()
        sys.stdin.read()
    return by_fate(item, credential)


if __name__ == "__main__":
    coordinator = ParallelCoordinator(1, journal=Path(sys.argv[1]), worker_version="work", start="strict")
    coordinator.execute_parallel(["a", "b", "bad-1", "slow", "later"], work, by_name)
