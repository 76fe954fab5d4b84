"""Serve the waiting requests in order, with a limited lookahead behind the first that cannot start."""

from __future__ import annotations

from collections.abc import Callable

from .candidate_index import CandidateIndex
from .cost import Cost, is_at_least
from .records import Key, Ticket
from .reservations import RefillClaims

# Tickets behind a blocked one that are tried on each release. More finds more that can pass, at a higher cost.
LOOKAHEAD = 16


class QueueCursor:
    """The position in the waiting requests of one kind."""

    __slots__ = ("_behind", "_blocked", "index", "ticket")

    def __init__(self, index: CandidateIndex) -> None:
        self.index = index
        head = index.waiting.head()
        assert head is not None, "no request waits in this index"  # noqa: S101
        self.ticket: Ticket = head
        self._blocked: list[Cost] = []  # costs of the requests of this kind that cannot start
        self._behind: list[Ticket] | None = None

    def order(self) -> tuple[float, int]:
        """Return the position of the current ticket in the order of all kinds."""
        return self.ticket.order

    def is_already_blocked(self) -> bool:
        """Return True if an earlier request of the same kind that takes no more could not start."""
        return bool(self._blocked) and any(is_at_least(self.ticket.request.cost, cost) for cost in self._blocked)

    def mark_blocked(self) -> None:
        """Note that the current request cannot start now."""
        self._blocked.append(self.ticket.request.cost)

    def advance(self) -> bool:
        """Move to the next ticket that may be able to start. Return False if there is none."""
        if not self._blocked:
            head = self.index.waiting.head()
            if head is None:
                return False
            self.ticket = head
            return True
        if not self.index.limited:
            return False  # all need the same: none can start if the first cannot
        if self._behind is None:
            self._behind = self.index.waiting.behind_head(LOOKAHEAD)
            self._behind.reverse()
        if not self._behind:
            return False
        self.ticket = self._behind.pop()
        return True


def serve_in_order(
    cursors: list[QueueCursor],
    now: float,
    plan: Callable[[Ticket, float, RefillClaims], Key | None],
    start: Callable[[Ticket, Key, float], bool],
) -> list[Ticket]:
    """Start each waiting request that may start, by priority and arrival; return those that were granted.

    *plan* returns the key on which a ticket can start now; without one it adds what the ticket waits for to the claims.
    *start* returns False if that key is taken, and then the ticket is planned again.
    """
    granted: list[Ticket] = []
    claims = RefillClaims()
    skipped: list[Ticket] = []
    while cursors:
        cursor = cursors[0] if len(cursors) == 1 else min(cursors, key=QueueCursor.order)
        ticket = cursor.ticket
        if cursor.is_already_blocked():
            # It cannot start now; what it claims matters only if a request behind it could start.
            skipped.append(ticket)
        else:
            for earlier in skipped:
                plan(earlier, now, claims)
            skipped.clear()
            key = plan(ticket, now, claims)
            while key is not None and not start(ticket, key, now):
                key = plan(ticket, now, claims)
            if key is None:
                cursor.mark_blocked()
            else:
                granted.append(ticket)
        if not cursor.advance():
            cursors.remove(cursor)
    return granted
