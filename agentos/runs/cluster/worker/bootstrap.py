"""How a seat gets to a worker of a cluster: as bytes that mean something only once its task has begun.

What a task is made of is read by the scheduler, and by the worker before the task begins. If either needs a package
that is not there, the worker ends, and all that it runs, and prints what it could not read. So ``build_slot_task`` is
made of nothing but the standard library, of no code that another Python would take for its own, and shows nothing of
itself.
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


def build_slot_task(post: DriverEndpoint, python: Python | None) -> tuple[Callable[..., Any], io.BytesIO]:
    """A function and its argument: called on a worker, it sits there until the run lets it go.

    It raises ImportError where agentos is missing, or if the worker's Python is not *python*; None: any will do.
    """
    return pickle.load, io.BytesIO(pickle.dumps(_PickledSlot(post, python)))


def start_slot(post: DriverEndpoint, python: Python | None) -> None:
    """Sit, if this is a place for it. Raises ImportError otherwise."""
    if python is not None and sys.version_info[:2] != python:
        here, there = platform.python_version(), ".".join(map(str, python))
        raise ImportError(f"{platform.node()} has Python {here}, and the run's is {there}: functions cannot travel")
    run_worker_slot(post)


class _PickledSlot:
    """Read on a worker, it is the call of ``start_slot``."""

    def __init__(self, post: DriverEndpoint, python: Python | None) -> None:
        self._arguments = post, python

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return start_slot, self._arguments
