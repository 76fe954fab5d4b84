"""An executor is known by its class, or not at all."""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from importlib import import_module

from agentos.runs.engines.executor_kinds import Place, dask_client_of, place_of

from .sample_executors import ByHand


def test_threads_are_in_this_process() -> None:
    assert place_of(ThreadPoolExecutor(3)) == Place(in_process=True, local=True, size=3)


def test_processes_are_on_this_machine_and_have_our_main() -> None:
    executor = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))  # starts nothing yet

    assert place_of(executor) == Place(local=True, same_main=True, size=2)


def test_loky_is_on_this_machine() -> None:
    loky = import_module("loky")

    assert place_of(loky.ProcessPoolExecutor(2)) == Place(local=True, size=2)


def test_lokys_copy_in_joblib_is_known_too() -> None:
    """By its name alone: joblib need not be installed."""
    kind = type(
        "ProcessPoolExecutor", (Executor,), {"__module__": "joblib.externals.loky.process_executor", "_max_workers": 4}
    )

    assert place_of(type("Reusable", (kind,), {})()) == Place(local=True, size=4)


def test_interpreters_are_on_this_machine_but_share_nothing() -> None:
    kind = type("InterpreterPoolExecutor", (ThreadPoolExecutor,), {"__module__": "concurrent.futures.interpreter"})

    assert place_of(kind(2)) == Place(local=True, size=2)


def test_any_other_may_be_anywhere() -> None:
    assert place_of(ByHand()) == Place(size=math.inf)


CLIENT_EXECUTOR = type("ClientExecutor", (Executor,), {"__module__": "distributed.cfexecutor"})


def test_dasks_own_sends_things_through_its_scheduler() -> None:
    assert place_of(CLIENT_EXECUTOR()) == Place(scheduled=True)


def test_behind_dasks_own_is_its_client_and_where_its_tasks_may_run() -> None:
    executor = type("Mine", (CLIENT_EXECUTOR,), {})()
    executor._client = client = object()
    executor._kwargs = {"pure": True, "retries": 3, "workers": ["tcp://big:1"], "resources": {"GPU": 1}}

    assert dask_client_of(executor) == (client, {"workers": ["tcp://big:1"], "resources": {"GPU": 1}})


def test_behind_any_other_is_none() -> None:
    other = ByHand()
    other._client = object()  # type: ignore[attr-defined]

    assert dask_client_of(other) is None
    assert dask_client_of(CLIENT_EXECUTOR()) is None, "a Dask that keeps it elsewhere"
