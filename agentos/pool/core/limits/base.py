"""How much of a limit is left, and from when a request fits: three kinds of window, one set of questions.

Every kind does the same five: ``ready_at`` (from when does this much fit), ``reserve`` it if that is now, ``undo``
that, ``correct`` it (what was taken turned out to be another amount), and say what is ``left``. ``ready_at`` also
answers "and if *extra* were taken first", which is how the queue sees whether a later request would delay an
earlier one.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from ..cost import DIMENSIONS
from ..learning.usage_stats import UsageStats

FOREVER = float("inf")

# Instants are sums and differences of floats: a full bucket asked for all it holds may come out a hair short. A
# microsecond is far above such errors and far below anything a provider measures.
ROUNDING = 1e-6
_LONGEST_DAY = 25 * 3600.0  # with a change to winter time
_LONGEST_DEBT = 86_400.0  # seconds for which one request puts a limit out of use, at most, unless its window is longer
_PEAKS = 32


class WallTime:
    """What to add to ``now`` to get the hour of the day, as last told. Only calendar limits ask."""

    __slots__ = ("offset",)

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset


class LimitState:
    """One limit of one quota, with what is left of it. Plain numbers, so that a store can keep them."""

    __slots__ = ("dimension", "heaviest", "largest", "limit", "scope", "usage")

    refills = True  # by itself, within its window: worth keeping for the one who waits for it
    learned = False  # nobody stated it: it was found out

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.dimension = DIMENSIONS.index(limit.dimension)
        self.scope = limit.model
        self.largest = limit.largest
        self.heaviest = FOREVER  # what one request can take at most, whatever it is said to have used
        self.usage = UsageStats()

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        """The first instant, not before *now*, at which *need* fits, had *extra* been taken now."""
        raise NotImplementedError

    def reserve(self, need: float, now: float) -> Any:
        """Take *need* and return a stamp for it, or None if it does not fit now."""
        return self.take(need, now) if self.ready_at(need, now) <= now else None

    def take(self, need: float, now: float) -> Any:
        """Take *need*, whether or not it fits, and return a stamp by which it can be corrected."""
        raise NotImplementedError

    def undo(self, stamp: Any, need: float) -> None:
        """Forget what was taken last."""
        raise NotImplementedError

    def correct(self, stamp: Any, by: float, now: float) -> Any:
        """What was taken under *stamp* was *by* more (below zero: less) than thought. Returns its stamp from now on."""
        raise NotImplementedError

    def left(self, now: float) -> float:
        """How much could be taken now; below zero after an overrun."""
        raise NotImplementedError

    def pack(self) -> dict[str, Any]:
        """What is used, as plain data for a store. Stamps given out stay good for whoever unpacks it."""
        raise NotImplementedError

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Take over what a store kept."""
        raise NotImplementedError

    def reset(self) -> None:
        """Nothing is used: as if no request had ever been."""
        raise NotImplementedError


