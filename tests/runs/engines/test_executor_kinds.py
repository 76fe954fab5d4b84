"""Executors are classified by their class."""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from importlib import import_module

from agentos.runs.engines.executor_kinds import ExecutorKind, classify_executor, find_dask_client

from .sample_executors import ByHand


def test_threads_are_in_this_process() -> None:
    assert classify_executor(ThreadPoolExecutor(3)) == ExecutorKind(in_process=True, local=True, size=3)


def test_processes_are_on_this_machine_and_have_our_main() -> None:
    executor = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))  # starts nothing yet

    assert classify_executor(executor) == ExecutorKind(local=True, same_main=True, size=2)


def test_loky_is_on_this_machine() -> None:
    loky = import_module("loky")

    assert classify_executor(loky.ProcessPoolExecutor(2)) == ExecutorKind(local=True, size=2)


def test_lokys_copy_in_joblib_is_known_too() -> None:
    """By its name alone: joblib need not be installed."""
    kind = type(
        "ProcessPoolExecutor", (Executor,), {"__module__": "joblib.externals.loky.process_executor", "_max_workers": 4}
    )

    assert classify_executor(type("Reusable", (kind,), {})()) == ExecutorKind(local=True, size=4)


def test_interpreters_are_on_this_machine_but_share_nothing() -> None:
    kind = type("InterpreterPoolExecutor", (ThreadPoolExecutor,), {"__module__": "concurrent.futures.interpreter"})

    assert classify_executor(kind(2)) == ExecutorKind(local=True, size=2)


def test_any_other_may_be_anywhere() -> None:
    assert classify_executor(ByHand()) == ExecutorKind(size=math.inf)


CLIENT_EXECUTOR = type("ClientExecutor", (Executor,), {"__module__": "distributed.cfexecutor"})


def test_dasks_own_sends_things_through_its_scheduler() -> None:
    assert classify_executor(CLIENT_EXECUTOR()) == ExecutorKind(scheduled=True)


def test_behind_dasks_own_is_its_client_and_where_its_tasks_may_run() -> None:
    executor = type("Mine", (CLIENT_EXECUTOR,), {})()
    executor._client = client = object()
    executor._kwargs = {"pure": True, "retries": 3, "workers": ["tcp://big:1"], "resources": {"GPU": 1}}

    assert find_dask_client(executor) == (client, {"workers": ["tcp://big:1"], "resources": {"GPU": 1}})


def test_behind_any_other_is_none() -> None:
    other = ByHand()
    other._client = object()  # type: ignore[attr-defined]

    assert find_dask_client(other) is None
    assert find_dask_client(CLIENT_EXECUTOR()) is None, "a Dask that keeps it elsewhere"
