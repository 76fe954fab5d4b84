"""Limits of the simulated provider: a bucket that refills continuously, or a fixed window.

Deliberately independent of the pool's buckets: this one stores a level that rises, the pool stores an instant. Two
independent implementations that agree are better evidence than one that is used twice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# A level is a sum of many floats. A client that waited exactly as long as stated must not fail by the last digit.
ROUNDING = 1e-6


class LimitLevel(NamedTuple):
    """The state of one limit as stated to clients: amount per window, what is left, seconds until it is full."""

    limit: float
    remaining: float
    full_in: float


class ProviderBucket:
    """Holds *capacity*, starts full, and refills by *amount* per *window* seconds."""

    __slots__ = ("_amount", "_at", "_capacity", "_level", "_rate")

    def __init__(self, amount: float, window: float, capacity: float) -> None:
        self._amount = amount
        self._rate = amount / window
        self._capacity = capacity
        self._level = capacity
        self._at = 0.0

    def _rise(self, now: float) -> float:
        if now > self._at:
            self._level = min(self._capacity, self._level + (now - self._at) * self._rate)
            self._at = now
        return self._level

    def wait(self, need: float, now: float) -> float:
        """Return the seconds until *need* fits: 0 if it does now, infinite if it never will."""
        missing = need - self._rise(now)
        if missing <= ROUNDING:
            return 0.0
        return missing / self._rate if need <= self._capacity + ROUNDING else math.inf

    def take(self, need: float, now: float) -> None:
        """Take what fits by :meth:`wait`."""
        self._level = self._rise(now) - need

    def spill(self, now: float, *, whole: bool = False) -> None:
        """Take one for a refused call, or the rest of one (unless *whole*): refusals make no debt."""
        left = self._rise(now)
        if left >= 1 - ROUNDING or (left > 0 and not whole):
            self._level = max(0.0, left - 1)

    def give_back(self, amount: float, now: float) -> None:
        """Return what was not used, up to the capacity."""
        self._level = min(self._capacity, self._rise(now) + amount)

    def level(self, now: float) -> LimitLevel:
        """Return the level as the provider states it."""
        left = self._rise(now)
        return LimitLevel(self._amount, max(0.0, left), (self._capacity - left) / self._rate)


class Window:
    """Gives *amount* at the start of each window of *length* seconds, counted from the provider's start."""

    __slots__ = ("_amount", "_length", "_number", "_used")

    def __init__(self, amount: float, length: float) -> None:
        self._amount = amount
        self._length = length
        self._number = 0
        self._used = 0.0

    def _roll(self, now: float) -> None:
        number = int((now + ROUNDING) // self._length)
        if number > self._number:
            self._number = number
            self._used = 0.0

    def _rest(self, now: float) -> float:
        return max(0.0, (self._number + 1) * self._length - now)

    def wait(self, need: float, now: float) -> float:
        """Return the seconds until *need* fits: 0 if it does now, infinite if it never will."""
        self._roll(now)
        if self._used + need <= self._amount + ROUNDING:
            return 0.0
        return self._rest(now) if need <= self._amount else math.inf

    def take(self, need: float, now: float) -> None:
        """Take what fits by :meth:`wait`."""
        self._roll(now)
        self._used += need

    def spill(self, now: float, *, whole: bool = False) -> None:
        """Take one for a refused call, if there is one. A window has whole ones only."""
        self._roll(now)
        self._used = max(self._used, min(self._amount, self._used + 1))

    def give_back(self, amount: float, now: float) -> None:
        """Return what was not used, unless a new window has begun."""
        self._roll(now)
        self._used = max(0.0, self._used - amount)

    def level(self, now: float) -> LimitLevel:
        """Return the level as the provider states it."""
        self._roll(now)
        return LimitLevel(self._amount, max(0.0, self._amount - self._used), self._rest(now) if self._used else 0.0)


def build_bucket(amount: float | None, window: float, at_once: float, *, fixed: bool) -> ProviderBucket | Window | None:
    """Return the full bucket or fresh window of a limit; None without a limit."""
    if amount is None:
        return None
    return Window(amount, window) if fixed else ProviderBucket(amount, window, at_once)
