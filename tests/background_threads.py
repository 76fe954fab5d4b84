"""Threads whose outcome a test can wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
PATIENCE = 30.0  # for what takes no time on a machine that has nothing else to do


class Background(Generic[T]):
    """A call running in a thread of its own."""

    def __init__(self, call: Callable[[], T], name: str | None = None) -> None:
        self._value: list[T] = []
        self._error: list[BaseException] = []
        self._call = call
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error.append(error)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        """Wait for the call to end, but no longer than that."""
        self._thread.join(timeout)

    def result(self) -> T:
        """Wait for the call to end, and return or raise what it did."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call is still waiting"
        if self._error:
            raise self._error[0]
        return self._value[0]
