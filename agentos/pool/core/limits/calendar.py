"""A limit for each calendar day, with a reset at an hour of a time zone."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from .allowance import Allowance
from .base import FOREVER, LimitState, pack_instant, unpack_instant
from .spread import AT_ONCE, find_spacing

_DAY = 86_400.0
_LONGEST_DAY = 25 * 3600.0  # when daylight saving time ends


class WallTime:
    """The offset from ``now`` to wall-clock time; only calendar limits use it."""

    __slots__ = ("offset",)

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset


class CalendarWindow(LimitState):
    """An amount per day, reset at an hour of a time zone. A day is identified by the instant of its end."""

    __slots__ = ("allowance", "ends_at", "spacing", "took_at", "used", "wall")

    refills = False

    def __init__(self, limit: Limit, wall: WallTime) -> None:
        super().__init__(limit)
        self.wall = wall
        self.used = 0.0
        self.ends_at = -FOREVER  # epoch seconds
        self.spacing = find_spacing(limit)
        self.took_at = -FOREVER  # the last start
        self.allowance = Allowance(limit.amount, _DAY)

    def _roll(self, now: float) -> None:
        offset = self.wall.offset
        # The same subtraction as in ready_at, so that no rounding error separates them.
        if now >= self.ends_at - offset:
            self.used = 0.0
            self.ends_at = next_reset(self.limit, now + offset)
        elif self.ends_at - offset > now + _LONGEST_DAY:
            # The clock was set back by more than a day: keep the count and use the next reset.
            self.ends_at = next_reset(self.limit, now + offset)

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        self._roll(now)
        if self.used + extra + need <= max(self.allowance.value, min(need, self.largest)):
            if self.dimension or self.used < AT_ONCE:
                return now
            return max(now, self.took_at + self.spacing)
        return self.ends_at - self.wall.offset

    def take(self, need: float, now: float) -> float:
        self._roll(now)
        self.allowance.on_take(now)
        self.used += need
        self.took_at = now
        return self.ends_at

    @property
    def taken(self) -> float:
        return self.used

    def refuse(self, stamp: float | None, need: float, now: float, _lag: float = 0.0) -> None:
        """Note that a call was refused: it took nothing, and the day's amount was used up."""
        if stamp is not None:
            self.correct(stamp, -need, now)
            self.allowance.lower(self.used, now, burst_known=True)

    def undo(self, stamp: float, need: float) -> None:
        self.used -= need

    def correct(self, stamp: float, by: float, now: float) -> float:
        self._roll(now)
        if stamp == self.ends_at:
            self.used = max(0.0, self.used + by)
        return stamp

    def left(self, now: float) -> float:
        self._roll(now)
        return self.allowance.value - self.used

    def pack(self) -> dict[str, Any]:
        packed = {
            "ends_at": None if self.ends_at == -FOREVER else self.ends_at,
            "used": self.used,
            **self.allowance.pack(),
        }
        if self.used >= AT_ONCE and not self.dimension:
            packed["took_at"] = pack_instant(self.took_at)
        return packed

    def unpack(self, packed: Mapping[str, Any]) -> None:
        ends_at = packed["ends_at"]
        self.ends_at = -FOREVER if ends_at is None else float(ends_at)
        self.used = float(packed["used"])
        self.took_at = unpack_instant(packed.get("took_at"))
        self.allowance.unpack(packed)

    def reset(self) -> None:
        self.used, self.took_at = 0.0, -FOREVER
        self.allowance.reset()


def next_reset(limit: Limit, wall: float) -> float:
    """Return the first reset of a day limit after the instant *wall* (both in epoch seconds)."""
    zone = limit.zone()
    here = datetime.datetime.fromtimestamp(wall, zone)
    reset = limit.reset_time()
    for day in range(3):
        at = datetime.datetime.combine(here.date() + datetime.timedelta(days=day), reset, zone).timestamp()
        if at > wall:
            return at
    raise AssertionError("a day has no reset")  # pragma: no cover
