"""A limit on every interval of *per* seconds (sliding window log)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from .base import LimitState


class SlidingWindow(LimitState):
    """At most the amount in any interval of *per* seconds: each start is kept that long."""

    __slots__ = ("_takes", "per", "starts", "used")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        assert limit.per != "day"  # noqa: S101 - for the type checker
        self.per = float(limit.per)
        self.used = 0.0
        self.starts: deque[list[float]] = deque()  # [instant, amount], oldest first
        self._takes = 0  # the number of the newest start, which is its stamp

    def _forget(self, now: float) -> None:
        starts = self.starts
        while starts and starts[0][0] + self.per <= now:
            self.used -= starts.popleft()[1]
        if not starts:
            self.used = 0.0  # so that rounding errors do not accumulate

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
