from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Where the command is started; after the test nothing of it may run, and nothing lie about."""
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.end()
    place.check()
