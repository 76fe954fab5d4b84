"""The clock interface: reading time and waiting on it in one object, so that tests can control both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Alarm(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None: ...


class Sleeper(Protocol):
    """A lock on which a thread sleeps; releasing it wakes the thread."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


class Clock(Protocol):
    """A monotonic clock that can also be waited on."""

    def now(self) -> float:
        """Return monotonic seconds, which all waits and limits use."""
        ...

    def wall(self) -> float:
        """Return epoch seconds, for people and for limits that reset at a time of day."""
        ...

    def wait(self, sleeper: Sleeper, until: float) -> None:
        """Block this thread until *sleeper* is released or the instant *until* has come."""
        ...

    def call_at(self, loop: AbstractEventLoop, when: float, callback: Callable[[], object]) -> Alarm:
        """Call *callback* in the thread of *loop* at the instant *when*."""
        ...


class SystemClock:
    """The clock of the operating system."""

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def wait(self, sleeper: Sleeper, until: float) -> None:
        if until == _NEVER:
            sleeper.acquire()
            return
        # A timed sleep ends some hundred microseconds late, with cold caches. So wake a little early and yield until
        # the instant has come.
        timeout = until - time.monotonic() - _EARLY
        if timeout > 0 and sleeper.acquire(True, min(timeout, threading.TIMEOUT_MAX)):
            return
        while time.monotonic() < until:
            if sleeper.acquire(False):
                return
            time.sleep(0)

    def call_at(self, loop: AbstractEventLoop, when: float, callback: Callable[[], object]) -> Alarm:
        # Not loop.call_at: a loop may use another clock. At most a day, or select() overflows; the callback then finds
        # that nothing is due yet and sets a new timer.
        return loop.call_later(min(max(0.0, when - time.monotonic()), _ONE_DAY), callback)


_NEVER = float("inf")
_ONE_DAY = 86_400.0
_EARLY = 0.000_2
