"""Check admitted calls a second time, with arithmetic independent of the provider's buckets.

A bucket counts what is left. The audit counts admitted work as a debt in seconds, which time pays off and which may
never exceed the time that a full bucket takes to fill. The two agree unless one of them is wrong.
"""

from __future__ import annotations

from .plan import MINUTE, QuotaPlan

_SLACK = 1e-3  # seconds: far above rounding errors, far below what a limit can mean
_KEPT = 20


class Audit:
    """Watches one quota and records every call that should not have been admitted."""

    __slots__ = ("_cap", "_debts", "_name", "violations")

    def __init__(self, plan: QuotaPlan, *, tokens: bool) -> None:
        self._name = plan.name
        self._cap = plan.concurrency
        # Per dimension: its name, seconds for each, the largest debt in seconds, and the instant when it is paid off.
        self._debts: list[list[float]] = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        limits = ((plan.rpm, plan.requests_at_once), (plan.tpm if tokens else None, plan.tokens_at_once))
        most = 1.0 if plan.changes_at is None else max(1.0, plan.changes_to)  # times the limits that it begins with
        for debt, (amount, at_once) in zip(self._debts, limits, strict=True):
            if amount is not None:
                each = MINUTE / amount / most
                # Any period of a fixed window admits up to two windows' worth: the end of one, the start of the next.
                # A bucket admits what it holds.
                largest = at_once * most * (2 if plan.refill == "fixed" else 1)
                debt[:] = [each, each * (largest + 1e-5) + _SLACK, 0.0]
        self.violations: list[str] = []

    def admitted(self, tokens: int, in_flight: int, now: float) -> None:
        """Check a call of *tokens* that was admitted; *in_flight* calls are now in flight."""
        for place, need in enumerate((1, tokens)):
            debt = self._debts[place]
            if debt[0]:
                paid_at = max(debt[2], now) + need * debt[0]
                debt[2] = paid_at
                if paid_at - now > debt[1]:
                    self._note(f"{'tokens' if place else 'requests'} above the limit at {now:.3f}")
        if self._cap is not None and in_flight > self._cap:
            self._note(f"{in_flight} calls in flight at {now:.3f}, above {self._cap}")

    def _note(self, what: str) -> None:
        if len(self.violations) < _KEPT:
            self.violations.append(f"quota {self._name}: {what}")
