"""The state of one limit: how much is used, how much is left, and when a request fits.

Each kind of window implements five operations: ``ready_at`` (the first instant at which an amount fits), ``reserve``
(take it if that is now), ``undo``, ``correct`` (replace the amount that was taken) and ``left``. ``ready_at`` takes
*extra*, an amount that another request takes first: the queue uses it to see if a later request delays an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...limit import Limit
from ..cost import DIMENSIONS
from ..learning.usage_stats import UsageStats

if TYPE_CHECKING:
    from ..learning.common_evidence import CommonEvidence

FOREVER = float("inf")

# Instants are sums and differences of floats: a full bucket may come out slightly short. A microsecond is far above
# such errors and far below anything a provider measures.
ROUNDING = 1e-6


class LimitState:
    """The state of one limit of one quota: plain numbers, so that a store can keep them."""

    __slots__ = ("dimension", "heaviest", "largest", "limit", "scope", "usage")

    refills = True  # within its window, so that a waiting request can claim the refill
    overflows = False  # True: something of it is lost if no call starts for long
    learned = False  # not stated by the user
    obeyed = True  # False: it is known, but allows everything
    counts_starts = False  # True: calls that started before it was known do not count
    source = "stated"  # or "reported" by the provider's answers, or "estimated" from refusals

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.dimension = DIMENSIONS.index(limit.dimension)
        self.scope = limit.model
        self.largest = limit.largest
        self.heaviest = FOREVER  # the most that one request can take, whatever it reports
        self.usage = UsageStats()

    def share_evidence(self, common: CommonEvidence) -> None:
        """Use what all quotas of the provider have shown of it."""

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        """Return the first instant from *now* on at which *need* fits if *extra* is taken now."""
        raise NotImplementedError

    def reserve(self, need: float, now: float) -> Any:
        """Take *need* and return a stamp for it, or None if it does not fit now."""
        return self.take(need, now) if self.ready_at(need, now) <= now else None

    def take(self, need: float, now: float) -> Any:
        """Take *need* even if it does not fit, and return a stamp with which it can be corrected."""
        raise NotImplementedError

    def undo(self, stamp: Any, need: float) -> None:
        """Revert the last take."""
        raise NotImplementedError

    def correct(self, stamp: Any, by: float, now: float) -> Any:
        """Add *by* (below zero: give back) to what was taken under *stamp*. Return its new stamp."""
        raise NotImplementedError

    def on_admitted(self, amount: float, started_at: float, now: float, place: float = 0.0) -> bool:
        """Count a call that was admitted as evidence. Return True if that refutes the limit, which is then raised."""
        return False

    @property
    def overflows_at(self) -> float:
        """From when on something of it is lost if no call starts."""
        return FOREVER

    def left(self, now: float) -> float:
        """Return how much can be taken now; below zero after an overrun."""
        raise NotImplementedError

    def certainty(self, now: float) -> str:
        """Return how sure the limit is, as a short phrase for people."""
        return "as configured"

    def pack(self) -> dict[str, Any]:
        """Return the usage as plain data for a store. Stamps stay valid in a process that unpacks it."""
        raise NotImplementedError

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Load the usage that a store kept."""
        raise NotImplementedError

    def reset(self) -> None:
        """Set the usage to zero."""
        raise NotImplementedError


def format_number(amount: float) -> str:
    """Format a number for people."""
    return f"{amount:,.0f}" if amount >= 1_000 else f"{amount:.4g}"


def pack_instant(instant: float) -> float | None:
    """Return an instant for a store; never, in either direction, is None."""
    return None if instant in (FOREVER, -FOREVER) else instant


def unpack_instant(packed: float | None, never: float = -FOREVER) -> float:
    """Return the instant that ``pack_instant`` stored."""
    return never if packed is None else packed
