"""Time as the pool sees it: reading it and waiting on it, both from one object, so that tests can drive both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Alarm(Protocol):
    """Something that will happen at an instant, unless cancelled."""

    def cancel(self) -> None: ...


class Sleeper(Protocol):
    """What a thread sleeps on: a lock that is released to wake it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


class Clock(Protocol):
    """A monotonic clock that can also be waited on."""

    def now(self) -> float:
        """Seconds, monotonic: what every wait and every limit is measured by."""
        ...

    def wall(self) -> float:
        """Epoch seconds: for people, and for limits that reset at an hour of the day."""
        ...

    def wait(self, sleeper: Sleeper, until: float) -> None:
        """Block this thread until *sleeper* is released or the instant *until* has come, whichever is first."""
        ...

    def call_at(self, loop: AbstractEventLoop, when: float, callback: Callable[[], object]) -> Alarm:
        """Call *callback* on *loop*, from its own thread, at the instant *when*."""
        ...


class SystemClock:
    """The machine's own clock."""

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def wait(self, sleeper: Sleeper, until: float) -> None:
        if until == _NEVER:
            sleeper.acquire()
            return
        # A timed sleep ends some hundred microseconds late, and what runs then runs cold. So wake a little early and
        # yield until the instant has come.
        timeout = until - time.monotonic() - _EARLY
        if timeout > 0 and sleeper.acquire(True, min(timeout, threading.TIMEOUT_MAX)):
            return
        while time.monotonic() < until:
            if sleeper.acquire(False):
                return
            time.sleep(0)

    def call_at(self, loop: AbstractEventLoop, when: float, callback: Callable[[], object]) -> Alarm:
        # Not loop.call_at: a loop may keep another clock. A day at most, or select() overflows; the callback
        # finds that nothing is due yet and asks again.
        return loop.call_later(min(max(0.0, when - time.monotonic()), _ONE_DAY), callback)


_NEVER = float("inf")
_ONE_DAY = 86_400.0
_EARLY = 0.000_2
