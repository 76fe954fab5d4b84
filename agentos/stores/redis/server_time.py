"""Estimate the Redis server's clock from the local monotonic clock.

Every reply contains the server's time, which was read between sending and receiving. While the estimate fits in between
it is kept, so that converted instants stay the same; else it is moved as little as possible. If it is off by more than
drift can explain, one of the clocks was set or stood still.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from ...util.clock import Clock, SystemClock

if TYPE_CHECKING:
    from .resp_connection import RespConnection

_TOLERANCE: Final = 0.05  # fraction of the TTL
_LONGEST_TOLERANCE: Final = 0.5
_FOREVER: Final = float("inf")


def clock_tolerance(ttl: float) -> float:
    """Return how far the server's clock may be off without having been set."""
    return min(_LONGEST_TOLERANCE, _TOLERANCE * ttl)


def read_suspend_time() -> float:
    """Return how long this machine has been suspended since its boot, as far as the system shows it."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if boottime is None else time.clock_gettime(boottime) - time.clock_gettime(time.CLOCK_MONOTONIC)


class ServerTimeReading(NamedTuple):
    """A time of the server, and the local instants between which it was read."""

    sent: float
    received: float
    time: float

    def ahead(self) -> float:
        """Return the likeliest offset of the server's clock from ours."""
        return self.time - (self.sent + self.received) / 2

    def nearest(self, ahead: float) -> float:
        """Return the possible offset that is nearest to *ahead*."""
        return min(max(ahead, self.time - self.received), self.time - self.sent)


class ServerTime:
    """The Redis server's own clock, for the connection and the store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def read(self, resp: RespConnection) -> ServerTimeReading:
        """Read the server's time."""
        sent = self._clock.now()
        seconds, micros = resp.execute("TIME")
        return ServerTimeReading(sent, self._clock.now(), int(seconds) + int(micros) / 1e6)

    def imposed(self, sent: float) -> str:
        """Return the time that a script sent at *sent* must use; "" for the server's own."""
        return ""

    def received(self, sent: float, hour: float) -> ServerTimeReading:
        """Return the reading for a reply that arrives now, to a request of *sent*."""
        return ServerTimeReading(sent, self._clock.now(), hour)

    def answered_at(self, sent: float) -> float:
        """Return the instant up to which a reply to a request of *sent* is complete."""
        return sent

    def uptime(self, counted: float) -> float:
        """Return the minimum uptime; the server counts a second that has begun as a whole one."""
        return max(0.0, counted - 1.0)

    def settling_time(self, seconds: float) -> float:
        """Return how long a new process waits until the others have noticed a change of the server's clock."""
        return seconds

    def suspend_time(self) -> float:
        """Return how long this machine has been suspended since its boot."""
        return read_suspend_time()


class DrivenServerTime(ServerTime):
    """Replaces the server's clock by one that a test drives."""

    def read(self, resp: RespConnection) -> ServerTimeReading:
        sent = self._clock.now()
        return ServerTimeReading(sent, sent, sent)

    def imposed(self, sent: float) -> str:
        return repr(sent)

    def received(self, sent: float, hour: float) -> ServerTimeReading:
        return ServerTimeReading(sent, sent, sent)

    def answered_at(self, sent: float) -> float:
        return -_FOREVER  # others may act at the same instant after the reply

    def uptime(self, counted: float) -> float:
        return _FOREVER

    def settling_time(self, seconds: float) -> float:
        return 0.0

    def suspend_time(self) -> float:
        return 0.0


def server_time_for(clock: Clock) -> ServerTime:
    """Return the server's time for a pool with that clock: its own for the system clock, else that clock's."""
    return ServerTime(clock) if isinstance(clock, SystemClock) else DrivenServerTime(clock)
