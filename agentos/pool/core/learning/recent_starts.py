"""The calls that count in a reported window: when they started, and how much they took."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..limits.base import ROUNDING

_MOST = 256  # remembered one by one; older ones are merged


class RecentStarts:
    """Starts, oldest first, and the sum of what they took."""

    __slots__ = ("entries", "used")

    def __init__(self, entries: Iterable[tuple[float, float]] = ()) -> None:
        self.entries: deque[list[float]] = deque([float(at), float(amount)] for at, amount in entries)
        self.used = sum(amount for _, amount in self.entries)

    @property
    def merges(self) -> bool:
        """True if there are so many starts that the oldest ones are merged."""
        return len(self.entries) >= _MOST

    def forget_until(self, instant: float) -> None:
        """Drop what started until then."""
        entries = self.entries
        while entries and entries[0][0] <= instant + ROUNDING:
            self.used -= entries.popleft()[1]
        if not entries:
            self.used = 0.0  # so that rounding errors do not accumulate

    def add(self, amount: float, now: float) -> None:
        entries = self.entries
        if entries and entries[-1][0] == now:
            entries[-1][1] += amount
        else:
            entries.append([now, amount])
            if len(entries) > _MOST:
                _, merged = entries.popleft()
                entries[0][1] += merged  # counts a little longer than it should
        self.used += amount

    def drop(self, amount: float) -> None:
        """Take *amount* out of the newest starts."""
        self.used = max(0.0, self.used - amount)
        while self.entries and amount > 0:
            last = self.entries[-1]
            if last[1] > amount:
                last[1] -= amount
                return
            amount -= last[1]
            self.entries.pop()
