from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ...process_state import state_of
from .drivers import Driver, until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    started: list[Driver] = []

    def begin(name: str, **told: Any) -> Driver:
        started.append(Driver(tmp_path, name, **told))
        return started[-1]

    yield begin
    for driver in started:
        driver.process.kill()
        driver.process.wait()
        assert driver.process.stdout is not None
        driver.process.stdout.close()
    commands = [pid for driver in started for pid in driver.commands]
    until(lambda: all(state_of(pid) in "XZ" for pid in commands), "no command is left")
