"""What the tests of clusters share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from . import workers
from .seats import proxy, seating

__all__ = ["proxy", "seating"]


@pytest.fixture
def gates() -> workers.Gates:
    return workers.new_gates()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads
