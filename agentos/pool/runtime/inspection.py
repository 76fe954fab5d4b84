"""Views of a pool: snapshot, explanation, counts and forecast. They change nothing."""

from __future__ import annotations

import math

from ..core.credential_report import build_report, explain_wait
from ..core.forecast import collect_capacity, forecast_completion
from ..core.limits.base import FOREVER
from ..core.records import LeaseRequest, Ticket
from ..core.reservations import reopens_at
from ..protocols import SharedCore
from ..snapshot import CredentialState, CredentialStatus, Explanation, Forecast, build_state
from .scheduler import Scheduler

_COUNTED_AS: dict[CredentialStatus, str | None] = {
    CredentialStatus.AVAILABLE: "available",
    CredentialStatus.LEASED: "reserved",
    CredentialStatus.COOLING: "rate_limited",
    CredentialStatus.LIMITED: "rate_limited",
    CredentialStatus.PARKED: "parked",
    CredentialStatus.SPENT: "dead",
    CredentialStatus.DEAD: "dead",
    CredentialStatus.RETIRED: None,
}


class PoolInspector:
    """Reads the state of a pool under its lock."""

    def __init__(self, scheduler: Scheduler, shared: SharedCore | None) -> None:
        self._scheduler = scheduler
        self._shared = shared
        self._core = scheduler.core

    def snapshot(self) -> list[CredentialState]:
        """Return the state of every credential, until when it holds, and why."""
        self._scheduler.bring_up_to_date()
        with self._scheduler.locked():
            now = self._scheduler.now()
            rows = build_report(self._core, now)
        offset = self._scheduler.clock.wall() - now
        return [build_state(row, now, offset) for row in rows]

    def explain(self, requester: str) -> Explanation:
        """Explain why *requester* waits, and when it will probably start."""
        self._scheduler.bring_up_to_date()
        with self._scheduler.locked():
            now = self._scheduler.now()
            for position, ticket in enumerate(self._core.tickets(), start=1):
                if str(ticket.requester) == str(requester):
                    return self._explain(requester, ticket, position, now)
            held = tuple(g.key.name for g in self._core.leases.values() if str(g.requester) == str(requester))
        return Explanation(requester, "holding" if held else "unknown", why=held)

    def seconds_until_open(self, request: LeaseRequest) -> float:
        """Return the seconds until a key is open to *request*: 0 if one is, though it may be in use; infinite if none.

        How long a lease lasts is not known, so that a key in use tells nothing of when it can serve another request.
        """
        with self._scheduler.locked():
            now = self._scheduler.now()
            keys = [key for key in self._core.keys.values() if key.could_serve(request.labels, request.model)]
            at = min((reopens_at(key.quota, request, now) for key in keys), default=FOREVER)
        return math.inf if at == FOREVER else at - now

    def _explain(self, requester: str, ticket: Ticket, position: int, now: float) -> Explanation:
        at = self._core.earliest_start(ticket.request, now)
        if now < ticket.starts_at < FOREVER:
            at = max(at, ticket.starts_at)  # behind other requests
        return Explanation(
            requester,
            "waiting",
            position=position,
            waited=now - ticket.queued_at,
            starts_in=None if at == FOREVER else at - now,
            why=(*self._why_nothing_starts(now), *explain_wait(self._core, ticket, now)),
        )

    def _why_nothing_starts(self, now: float) -> tuple[str, ...]:
        return () if self._shared is None else self._shared.find_pause_reason(now)

    def get_stats(self) -> dict[str, int]:
        """Count the credentials by state; each counts once, in its most important state.

        A retired credential counts only while it is held; one without money counts as dead; one that ``keep_free``
        keeps for others counts as reserved.
        """
        self._scheduler.bring_up_to_date()
        with self._scheduler.locked():
            rows = build_report(self._core, self._scheduler.now())
        counts = {"total": 0, "available": 0, "reserved": 0, "rate_limited": 0, "parked": 0, "dead": 0}
        for row in rows:
            held = row.state is CredentialStatus.RETIRED and row.holders
            word = "reserved" if held else _COUNTED_AS[row.state]
            if word is not None:
                counts[word] += 1
                counts["total"] += 1
        if self._core.keep_free:
            free = sum(row.slots - len(row.holders) for row in rows if row.state is CredentialStatus.AVAILABLE)
            kept = max(0, counts["available"] - max(0, free - self._core.keep_free))
            counts["available"] -= kept
            counts["reserved"] += kept  # kept for others
        return counts

    def forecast(self, n_items: int, request: LeaseRequest, duration: float, parallel: int | None) -> Forecast:
        """Estimate when *n_items* requests will be done, and what limits them."""
        self._scheduler.bring_up_to_date()
        with self._scheduler.locked():
            now, wall = self._scheduler.now(), self._scheduler.clock.wall()
            surveyed = collect_capacity(self._core.keys.values(), request, duration=duration, now=now, wall=wall)
        found = forecast_completion(surveyed, n_items, parallel)
        return Forecast(found.seconds, wall + found.seconds, found.binding, found.moves)
