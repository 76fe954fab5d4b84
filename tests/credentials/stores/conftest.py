"""What tests with real processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import Family, family


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
    """Where they all keep the pool's state."""
    return tmp_path / "pool.sqlite"
