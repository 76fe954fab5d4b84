"""Cluster options are checked before any connection; which failures of a command are retried."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from agentos import Dask, Transient
from agentos.cli.session import item_worker
from agentos.cli.usage_error import UsageError
from agentos.errors import CommandFailed


def request(engine: str | None) -> Any:
    return SimpleNamespace(engine=engine, option={"ship_secrets": True}.__getitem__)


def test_without_a_cluster_there_are_no_cluster_options() -> None:
    assert item_worker.build_cluster_options(request(None)) == {}


@pytest.mark.parametrize("engine", ["dask://host:8786", "tls://[::1]:8786"])
def test_cluster_options_include_ship_secrets(engine: str) -> None:
    assert item_worker.build_cluster_options(request(engine)) == {"engine": Dask(engine), "ship_secrets": True}


@pytest.mark.parametrize("package", ["distributed", "cryptography"])
def test_without_a_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(UsageError, match=f"--engine needs the package {package}") as refused:
        item_worker.build_cluster_options(request("dask://host:8786"))

    assert refused.value.hint == "pip install distributed cryptography"


@pytest.mark.parametrize(
    ("error", "by_default", "with_retries"),
    [
        (TimeoutError("timed out after 5s"), False, True),
        (CommandFailed(reason="exit code 1", exit=1), False, True),
        (CommandFailed(reason="exit code 75", exit=75), True, True),
        (Transient("overloaded"), True, True),
        (ConnectionResetError(), True, True),
        (ValueError("a bug"), False, False),
    ],
)
def test_a_command_that_timed_out_is_retried_only_with_retries(
    error: Exception, by_default: bool, with_retries: bool
) -> None:
    def retries(given: int | None) -> bool:
        told: Any = SimpleNamespace(command=("agent",), option={"retries": given}.__getitem__)
        found: bool = item_worker.build_retry_options(told)["retry_if"](error)
        return found

    assert (retries(None), retries(2)) == (by_default, with_retries)
