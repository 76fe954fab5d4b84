"""Classify an executor by its class: where its workers run, and how many there are."""

from __future__ import annotations

import math
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

# Arguments of a Dask executor that restrict where its tasks run.
_PLACING = ("workers", "allow_other_workers", "resources")


@dataclass(frozen=True, slots=True)
class ExecutorKind:
    """The place where an executor runs its calls. ``size`` is how many at once; infinite if unknown."""

    in_process: bool = False  # in threads of this process: nothing is pickled
    local: bool = False  # on this machine, in our own processes: secrets may be sent
    same_main: bool = False  # its processes have our ``__main__``
    scheduled: bool = False  # calls pass a scheduler, which stores and shows them
    size: float = math.inf


def classify_executor(executor: Executor) -> ExecutorKind:
    """Classify an executor by its class. One of an unknown class may run anywhere."""
    size = getattr(executor, "_max_workers", None)
    known = float(size) if isinstance(size, int) and size > 0 else math.inf
    names = _class_names(executor)
    if any(name.endswith(".InterpreterPoolExecutor") for name in names):
        return ExecutorKind(local=True, size=known)  # a thread pool by class, but with isolated interpreters
    if isinstance(executor, ThreadPoolExecutor):
        return ExecutorKind(in_process=True, local=True, size=known)
    if isinstance(executor, ProcessPoolExecutor):
        return ExecutorKind(local=True, same_main=True, size=known)
    if "loky.process_executor.ProcessPoolExecutor" in names:
        return ExecutorKind(local=True, size=known)
    return ExecutorKind(scheduled=any(name.startswith("distributed.") for name in names))


def find_dask_client(executor: Executor) -> tuple[Any, dict[str, Any]] | None:
    """Return the client of a Dask executor, and where its tasks may run; None for any other executor.

    An executor's tasks are rerun by Dask when their worker dies; only the Dask engine can prevent that.
    """
    if "distributed.cfexecutor.ClientExecutor" not in _class_names(executor):
        return None
    client = getattr(executor, "_client", None)
    if client is None:
        return None
    given = getattr(executor, "_kwargs", {})
    return client, {name: given[name] for name in _PLACING if name in given}


def _class_names(executor: Executor) -> set[str]:
    """Return the qualified names of its class and all base classes."""
    return {f"{kind.__module__.removeprefix('joblib.externals.')}.{kind.__name__}" for kind in type(executor).__mro__}