class Bucket(LimitState):
    """Continuous refill, kept as one number: the instant at which the bucket was (or will be) empty.

    Giving back what was reserved too much must not give back what the bucket could not have held: had it been taken
    right at once, the bucket might have been full since, and what runs over is lost. So the bucket remembers, of the
    takes after a given one, how far below full it was at the fullest (``_fullest``: a falling suffix minimum).
    """

    __slots__ = ("_fullest", "_takes", "empty_at", "fill_time", "seconds_each")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        assert limit.per != "day"  # noqa: S101 - for the type checker
        self.seconds_each = limit.per / limit.amount
        self.fill_time = limit.largest * self.seconds_each
        self.heaviest = heaviest(limit.largest, limit.per, self.seconds_each)
        self.empty_at = -FOREVER
        self._takes = 0
        self._fullest: list[tuple[int, float]] = []  # (number of the take, seconds below full), both ascending

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        empty_at = self.empty_at
        full = now - self.fill_time
        if empty_at < full:
            empty_at = full
        at = empty_at + (need + extra) * self.seconds_each
        return at if at > now + ROUNDING else now

    def reserve(self, need: float, now: float) -> tuple[float, int] | None:
        before = self.empty_at
        full = now - self.fill_time
        empty_at = (before if before > full else full) + need * self.seconds_each
        if empty_at > now + ROUNDING:
            return None
        self.empty_at = empty_at
        self._takes = number = self._takes + 1
        if self.dimension:  # of requests nothing to speak of is ever given back
            below = before - full if before > full else 0.0
            fullest = self._fullest
            if len(fullest) == 1 and fullest[0][1] >= below:
                fullest[0] = (number, below)  # what _remember does, in the case that is nearly every one
            else:
                self._remember(number, below)
        return before, number

    def take(self, need: float, now: float) -> tuple[float, int]:
        before = self.empty_at
        full = now - self.fill_time
        self.empty_at = max(before, full) + need * self.seconds_each
        self._takes += 1
        self._remember(self._takes, max(0.0, before - full))
        return before, self._takes

    def _remember(self, number: int, below: float) -> None:
        fullest = self._fullest
        while fullest and fullest[-1][1] >= below:
            fullest.pop()
        fullest.append((number, below))
        if len(fullest) > _PEAKS:
            # Forget the second oldest in favour of the oldest, which was fuller: gives back less, never more.
            fullest[0:2] = [(fullest[1][0], fullest[0][1])]

    def undo(self, stamp: tuple[float, int], need: float) -> None:
        self.empty_at = stamp[0]  # not by subtraction: a rounding error would put off whoever waits for this instant
        if not self.dimension:
            self._takes = stamp[1] - 1  # or who took before would get nothing back, though nobody took since

    def correct(self, stamp: tuple[Any, ...], by: float, now: float) -> tuple[Any, ...]:
        if by > 0:
            _, number = self.take(by, now)  # nobody could know of it before now
            return (*stamp, (number, by))
        if len(stamp) == 2:  # nothing was taken beyond what was reserved: nearly always
            if self._takes == stamp[1]:
                self.empty_at += by * self.seconds_each
            else:
                self._lessen(stamp[1], -by)
            return stamp
        before, number, *extras = stamp
        less = -by
        while extras and less > 0:  # what was taken last goes back first: others may have come between
            latest, amount = extras.pop()
            self._lessen(latest, min(amount, less))
            if less < amount:
                extras.append((latest, amount - less))
            elif self._takes == latest:
                self._forget_take()
            less -= amount
        if less > 0:
            self._lessen(number, less)
        return (before, number, *extras)

    def _lessen(self, number: int, by: float) -> None:
        if self._takes == number:
            self.empty_at -= by * self.seconds_each
        elif self.dimension:
            # Request buckets do not remember how full they were: they give nothing back once somebody else has taken.
            self.empty_at -= self._give_back(number, by * self.seconds_each)

    def _forget_take(self) -> None:
        """The last take was of nothing, as it turned out."""
        if self._fullest and self._fullest[-1][0] == self._takes:
            self._fullest.pop()
        self._takes -= 1

    def _give_back(self, number: int, seconds: float) -> float:
        """How much of *seconds* the bucket could have held ever since take *number*; later ones then find it fuller."""
        room = next((below for later, below in self._fullest if later > number), 0.0)
        seconds = min(seconds, room)
        fullest: list[tuple[int, float]] = []
        for later, below in self._fullest:
            if later > number:
                below -= seconds
            while fullest and fullest[-1][1] >= below:
                fullest.pop()
            fullest.append((later, below))
        self._fullest = fullest
        return seconds

    def left(self, now: float) -> float:
        return min(self.largest, (now - self.empty_at) / self.seconds_each)

    def drain(self, left: float, at: float) -> None:
        """The provider says that no more than so much was left at that instant."""
        self.empty_at = max(self.empty_at, at - left * self.seconds_each)

    def pack(self) -> dict[str, Any]:
        empty_at = None if self.empty_at == -FOREVER else self.empty_at
        return {"empty_at": empty_at, "takes": self._takes, "fullest": self._fullest}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        empty_at = packed["empty_at"]
        self.empty_at = -FOREVER if empty_at is None else float(empty_at)
        self._takes = packed["takes"]
        self._fullest = [(number, below) for number, below in packed["fullest"]]

    def reset(self) -> None:
        self.empty_at = -FOREVER  # takes stay counted: a lease in force may yet settle
        self._fullest = []


