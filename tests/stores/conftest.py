"""Fixtures of the tests with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.stores.redis import store_connection

from ..redis_server import PATIENCE
from .pool_processes import DrivenTime, Family, family


@pytest.fixture(scope="module")
def template() -> Iterator[Family]:
    """A process that has imported everything, and forks others on request."""
    with family() as made:
        yield made


@pytest.fixture
def processes(template: Family) -> Iterator[Family]:
    """The processes of one test: none outlives it."""
    yield template
    template.clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the location of the shared pool's state."""
    return tmp_path / "pool.sqlite"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of this process waits for its server as long as a machine needs that has other things to do."""
    monkeypatch.setattr(store_connection, "_LIMIT", PATIENCE)


@pytest.fixture
def driven(tmp_path: Path) -> DrivenTime:
    """The time of those processes that are to be told it by the test."""
    return DrivenTime(tmp_path / "time")
