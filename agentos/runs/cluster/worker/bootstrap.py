"""Task that starts a worker slot on a cluster, as bytes that are decoded only once the task runs.

The scheduler deserializes a task, and so does the worker before the task begins. If either lacks a package, the worker
ends with everything it runs, and prints what it could not read. So ``build_slot_task`` uses only the standard library,
contains no code objects that depend on the Python version, and has a repr without contents.
"""

from __future__ import annotations

import io
import pickle
import platform
import sys
from collections.abc import Callable
from typing import Any

from .client import DriverEndpoint
from .slot import run_worker_slot

Python = tuple[int, int]


def build_slot_task(endpoint: DriverEndpoint, python: Python | None) -> tuple[Callable[..., Any], io.BytesIO]:
    """Return a function and its argument; the call runs a worker slot until the run dismisses it.

    It raises ImportError where agentos is missing, or if the worker's Python is not *python* (None accepts any).
    """
    return pickle.load, io.BytesIO(pickle.dumps(_PickledSlot(endpoint, python)))


def start_slot(endpoint: DriverEndpoint, python: Python | None) -> None:
    """Run a worker slot. Raise ImportError if this Python version does not fit."""
    if python is not None and sys.version_info[:2] != python:
        here, there = platform.python_version(), ".".join(map(str, python))
        raise ImportError(f"{platform.node()} has Python {here}, and the run's is {there}: functions cannot be sent")
    run_worker_slot(endpoint)


class _PickledSlot:
    """Unpickles to the call of ``start_slot``."""

    def __init__(self, endpoint: DriverEndpoint, python: Python | None) -> None:
        self._arguments = endpoint, python

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return start_slot, self._arguments
