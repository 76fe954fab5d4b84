"""Observed costs of requests against one limit, for requests without an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REMEMBERED = 64
_ENOUGH_SILENCE = 3


class UsageStats:
    """The last amounts reported against one limit, and the rule while there are none.

    Until the first report, one request of unknown cost is in flight at a time. Without reports the limit cannot be kept
    and would only throttle: after three unreported requests in a row it is set aside until one is reported.
    """

    __slots__ = ("_amounts", "_count", "_p95", "_ranked_at", "in_flight", "set_aside", "silent")

    def __init__(self) -> None:
        self._amounts: list[float] = []
        self._count = 0
        self._p95 = 0.0
        self._ranked_at = 0
        self.in_flight = 0  # requests of unknown cost
        self.silent = 0
        self.set_aside = False

    def add(self, amount: float) -> None:
        """Note the true amount of one request."""
        count = self._count
        if count < _REMEMBERED:
            self._amounts.append(amount)
            self.silent = 0
            self.set_aside = False
        else:
            self._amounts[count % _REMEMBERED] = amount
        self._count = count + 1

    @property
    def p95(self) -> float | None:
        """Return the 95th percentile of the last amounts; None if there are none."""
        if not self._count:
            return None
        # Sorting for every request would cost more than the lease; now and then is near enough.
        if self._count - self._ranked_at >= min(8, self._count):
            ranked = sorted(self._amounts)
            self._p95 = ranked[-(-95 * len(ranked) // 100) - 1]
            self._ranked_at = self._count
        return self._p95

    @property
    def mean(self) -> float | None:
        """Return the mean of the last amounts; None if there are none."""
        return sum(self._amounts) / len(self._amounts) if self._amounts else None

    def end_in_flight(self) -> None:
        """Note that a request of unknown cost is no longer in flight."""
        if self.in_flight:  # else the statistics were reset meanwhile, in a shared pool
            self.in_flight -= 1

    def end_unreported(self) -> bool:
        """Note a request of unknown cost that ended unreported; True if the limit is set aside just now."""
        self.silent += 1
        if self._count or self.set_aside or self.silent < _ENOUGH_SILENCE:
            return False
        self.set_aside = True
        return True

    def pack(self) -> dict[str, Any] | None:
        """Return the observations as plain data for a store; None if there are none."""
        if not (self._count or self.in_flight or self.silent or self.set_aside):
            return None
        return {
            "amounts": self._amounts,
            "count": self._count,
            "in_flight": self.in_flight,
            "silent": self.silent,
            "set_aside": self.set_aside,
        }

    def unpack(self, packed: Mapping[str, Any] | None) -> None:
        """Load what a store kept."""
        if packed is None:
            self.__init__()  # type: ignore[misc]  # as new
            return
        self._amounts = list(packed["amounts"])
        self._count = packed["count"]
        self._ranked_at = 0
        self.in_flight = packed["in_flight"]
        self.silent = packed["silent"]
        self.set_aside = packed["set_aside"]

    def reset(self) -> None:
        """Forget earlier requests; those in flight stay."""
        in_flight = self.in_flight
        self.__init__()  # type: ignore[misc]  # as new
        self.in_flight = in_flight
