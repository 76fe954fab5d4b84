"""Choose the engine for a worker. Each is imported on demand: a command line starts faster without asyncio."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .engine_option import is_executor
from .protocol import Engine

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..execution.engine_run import EngineRun
    from ..options import RunOptions
    from ..worker import Worker


def build_engine(run: EngineRun) -> Engine:
    """Build the engine for a caller that waits on a thread. ``check_worker`` has checked that it can run the worker."""
    wanted = run.state.options.engine
    if wanted is not None:
        return _build_remote_engine(run, wanted)
    if run.worker.is_command:
        from .subprocesses import SubprocessEngine

        return SubprocessEngine(run)
    if run.worker.is_async:
        from .asyncio_tasks import AsyncioThreadEngine

        return AsyncioThreadEngine(run)
    from .threads import ThreadEngine

    return ThreadEngine(run)


def check_worker(worker: Worker, options: RunOptions) -> None:
    """Raise before the run starts if the engine that *options* name cannot run *worker*.

    ValueError and ``NotPicklable`` say what it cannot run, ImportError which package is not installed.
    """
    wanted = options.engine
    if wanted is not None and getattr(worker.call, "agent", None) is not None:
        raise ValueError("an Agent runs on this machine, where its sessions are: leave out engine=")
    if wanted is None:
        if worker.is_command and not hasattr(os, "posix_spawn"):
            raise ValueError("commands need a POSIX system (Linux, macOS): give this run a function instead")
    elif is_executor(wanted) and _find_dask(wanted) is None:
        from .executor import check_executor

        check_executor(wanted, worker, ship_secrets=options.ship_secrets)
    else:
        _check_cluster_options(worker)


def _check_cluster_options(worker: Worker) -> None:
    from ..remote.dask_config import PACKAGES, find_missing_package
    from ..remote.pickled import pack

    if (missing := find_missing_package()) is not None:
        raise ImportError(f"engine='dask://...' needs the package {missing}: pip install {PACKAGES}", name=missing)
    if not worker.is_command:
        import_module("cloudpickle")  # a dependency of Dask, loaded by the time the worker is packed
        pack(worker.call, "the worker function")


def _build_remote_engine(run: EngineRun, wanted: Any) -> Engine:
    placing: dict[str, Any] = {}
    if is_executor(wanted):
        if (behind := _find_dask(wanted)) is None:
            from .executor import ExecutorEngine

            return ExecutorEngine(run, wanted)
        wanted, placing = behind
    from ..remote.dask_config import Dask
    from .dask import dask_engine

    return dask_engine(run, wanted if isinstance(wanted, Dask) else Dask(wanted), **placing)


def _find_dask(executor: Executor) -> tuple[Any, dict[str, Any]] | None:
    from .executor_kinds import find_dask_client

    return find_dask_client(executor)
