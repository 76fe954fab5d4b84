"""A cluster engine without a cluster: its worker slots are threads of this process, which has the gates."""

from __future__ import annotations

import itertools
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from agentos.runs.cluster.driver.engine import ClusterEngine
from agentos.runs.cluster.worker.slot import WorkerJob
from agentos.runs.engines import choose
from agentos.runs.engines import executor as executor_engine
from agentos.runs.execution.engine_run import EngineRun
from agentos.runs.remote.pickled import PickledObject
from agentos.runs.worker import Worker

from ..runs.cluster.local_slots import ThreadSeating

_numbers = itertools.count(1)
_workers: weakref.WeakValueDictionary[int, Callable[..., Any]] = weakref.WeakValueDictionary()
_elsewhere, _check = choose._build_remote_engine, executor_engine.check_executor


class Seats(Executor):
    """The engine of the run: something that passes for a cluster."""

    def engine(self, run: EngineRun) -> ClusterEngine:
        width = run.state.options.max_workers if run.worker.is_async else 1
        return SeatedEngine(run, ThreadSeating(width=width), ttl=60.0)


class SeatedEngine(ClusterEngine):
    def _job(self, width: int) -> WorkerJob:
        number = next(_numbers)
        _workers[number] = self._run.worker.call
        return WorkerJob(
            PickledObject(pickle.dumps(_Reference(number))), is_async=self._run.worker.is_async, width=width
        )


class _Reference:
    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _worker, (self._number,)


def _worker(number: int) -> Callable[..., Any]:
    return _workers[number]


def _engine_elsewhere(run: EngineRun, wanted: Any) -> Any:
    return wanted.engine(run) if isinstance(wanted, Seats) else _elsewhere(run, wanted)


def _check_executor(executor: Executor, worker: Worker, *, ship_secrets: bool) -> None:
    if not isinstance(executor, Seats):  # to which any worker can go
        _check(executor, worker, ship_secrets=ship_secrets)


choose._build_remote_engine = _engine_elsewhere
executor_engine.check_executor = _check_executor
