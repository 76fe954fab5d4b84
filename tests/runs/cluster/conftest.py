"""What the tests of clusters share."""

from __future__ import annotations

import pytest

from . import workers
from .aside import Aside
from .seats import proxy, seating

__all__ = ["proxy", "seating"]


@pytest.fixture
def gates() -> workers.Gates:
    return workers.new_gates()


@pytest.fixture
def aside() -> Aside:
    return Aside()
