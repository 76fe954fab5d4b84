"""The state of one limit: how much is used, how much is left, and when a request fits.

Each kind of window implements five operations: ``ready_at`` (the first instant at which an amount fits), ``reserve``
(take it if that is now), ``undo``, ``correct`` (replace the amount that was taken) and ``left``. ``ready_at`` takes
*extra*, an amount that another request takes first: the queue uses it to see if a later request delays an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from ..cost import DIMENSIONS
from ..learning.usage_stats import UsageStats

FOREVER = float("inf")

# Instants are sums and differences of floats: a full bucket asked for all it holds may come out a hair short. A
# microsecond is far above such errors and far below anything a provider measures.
ROUNDING = 1e-6


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


def format_number(amount: float) -> str:
    """A number as people write it."""
    return f"{amount:,.0f}" if amount >= 1_000 else f"{amount:.4g}"
