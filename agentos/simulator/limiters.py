"""Limiters of the simulated provider: token bucket, fixed window, sliding window and GCRA, each with any window.

They know no clock: every call passes *now*, in seconds, which never goes back. Deliberately independent of the pool's
limits: two independent implementations that agree are better evidence than one that is used twice.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, NamedTuple

# A level is a sum of many floats. A client that waited exactly as long as stated must not fail by the last digit.
ROUNDING = 1e-6

LimiterKind = Literal["bucket", "fixed", "sliding", "gcra"]


class LimitLevel(NamedTuple):
    """The state of one limit as stated to clients: its size, what is left, and the seconds until it resets.

    A bucket and GCRA reset when they are full, a fixed window at its end, and a sliding window when the oldest call
    leaves it.
    """

    limit: float
    remaining: float
    full_in: float


class Limiter:
    """What all limiters have in common. With *count_rejections* a refused call uses one up as well."""

    __slots__ = ("count_rejections",)

    def __init__(self, count_rejections: bool = False) -> None:
        self.count_rejections = count_rejections

    def admit(self, now: float, amount: float = 1.0) -> bool:
        """Admit a call and take its amount, or refuse it."""
        if self.wait(amount, now) == 0:
            self.take(amount, now)
            return True
        if self.count_rejections:
            self.spill(now)
        return False

    def retry_in(self, now: float, amount: float = 1.0) -> float:
        """Return the seconds until a call of that amount would be admitted."""
        return self.wait(amount, now)

    def wait(self, need: float, now: float) -> float:
        """Return the seconds until *need* fits: 0 if it does now, infinite if it never will."""
        raise NotImplementedError

    def take(self, need: float, now: float) -> None:
        """Take what fits by :meth:`wait`."""
        raise NotImplementedError

    def spill(self, now: float, *, whole: bool = False) -> None:
        """Count a refused call."""
        raise NotImplementedError

    def give_back(self, amount: float, now: float) -> None:
        """Return what was not used."""
        raise NotImplementedError

    def level(self, now: float) -> LimitLevel:
        """Return the level as such a limiter states it."""
        raise NotImplementedError

    def change(self, factor: float, now: float) -> None:
        """Make the limit *factor* times as large from now on. What is left stays, as far as it fits."""
        raise NotImplementedError


class TokenBucket(Limiter):
    """Holds *capacity* (by default *amount*), starts full, and refills by *amount* per *window* seconds."""

    __slots__ = ("_at", "_capacity", "_level", "_rate", "_stated")

    def __init__(
        self, amount: float, window: float, capacity: float | None = None, *, count_rejections: bool = False
    ) -> None:
        super().__init__(count_rejections)
        self._stated = amount
        self._rate = amount / window
        self._capacity = amount if capacity is None else capacity
        self._level = self._capacity
        self._at = 0.0

    def _rise(self, now: float) -> float:
        if now > self._at:
            self._level = min(self._capacity, self._level + (now - self._at) * self._rate)
            self._at = now
        return self._level

    def wait(self, need: float, now: float) -> float:
        missing = need - self._rise(now)
        if missing <= ROUNDING:
            return 0.0
        return missing / self._rate if need <= self._capacity + ROUNDING else math.inf

    def take(self, need: float, now: float) -> None:
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
        left = self._rise(now)
        return LimitLevel(self._stated, max(0.0, left), (self._capacity - left) / self._rate)

    def change(self, factor: float, now: float) -> None:
        self._rise(now)
        self._stated *= factor
        self._rate *= factor
        self._capacity *= factor
        self._level = min(self._level, self._capacity)


class FixedWindow(Limiter):
    """Gives *amount* at the start of each window of *length* seconds. One started *phase* seconds before 0."""

    __slots__ = ("_amount", "_length", "_number", "_phase", "_used")

    def __init__(self, amount: float, length: float, phase: float = 0.0, *, count_rejections: bool = False) -> None:
        super().__init__(count_rejections)
        self._amount = amount
        self._length = length
        self._phase = phase
        self._number = 0
        self._used = 0.0

    def _roll(self, now: float) -> None:
        number = int((now + self._phase + ROUNDING) // self._length)
        if number > self._number:
            self._number = number
            self._used = 0.0

    def _rest(self, now: float) -> float:
        return max(0.0, (self._number + 1) * self._length - self._phase - now)

    def wait(self, need: float, now: float) -> float:
        self._roll(now)
        if self._used + need <= self._amount + ROUNDING:
            return 0.0
        return self._rest(now) if need <= self._amount else math.inf

    def take(self, need: float, now: float) -> None:
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
        self._roll(now)
        return LimitLevel(self._amount, max(0.0, self._amount - self._used), self._rest(now) if self._used else 0.0)

    def change(self, factor: float, now: float) -> None:
        """Make the limit *factor* times as large, also for the rest of the present window."""
        self._roll(now)
        self._amount *= factor


class SlidingLog(Limiter):
    """Never gives more than *amount* in any *length* seconds: it keeps a log of what it gave.

    A counted refusal is logged like an admitted call, even beyond the amount: who does not wait is not admitted again.
    """

    __slots__ = ("_amount", "_length", "_log", "_used")

    def __init__(self, amount: float, length: float, *, count_rejections: bool = False) -> None:
        super().__init__(count_rejections)
        self._amount = amount
        self._length = length
        self._log: deque[tuple[float, float]] = deque()
        self._used = 0.0

    def _forget(self, now: float) -> None:
        log, before = self._log, now - self._length + ROUNDING
        while log and log[0][0] <= before:
            self._used -= log.popleft()[1]
        if not log:
            self._used = 0.0

    def wait(self, need: float, now: float) -> float:
        self._forget(now)
        excess = self._used + need - self._amount
        if excess <= ROUNDING:
            return 0.0
        if need > self._amount + ROUNDING:
            return math.inf
        for at, taken in self._log:
            excess -= taken
            if excess <= ROUNDING:
                return at + self._length - now
        return math.inf  # not reached: the log holds all that is used

    def take(self, need: float, now: float) -> None:
        self._forget(now)
        self._log.append((now, need))
        self._used += need

    def spill(self, now: float, *, whole: bool = False) -> None:
        self.take(1.0, now)

    def give_back(self, amount: float, now: float) -> None:
        """Return what was not used, from the newest entries of the log."""
        self._forget(now)
        while amount > 0 and self._log:
            at, taken = self._log.pop()
            back = min(taken, amount)
            amount -= back
            self._used -= back
            if taken > back:
                self._log.append((at, taken - back))

    def level(self, now: float) -> LimitLevel:
        self._forget(now)
        oldest = self._log[0][0] + self._length - now if self._log else 0.0
        return LimitLevel(self._amount, max(0.0, self._amount - self._used), oldest)

    def change(self, factor: float, now: float) -> None:
        """Make the limit *factor* times as large; what the log holds counts against it."""
        self._amount *= factor


class Gcra(Limiter):
    """The generic cell rate algorithm: one each ``window / amount`` seconds, and up to *capacity* at once.

    It keeps one instant, at which it will be full again, and states its capacity as the limit, as redis-cell does.
    """

    __slots__ = ("_capacity", "_each", "_full_at")

    def __init__(
        self, amount: float, window: float, capacity: float | None = None, *, count_rejections: bool = False
    ) -> None:
        super().__init__(count_rejections)
        self._each = window / amount
        self._capacity = amount if capacity is None else capacity
        self._full_at = 0.0

    def wait(self, need: float, now: float) -> float:
        if need > self._capacity + ROUNDING:
            return math.inf
        early = max(self._full_at, now) + (need - self._capacity) * self._each - now
        return early if early > ROUNDING * self._each else 0.0

    def take(self, need: float, now: float) -> None:
        self._full_at = max(self._full_at, now) + need * self._each

    def spill(self, now: float, *, whole: bool = False) -> None:
        """Take one for a refused call, or the rest of one (unless *whole*): refusals make no debt."""
        if not whole or self.wait(1.0, now) == 0:
            latest = now + self._capacity * self._each
            self._full_at = max(self._full_at, min(latest, max(self._full_at, now) + self._each))

    def give_back(self, amount: float, now: float) -> None:
        self._full_at -= amount * self._each

    def level(self, now: float) -> LimitLevel:
        full_in = max(0.0, self._full_at - now)
        return LimitLevel(self._capacity, max(0.0, self._capacity - full_in / self._each), full_in)

    def change(self, factor: float, now: float) -> None:
        left = self.level(now).remaining
        self._capacity *= factor
        self._each /= factor
        self._full_at = now + max(0.0, self._capacity - left) * self._each


def build_limiter(
    kind: LimiterKind,
    amount: float,
    window: float,
    *,
    capacity: float | None = None,
    phase: float = 0.0,
    count_rejections: bool = False,
) -> Limiter:
    """Return a fresh limiter of that kind. Only buckets and GCRA have a capacity, only fixed windows a phase."""
    if kind == "bucket":
        return TokenBucket(amount, window, capacity, count_rejections=count_rejections)
    if kind == "fixed":
        return FixedWindow(amount, window, phase, count_rejections=count_rejections)
    if kind == "sliding":
        return SlidingLog(amount, window, count_rejections=count_rejections)
    return Gcra(amount, window, capacity, count_rejections=count_rejections)
