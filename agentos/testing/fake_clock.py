"""A clock that stands still until a test advances it, for threads and for event loops."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable

from ..util.clock import Sleeper

_NEVER = float("inf")


class FakeClock:
    """Pass it to a pool as ``clock=``. Threads that wait on it really sleep; only ``advance`` makes time pass.

    ``wall_offset`` is the difference of ``wall()`` and ``now()``; change it to set the wall clock.
    """

    def __init__(self, now: float = 1000.0, wall_offset: float = 1_700_000_000.0) -> None:
        self._changed = threading.Condition()
        self._now = now
        self.wall_offset = wall_offset
        self._sleepers: dict[int, tuple[float, Sleeper]] = {}
        self._alarms: dict[int, _FakeAlarm] = {}
        self._count = 0

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self.wall_offset

    def wait(self, sleeper: Sleeper, until: float) -> None:
        with self._changed:
            if self._now >= until:
                return
            self._count += 1
            number = self._count
            self._sleepers[number] = (until, sleeper)
            self._changed.notify_all()
        try:
            sleeper.acquire()
        finally:
            with self._changed:
                self._sleepers.pop(number, None)
                self._changed.notify_all()

    def call_at(self, loop: AbstractEventLoop, when: float, callback: Callable[[], object]) -> _FakeAlarm:
        with self._changed:
            self._count += 1
            alarm = self._alarms[self._count] = _FakeAlarm(loop, when, callback)
            if when <= self._now:
                self._fire(self._count)
            self._changed.notify_all()
        return alarm

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, and wake the threads and timers that are due."""
        with self._changed:
            self._now += seconds
            for number, (until, sleeper) in list(self._sleepers.items()):
                if until <= self._now:
                    del self._sleepers[number]
                    try:
                        sleeper.release()
                    except RuntimeError:
                        pass  # woken at the same moment
            for number, alarm in list(self._alarms.items()):
                if alarm.when <= self._now:
                    self._fire(number)
            self._changed.notify_all()

    def wait_for_sleepers(self, count: int, timeout: float = 10.0) -> None:
        """Block until at least *count* threads and timers wait on this clock."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.sleepers >= count, timeout):
                raise TimeoutError(f"{self.sleepers} of {count} sleepers came within {timeout}s")

    @property
    def sleepers(self) -> int:
        """The number of waiting threads and timers."""
        return len(self._sleepers) + sum(not alarm.cancelled for alarm in self._alarms.values())

    def _fire(self, number: int) -> None:
        alarm = self._alarms.pop(number)
        try:
            alarm.loop.call_soon_threadsafe(alarm.fire)
        except RuntimeError:
            pass  # the loop is closed


class _FakeAlarm:
    def __init__(self, loop: AbstractEventLoop, when: float, callback: Callable[[], object]) -> None:
        self.loop = loop
        self.when = when
        self.cancelled = False
        self._callback = callback

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        if not self.cancelled:
            self._callback()
