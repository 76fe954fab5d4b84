"""The sequential test that tells refusals by chance from a limit that is stated too high, or that others use.

Two clocks differ by milliseconds, so that calls at the edge are refused now and then. This is Wald's test in Page's
form: each refusal counts for a limit that refuses one call in ten, each admitted call for one that refuses one in a
hundred, and the sum never falls below zero. Until it is decided, the calls that were admitted measure the rate.
"""

from __future__ import annotations

import math

from ..limits.base import FOREVER

# What a refusal and an admitted call count, and the sum at which the limit is doubted: the logarithms of 0.1 / 0.01, of
# 0.99 / 0.9, and of 500 to 1.
_STRIKE, _CLEARED_BY, _DOUBT = math.log(10.0), math.log(1.1), math.log(500.0)
_IN_FULL = 0.9  # of a rate that must be used for what was admitted to measure another one


class LimitDoubt:
    """The evidence against the known limits of one quota, since the refusal with which it began."""

    __slots__ = ("_last_at", "_last_taken", "_refused", "_since", "_since_taken", "suspicion")

    def __init__(self) -> None:
        self.suspicion = 0.0
        self._last_at = -FOREVER  # when the last refusal came that counts
        self._last_taken = 0.0  # what was taken until then
        self._since = self._since_taken = 0.0  # the same of the first one
        self._refused = 0.0  # calls since then

    def on_refusal(self, taken: float, started_at: float, now: float) -> bool:
        """Note that a call was refused after so much was *taken* in all. Return True if the limit is doubted."""
        self._refused += 1.0
        if started_at > self._last_at:  # else its burst is known
            admitted = max(0.0, taken - self._last_taken - 1.0)  # all but this one
            left = max(0.0, self.suspicion - _CLEARED_BY * admitted)
            if not left:
                self._since, self._since_taken, self._refused = now, taken, 0.0
            self.suspicion = left + _STRIKE
            self._last_at, self._last_taken = now, taken
        return self.suspicion >= _DOUBT

    def measure(self, rate: float) -> tuple[float, float]:
        """Return the calls that were admitted since the first of these refusals, when nothing was left, and seconds.

        Nothing if fewer were made than *rate* allows: something else held them back.
        """
        taken, elapsed = self._last_taken - self._since_taken, self._last_at - self._since
        return (taken - self._refused, elapsed) if taken + 1.0 >= _IN_FULL * rate * elapsed else (0.0, 0.0)
