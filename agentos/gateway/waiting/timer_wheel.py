"""One timer for all requests that wait: ten thousand timers of the event loop would cost more than the requests."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

_FEW: Final = 64  # cancelled timers that are not worth a clean-up


class WheelTimer:
    """A call that is due at some time. The function returns the seconds until its next call; None: no other."""

    __slots__ = ("_wheel", "call")

    def __init__(self, wheel: TimerWheel, call: Callable[[], float | None]) -> None:
        self._wheel = wheel
        self.call: Callable[[], float | None] | None = call

    def cancel(self) -> None:
        """Do not call the function any more, and forget it."""
        if self.call is not None:
            self.call = None
            self._wheel.note_cancelled()


class TimerWheel:
    """Calls functions when they are due, with one timer of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[tuple[float, int, WheelTimer]] = []
        self._number = 0
        self._cancelled = 0
        self._alarm: asyncio.TimerHandle | None = None

    def add(self, seconds: float, call: Callable[[], float | None]) -> WheelTimer:
        """Call *call* after *seconds*."""
        timer = WheelTimer(self, call)
        self._put(self._loop.time() + seconds, timer)
        self._arm()
        return timer

    def close(self) -> None:
        """Call nothing any more."""
        self._due.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def note_cancelled(self) -> None:
        """Forget the cancelled timers once they are many."""
        self._cancelled += 1
        if self._cancelled > _FEW and self._cancelled > len(self._due) // 2:
            self._due = [entry for entry in self._due if entry[2].call is not None]
            heapq.heapify(self._due)
            self._cancelled = 0

    def _put(self, at: float, timer: WheelTimer) -> None:
        self._number += 1
        heapq.heappush(self._due, (at, self._number, timer))

    def _arm(self) -> None:
        first = self._due[0][0]
        if self._alarm is not None:
            if self._alarm.when() <= first:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(first, self._run)

    def _run(self) -> None:
        self._alarm = None
        now = self._loop.time()
        while self._due and self._due[0][0] <= now:
            timer = heapq.heappop(self._due)[2]
            again = None if timer.call is None else timer.call()
            if again is not None and timer.call is not None:
                self._put(now + again, timer)
            else:
                timer.call = None
        if self._due:
            self._arm()
