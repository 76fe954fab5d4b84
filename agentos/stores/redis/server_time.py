"""The server's clock, as a process knows it that has a monotonic one of its own.

Every reply has the server's hour, which lies between the moments of sending and of receiving. While an estimate fits
in between it is kept, so that instants keep their meaning; else it is moved as little as may be. If it is off by more
than any drift, one of the clocks was set or stood still.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

_TOLERANCE: Final = 0.05  # of the time to live
_LONGEST_TOLERANCE: Final = 0.5


def tolerance(ttl: float) -> float:
    """How far the server's clock may be from where it is expected, without having been set."""
    return min(_LONGEST_TOLERANCE, _TOLERANCE * ttl)


def asleep_for() -> float:
    """For how long this machine has been asleep since it was started, as far as can be told: its clock stood still."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if boottime is None else time.clock_gettime(boottime) - time.clock_gettime(time.CLOCK_MONOTONIC)


def never_asleep() -> float:
    """The same for a clock that is no machine's."""
    return 0.0


class Heard(NamedTuple):
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
