"""How a thread and how a task sleep until they are told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...util.clock import Alarm, Clock
from ...util.event_loop import running_loop
from ..core.limits.base import FOREVER
from ..core.records import Ticket

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future


class ThreadWaiter:
    """A thread that sleeps until it is woken, or until the instant it was armed for."""

    __slots__ = ("armed_at", "sleeper")

    def __init__(self) -> None:
        self.sleeper = threading.Lock()
        self.sleeper.acquire()
        self.armed_at = FOREVER

    def wake(self) -> bool:
        """Wake the thread. It looks for itself what has happened, so that waking it twice does no harm."""
        try:
            self.sleeper.release()
        except RuntimeError:
            pass  # it is awake already
        return True


class TaskWaiter:
    """A task that sleeps on a future of its own loop."""

    __slots__ = ("future", "loop", "registered", "ticket")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.ticket: Ticket | None = None
        self.registered = False  # counted in its loop's alarm
        self.future: Future[None] = loop.create_future()

    def sleep_again(self) -> None:
        self.future = self.loop.create_future()

    def wake(self) -> bool:
        """Wake the task. False: its loop is closed, and it will never run again."""
        return call_on(self.loop, self.set)

    def set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class LoopAlarm:
    """One timer per loop in which tasks wait, so that a loop that is stuck delays only its own."""

    __slots__ = ("_alarm", "_clock", "_fire", "armed_at", "loop", "waiting")

    def __init__(self, loop: AbstractEventLoop, clock: Clock, fire: Callable[[LoopAlarm], None]) -> None:
        self.loop = loop
        self.waiting = 0
        self.armed_at = FOREVER  # changed under the pool's lock only
        self._clock = clock
        self._fire = fire
        self._alarm: Alarm | None = None

    def wake(self) -> bool:
        """Set the timer to ``armed_at``, from whichever thread."""
        return call_on(self.loop, self._set)

    def _set(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self.waiting and self.armed_at < FOREVER:
            self._alarm = self._clock.call_at(self.loop, self.armed_at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._fire(self)


def call_on(loop: AbstractEventLoop, callback: Callable[[], None]) -> bool:
    """Call *callback* where the loop runs: at once from there, else as soon as the loop comes round. False: closed."""
    try:
        if loop.is_closed():
            return False
        if running_loop() is loop:
            callback()
        else:
            loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return False  # it closed in this very moment
    return True
