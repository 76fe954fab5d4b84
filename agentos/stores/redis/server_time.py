"""The server's clock, as a process knows it that has a monotonic one of its own.

Every reply has the server's hour, which lies between the moments of sending and of receiving. While an estimate fits
in between it is kept, so that instants keep their meaning; else it is moved as little as may be. If it is off by more
than any drift, one of the clocks was set or stood still.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from ...util.clock import Clock, SystemClock

if TYPE_CHECKING:
    from .resp_connection import RespConnection

_TOLERANCE: Final = 0.05  # of the time to live
_LONGEST_TOLERANCE: Final = 0.5
_FOREVER: Final = float("inf")


def clock_tolerance(ttl: float) -> float:
    """How far the server's clock may be from where it is expected, without having been set."""
    return min(_LONGEST_TOLERANCE, _TOLERANCE * ttl)


def read_suspend_time() -> float:
    """For how long this machine has been asleep since it was started, as far as can be told: its clock stood still."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if boottime is None else time.clock_gettime(boottime) - time.clock_gettime(time.CLOCK_MONOTONIC)


class ServerTimeReading(NamedTuple):
    """An hour of the server, and between which of our instants it was."""

    sent: float
    received: float
    hour: float

    def ahead(self) -> float:
        """How far the server's clock is ahead of ours, most likely."""
        return self.hour - (self.sent + self.received) / 2

    def nearest(self, ahead: float) -> float:
        """How far it may be ahead: what is nearest to *ahead* of all that can be."""
        return min(max(ahead, self.hour - self.received), self.hour - self.sent)


class ServerTime:
    """Reads the Redis server's own clock. A connection is given one of these, and the store asks it too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def read(self, wire: RespConnection) -> ServerTimeReading:
        """Ask the server for its time."""
        sent = self._clock.now()
        seconds, micros = wire.ask("TIME")
        return ServerTimeReading(sent, self._clock.now(), int(seconds) + int(micros) / 1e6)

    def imposed(self, sent: float) -> str:
        """The time that a script sent at *sent* has to use in place of the server's; "" for the server's own."""
        return ""

    def received(self, sent: float, hour: float) -> ServerTimeReading:
        """The reading in an answer that arrives now, to what was sent at *sent*."""
        return ServerTimeReading(sent, self._clock.now(), hour)

    def answered_at(self, sent: float) -> float:
        """The instant up to which an answer to a question of *sent* is known to be complete."""
        return sent

    def uptime(self, counted: float) -> float:
        """For how many seconds the server has been up at least, by what it counts: whole seconds, the last begun."""
        return max(0.0, counted - 1.0)

    def settling_time(self, seconds: float) -> float:
        """How long a new process waits until the others have noticed a change of the server's clock."""
        return seconds

    def asleep_for(self) -> float:
        """For how long this machine has been suspended since it was started."""
        return read_suspend_time()


class DrivenServerTime(ServerTime):
    """Imposes a clock that a test drives on the server: nothing happens between two instants of that clock."""

    def read(self, wire: RespConnection) -> ServerTimeReading:
        sent = self._clock.now()
        return ServerTimeReading(sent, sent, sent)

    def imposed(self, sent: float) -> str:
        return repr(sent)

    def received(self, sent: float, hour: float) -> ServerTimeReading:
        return ServerTimeReading(sent, sent, sent)

    def answered_at(self, sent: float) -> float:
        return -_FOREVER  # others may act at the same instant, after the answer

    def uptime(self, counted: float) -> float:
        return _FOREVER

    def settling_time(self, seconds: float) -> float:
        return 0.0

    def asleep_for(self) -> float:
        return 0.0


def server_time_for(clock: Clock) -> ServerTime:
    """The server's time for a pool with that clock: its own for the machine's clock, else that clock's."""
    return ServerTime(clock) if isinstance(clock, SystemClock) else DrivenServerTime(clock)
