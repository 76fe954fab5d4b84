"""What is known of an executor by its class: where its workers are, and how many."""

from __future__ import annotations

import math
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

# Of what an executor of Dask may have been made with: where its tasks may run.
_PLACING = ("workers", "allow_other_workers", "resources")


@dataclass(frozen=True, slots=True)
class ExecutorKind:
    """Where an executor runs things. ``size`` is how many at once; infinite where nobody can tell."""

    in_process: bool = False  # in threads of this very process: nothing has to travel
    local: bool = False  # on this machine, in processes that are ours: a secret may go there
    same_main: bool = False  # its processes have our ``__main__``
    scheduled: bool = False  # what goes there passes a scheduler, which keeps it and shows it
    size: float = math.inf


def classify_executor(executor: Executor) -> ExecutorKind:
    """What its class tells. One that is not known may be anywhere."""
    size = getattr(executor, "_max_workers", None)
    known = float(size) if isinstance(size, int) and size > 0 else math.inf
    names = _class_names(executor)
    if any(name.endswith(".InterpreterPoolExecutor") for name in names):
        return ExecutorKind(local=True, size=known)  # a pool of threads by descent, but each has a world of its own
    if isinstance(executor, ThreadPoolExecutor):
        return ExecutorKind(in_process=True, local=True, size=known)
    if isinstance(executor, ProcessPoolExecutor):
        return ExecutorKind(local=True, same_main=True, size=known)
    if "loky.process_executor.ProcessPoolExecutor" in names:
        return ExecutorKind(local=True, size=known)
    return ExecutorKind(scheduled=any(name.startswith("distributed.") for name in names))


def find_dask_client(executor: Executor) -> tuple[Any, dict[str, Any]] | None:
    """The client behind an executor of Dask, and where its tasks may run; None for any other, or if it cannot be had.

    Its tasks run again by themselves when their worker dies, which an executor cannot hinder and the Dask engine can.
    """
    if "distributed.cfexecutor.ClientExecutor" not in _class_names(executor):
        return None
    client = getattr(executor, "_client", None)
    if client is None:
        return None
    given = getattr(executor, "_kwargs", {})
    return client, {name: given[name] for name in _PLACING if name in given}


def _class_names(executor: Executor) -> set[str]:
    """Those of its class and of all that this descends from."""
    return {f"{kind.__module__.removeprefix('joblib.externals.')}.{kind.__name__}" for kind in type(executor).__mro__}
