"""What the tests of streams share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def quick_collection() -> Iterator[None]:
    """Collections that look only at what came later: the SDKs alone are a quarter of a million objects."""
    gc.freeze()
    yield
    gc.unfreeze()
