"""Fixtures of the cluster tests."""

from __future__ import annotations

import pytest

from . import cluster_workers
from .background_call import Aside
from .local_slots import proxy, seating

__all__ = ["proxy", "seating"]


@pytest.fixture
def gates() -> cluster_workers.Gates:
    return cluster_workers.new_gates()


@pytest.fixture
def aside() -> Aside:
    return Aside()
