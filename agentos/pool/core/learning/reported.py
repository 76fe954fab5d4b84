"""A limit that the provider reports in its answers: its size and how much is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from ..limits.base import FOREVER, ROUNDING, LimitState
from ..limits.bucket import heaviest

# Kept unused of what is reported as left: an answer is as old as its call, and counts may be rounded.
_SPARE = 1.0

_WINDOWS = (1.0, 10.0, 60.0, 3_600.0, 86_400.0)
_USUAL_WINDOW = 60.0
_TELLS = 0.2  # share of the limit in use from which the figures are meaningful


class ReportedLimit(LimitState):
    """Continuous refill, corrected by every answer.

    An answer describes the moment at which its call arrived. What was started since is taken, and what has flowed in
    since is available: so the bucket counts all it gave (``taken``), and each draw keeps the count of its time. A
    request that needs more than the limit holds starts when it is full.
    """

    __slots__ = ("empty_at", "fill_time", "heard_at", "heard_taken", "per", "seconds_each", "taken")

    learned = True

    def __init__(self, dimension: str, scope: str | None, amount: float, per: float) -> None:
        super().__init__(_limit(dimension, scope, amount, per))
        self.largest = FOREVER  # a learned limit never makes a request infeasible
        self.empty_at = -FOREVER
        self.taken = 0.0
        self.heard_at = -FOREVER  # start of the newest call whose answer was applied
        self.heard_taken = 0.0  # the count of that call
        self._measure(amount, per)

    def _measure(self, amount: float, per: float) -> None:
        self.per = per
        self.seconds_each = per / amount
        self.fill_time = per
        self.heaviest = heaviest(amount, per, self.seconds_each)

    # -- LimitState -------------------------------------------------------------------------------------------

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        need += extra
        before, most, full = self.empty_at, self.limit.amount, now - self.fill_time
        at = (before if before > full else full) + (need if need < most else most) * self.seconds_each
        return at if at > now + ROUNDING else now

    def reserve(self, need: float, now: float) -> tuple[float, float] | None:
        before, most, full = self.empty_at, self.limit.amount, now - self.fill_time
        empty_at = before if before > full else full
        if empty_at + (need if need < most else most) * self.seconds_each > now + ROUNDING:
            return None
        self.empty_at = empty_at + need * self.seconds_each
        self.taken += need
        return before, self.taken

    def take(self, need: float, now: float) -> tuple[float, float]:
        before = self.empty_at
        self.empty_at = max(before, now - self.fill_time) + need * self.seconds_each
        self.taken += need
        return before, self.taken

    def undo(self, stamp: tuple[float, float], need: float) -> None:
        self.empty_at = stamp[0]
        self.taken -= need

    def correct(self, stamp: tuple[float, float], by: float, now: float) -> tuple[float, float]:
        # Reports since the call began include its true cost. And ``taken`` keeps the amount as taken, or later draws
        # would seem to have taken another amount.
        if stamp[1] > self.heard_taken:
            self.empty_at = max(self.empty_at, now - self.fill_time) + by * self.seconds_each
        return stamp

    def left(self, now: float) -> float:
        return min(self.limit.amount, (now - self.empty_at) / self.seconds_each)

    # -- answers ----------------------------------------------------------------------------------------------

    def apply_reading(self, amount: float, per: float, remaining: float, started_at: float, since: float) -> None:
        """Apply that so much remained at *started_at*; *since* then that much was taken. Ignore older answers."""
        if started_at < self.heard_at:
            return
        self.heard_at = started_at
        self.heard_taken = self.taken - since
        if (amount, per) != (self.limit.amount, self.per):
            self.limit = _limit(self.limit.dimension, self.scope, amount, per)
            self._measure(amount, per)
        spare = min(_SPARE, amount / 10) if self.dimension == 0 else 0.0
        self.empty_at = started_at - (min(remaining, amount) - spare - since) * self.seconds_each

    def taken_since(self, stamp: tuple[float, float]) -> float:
        """Return what was taken after the draw with that stamp."""
        return max(0.0, self.taken - stamp[1])

    # -- storage ----------------------------------------------------------------------------------------------

    def pack(self) -> dict[str, Any]:
        return {
            "learned": ["told", self.limit.dimension, self.scope, self.limit.amount, self.per],
            "empty_at": None if self.empty_at == -FOREVER else self.empty_at,
            "heard_at": None if self.heard_at == -FOREVER else self.heard_at,
            "heard_taken": self.heard_taken,
            "taken": self.taken,
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        _, dimension, _, amount, per = packed["learned"]
        if (amount, per) != (self.limit.amount, self.per):
            self.limit = _limit(dimension, self.scope, amount, per)
            self._measure(amount, per)
        self.empty_at = -FOREVER if packed["empty_at"] is None else packed["empty_at"]
        self.heard_at = -FOREVER if packed["heard_at"] is None else packed["heard_at"]
        self.heard_taken, self.taken = packed["heard_taken"], packed["taken"]

    def reset(self) -> None:
        self.empty_at = -FOREVER


def _limit(dimension: str, scope: str | None, amount: float, per: float) -> Limit:
    return Limit(dimension, amount, per=per, burst=max(1.0, amount), model=scope)


def infer_window(limit: float, remaining: float, resets_in: float | None) -> float:
    """Infer the window of a limit from its figures: what was used is back after *resets_in* seconds.

    Only usual lengths are accepted, and a minute where the figures prove little: for a window that restarts at an
    instant, a little use early on would look like an hour.
    """
    used = limit - remaining
    if resets_in is None or resets_in <= 0 or used < _TELLS * limit:
        return _USUAL_WINDOW
    estimate = resets_in * limit / used
    return next((window for window in _WINDOWS if 0.7 <= estimate / window <= 1.4), _USUAL_WINDOW)
