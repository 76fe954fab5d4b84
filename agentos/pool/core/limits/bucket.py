"""A limit that refills continuously (token bucket)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from .base import FOREVER, ROUNDING, LimitState

_LONGEST_DEBT = 86_400.0  # seconds for which one request can exhaust a limit, unless its window is longer
_PEAKS = 32
_JITTER, _UNEQUAL = 0.02, 0.1  # seconds by which calls arrive sooner or later; the share of an answer's time, at most


class Bucket(LimitState):
    """Continuous refill, stored as one number: the instant at which the bucket was (or will be) empty.

    A correction must not give back what the bucket could not have held: with the right amount taken at the start, the
    bucket might have been full since then, and the overflow is lost. So the bucket remembers the takes after a given
    one and how far below full it was at the fullest (``_fullest``, a falling suffix minimum).
    """

    __slots__ = ("_drained", "_fullest", "_guard", "_takes", "empty_at", "fill_time", "seconds_each")

    overflows = True

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        assert limit.per != "day"  # noqa: S101 - for the type checker
        self.seconds_each = limit.per / limit.amount
        self.fill_time = limit.largest * self.seconds_each
        self.heaviest = heaviest(limit.largest, limit.per, self.seconds_each)
        self.empty_at = -FOREVER
        self._drained = 0.0  # seconds by which the provider reported less than what own calls left
        self._guard = 0.0  # seconds that a full bucket is taken to lack: calls do not travel equally long
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
        if before <= full:
            self._drained = 0.0
            empty_at += self._guard
        self.empty_at = empty_at
        self._takes = number = self._takes + 1
        if self.dimension:  # request counts are hardly ever corrected downwards
            below = before - full if before > full else 0.0
            fullest = self._fullest
            if len(fullest) == 1 and fullest[0][1] >= below:
                fullest[0] = (number, below)  # _remember, inlined for the most frequent case
            else:
                self._remember(number, below)
        return before, number

    def take(self, need: float, now: float) -> tuple[float, int]:
        before = self.empty_at
        full = now - self.fill_time
        if before <= full:
            self._drained = 0.0
        self.empty_at = (before if before > full else full + self._guard) + need * self.seconds_each
        self._takes += 1
        self._remember(self._takes, max(0.0, before - full))
        return before, self._takes

    def _remember(self, number: int, below: float) -> None:
        fullest = self._fullest
        while fullest and fullest[-1][1] >= below:
            fullest.pop()
        fullest.append((number, below))
        if len(fullest) > _PEAKS:
            # Merge the two oldest into the fuller one: gives back less, never more.
            fullest[0:2] = [(fullest[1][0], fullest[0][1])]

    def undo(self, stamp: tuple[float, int], need: float) -> None:
        self.empty_at = stamp[0]  # not by subtraction: a rounding error would delay requests that wait for this instant
        if not self.dimension:
            self._takes = stamp[1] - 1  # else the take before could not be corrected, although it is the last

    def correct(self, stamp: tuple[Any, ...], by: float, now: float) -> tuple[Any, ...]:
        if by > 0:
            _, number = self.take(by, now)  # it was not known before now
            return (*stamp, (number, by))
        if len(stamp) == 2:  # nothing was added to the reservation: nearly always
            if self._takes == stamp[1]:
                self.empty_at += by * self.seconds_each
            else:
                self._lessen(stamp[1], -by)
            return stamp
        before, number, *extras = stamp
        less = -by
        while extras and less > 0:  # the last take is reverted first: other takes may lie between
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
            # Request buckets do not remember how full they were: they give nothing back after another take.
            self.empty_at -= self._give_back(number, by * self.seconds_each)

    def _forget_take(self) -> None:
        """Remove the last take, which turned out to be zero."""
        if self._fullest and self._fullest[-1][0] == self._takes:
            self._fullest.pop()
        self._takes -= 1

    def _give_back(self, number: int, seconds: float) -> float:
        """Return how much of *seconds* the bucket could have held since take *number*, and credit it to later takes."""
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

    @property
    def overflows_at(self) -> float:
        return self.empty_at + self.fill_time

    @property
    def taken(self) -> float:
        """How often something was taken."""
        return float(self._takes)

    def follow(self, left: float, now: float) -> None:
        """Set the level to what the provider reports as left, rounded down; up again only as far as it went down."""
        level = max(self.empty_at, now - self.fill_time)
        if level > self.empty_at:
            self._drained = 0.0  # it was full meanwhile
        lower = now - (left + 1.0) * self.seconds_each - level
        if lower > 0:
            self._drained += lower
        else:
            lower = -min(self._drained, max(0.0, level - (now - left * self.seconds_each)))
            self._drained += lower
        if lower:
            self.empty_at = level + lower

    def note_latency(self, seconds: float) -> None:
        """Note how long a call took: the next ones may arrive earlier after their start than this one did."""
        guard = min(_JITTER, self.seconds_each / 2, _UNEQUAL * seconds)
        if not self.dimension and guard > self._guard:
            self.empty_at += guard - self._guard  # it may have been full when the calls before this answer started
            self._guard = guard

    def refuse(self, stamp: Any, need: float, at: float, left: float = 0.0) -> None:
        """Note that a call that started then was refused: it took nothing, and only a part of a call was *left*."""
        if stamp is not None and not self.dimension:
            self.empty_at -= need * self.seconds_each
        # Calls do not reach the provider at the intervals at which they start: the next one might be early again.
        self._guard = 0.0 if self.dimension else min(_JITTER, self.seconds_each / 2)
        since = 0 if stamp is None or self.dimension else self._takes - stamp[1]
        self.empty_at = max(self.empty_at, at + self._guard + (since - left) * self.seconds_each)
        self._drained = 0.0

    def find_part_left(self, limit: float | None, resets_in: float) -> float:
        """Return what is left according to a reported bucket that is full then; out of range if it is another one."""
        return self.limit.largest - resets_in / self.seconds_each if limit == self.limit.largest else -1.0

    def pack(self) -> dict[str, Any]:
        empty_at = None if self.empty_at == -FOREVER else self.empty_at
        packed = {"empty_at": empty_at, "takes": self._takes, "fullest": self._fullest}
        if self._drained:
            packed["drained"] = self._drained
        if self._guard:
            packed["full_guard"] = self._guard
        return packed

    def unpack(self, packed: Mapping[str, Any]) -> None:
        empty_at = packed["empty_at"]
        self.empty_at = -FOREVER if empty_at is None else float(empty_at)
        self._takes = packed["takes"]
        self._drained, self._guard = packed.get("drained", 0.0), packed.get("full_guard", 0.0)
        self._fullest = [(number, below) for number, below in packed["fullest"]]

    def reset(self) -> None:
        self.empty_at = -FOREVER  # takes stay counted: a lease in force may still settle
        self._drained = self._guard = 0.0
        self._fullest = []


def heaviest(largest: float, per: float, seconds_each: float) -> float:
    """Return the most that one request takes of a limit that refills: all of it plus a day's refill."""
    return largest + max(per, _LONGEST_DEBT) / seconds_each