class SlidingWindow(LimitState):
    """Never more than the amount in any stretch of *per* seconds: each start is remembered that long."""

    __slots__ = ("_takes", "per", "starts", "used")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        assert limit.per != "day"  # noqa: S101 - for the type checker
        self.per = float(limit.per)
        self.used = 0.0
        self.starts: deque[list[float]] = deque()  # [instant, amount], oldest first
        self._takes = 0  # the number of the newest of them, which is its stamp

    def _forget(self, now: float) -> None:
        starts = self.starts
        while starts and starts[0][0] + self.per <= now:
            self.used -= starts.popleft()[1]
        if not starts:
            self.used = 0.0  # so that rounding does not add up

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        self._forget(now)
        over = self.used + extra + need - self.largest
        if over <= 0:
            return now
        for at, amount in self.starts:
            over -= amount
            if over <= 0:
                return at + self.per
        return now + self.per

    def take(self, need: float, now: float) -> int:
        self._forget(now)
        self.starts.append([now, need])
        self.used += need
        self._takes += 1
        return self._takes

    def undo(self, stamp: int, need: float) -> None:
        self.starts.pop()
        self.used -= need
        self._takes -= 1

    def correct(self, stamp: int, by: float, now: float) -> int:
        self._forget(now)
        place = stamp - self._takes - 1  # from the newest, which is -1
        if 0 < -place <= len(self.starts):
            self.starts[place][1] += by
            self.used += by
        return stamp

    def left(self, now: float) -> float:
        self._forget(now)
        return self.largest - self.used

    def pack(self) -> dict[str, Any]:
        return {"starts": list(self.starts), "takes": self._takes}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        self.starts = deque([float(at), float(amount)] for at, amount in packed["starts"])
        self.used = sum(amount for _, amount in self.starts)
        self._takes = packed["takes"]

    def reset(self) -> None:
        self.starts.clear()
        self.used = 0.0


class CalendarWindow(LimitState):
    """An amount for each day, new at an hour of a time zone. The period is known by the instant of its end."""

    __slots__ = ("ends_at", "used", "wall")

    refills = False

    def __init__(self, limit: Limit, wall: WallTime) -> None:
        super().__init__(limit)
        self.wall = wall
        self.used = 0.0
        self.ends_at = -FOREVER  # epoch seconds

    def _roll(self, now: float) -> None:
        offset = self.wall.offset
        # The same subtraction as in ready_at, so that the instant it named is never a rounding error short.
        if now >= self.ends_at - offset:
            self.used = 0.0
            self.ends_at = next_reset(self.limit, now + offset)
        elif self.ends_at - offset > now + _LONGEST_DAY:
            # The clock has been set back by more than a day: keep the count, wait for a reset that will come.
            self.ends_at = next_reset(self.limit, now + offset)

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        self._roll(now)
        if self.used + extra + need <= self.largest:
            return now
        return self.ends_at - self.wall.offset

    def take(self, need: float, now: float) -> float:
        self._roll(now)
        self.used += need
        return self.ends_at

    def undo(self, stamp: float, need: float) -> None:
        self.used -= need

    def correct(self, stamp: float, by: float, now: float) -> float:
        self._roll(now)
        if stamp == self.ends_at:
            self.used = max(0.0, self.used + by)
        return stamp

    def left(self, now: float) -> float:
        self._roll(now)
        return self.largest - self.used

    def pack(self) -> dict[str, Any]:
        return {"ends_at": None if self.ends_at == -FOREVER else self.ends_at, "used": self.used}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        ends_at = packed["ends_at"]
        self.ends_at = -FOREVER if ends_at is None else float(ends_at)
        self.used = float(packed["used"])

    def reset(self) -> None:
        self.used = 0.0


def heaviest(largest: float, per: float, seconds_each: float) -> float:
    """What one request takes of a limit that refills, at most: all of it, and what flows in within a day."""
    return largest + max(per, _LONGEST_DEBT) / seconds_each


def format_number(amount: float) -> str:
    """A number as people write it."""
    return f"{amount:,.0f}" if amount >= 1_000 else f"{amount:.4g}"


def next_reset(limit: Limit, wall: float) -> float:
    """The first reset of a day limit after the instant *wall* (epoch seconds), as epoch seconds."""
    zone = limit.zone()
    here = datetime.datetime.fromtimestamp(wall, zone)
    reset = limit.reset_time()
    for day in range(3):
        at = datetime.datetime.combine(here.date() + datetime.timedelta(days=day), reset, zone).timestamp()
        if at > wall:
            return at
    raise AssertionError("a day has no reset")  # pragma: no cover


def build_limit_state(limit: Limit, wall: WallTime) -> LimitState:
    """The fresh state of *limit*: nothing used yet."""
    if limit.per == "day":
        return CalendarWindow(limit, wall)
    if limit.window == "sliding":
        return SlidingWindow(limit)
    return Bucket(limit)
