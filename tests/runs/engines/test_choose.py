"""Valid and invalid values of ``engine=``."""

from __future__ import annotations

import logging
import sys
import threading
from importlib import import_module
from typing import Any

import pytest

from agentos import NotPicklable, ParallelCoordinator
from agentos.runs.engines.engine_option import check_engine

from .engine_workers import double
from .sample_executors import ByHand


class Client:
    """A client of Dask, as far as its class tells."""

    __module__ = "distributed.client"


class Dask:
    __module__ = "agentos.runs.remote.dask_config"


@pytest.mark.parametrize(
    "engine",
    [
        None,
        ByHand(),
        "dask://127.0.0.1:8786",
        "tcp://127.0.0.1:8786",
        "tls://127.0.0.1:8786",
        Client(),
        type("Mine", (Client,), {})(),
        Dask(),
    ],
)
def test_what_can_run_items_is_taken(engine: Any) -> None:
    check_engine(engine)
    ParallelCoordinator(engine=engine)


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="the address of a Dask scheduler is such as"):
        ParallelCoordinator(engine="dask://")


@pytest.mark.parametrize("engine", ["ray://127.0.0.1", "", 3, ByHand, object(), type("Client", (), {})()])
def test_what_cannot_is_refused_with_a_list_of_what_can(engine: Any) -> None:
    with pytest.raises(ValueError, match=r"^engine must be an Executor .*'dask://host:port', a Client .*agentos\.Dask"):
        ParallelCoordinator(engine=engine)


@pytest.mark.parametrize("package", ["distributed", "cryptography"])
def test_without_a_package_that_a_cluster_takes_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    run = ParallelCoordinator(1, engine="dask://127.0.0.1:1")

    with (
        caplog.at_level(logging.INFO),
        pytest.raises(ImportError, match=rf"needs the package {package}: pip install distributed cryptography$"),
    ):
        run.execute_parallel([1], double, str)

    assert caplog.text == "", "it says that a run was stopped, and none had begun"


def test_a_worker_that_cannot_travel_is_refused_before_a_cluster_is_looked_for() -> None:
    import_module("distributed")
    lock = threading.Lock()

    def worker(item: int, credential: str | None) -> None:
        lock.acquire()

    with pytest.raises(NotPicklable, match=r"^the worker function .*cannot pickle '_thread.lock' object"):
        ParallelCoordinator(1, engine="dask://127.0.0.1:1").execute_parallel([1], worker, str)
