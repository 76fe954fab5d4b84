"""A limit that nobody stated is a hypothesis: it stands until the calls that were admitted refute it.

A hypothesis says that at most ``capacity + rate * t`` is admitted in t seconds. Each admitted call is evidence: when
more than that was admitted since the last refusal, the hypothesis is wrong, and it is raised or dropped before the next
grant.
Each refusal is evidence too: it may lower the limit again, and the count starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from ..limits.base import FOREVER, ROUNDING, LimitState

REPORTED, ESTIMATED = "reported", "estimated"


class Hypothesis(LimitState):
    """A limit with a source and the evidence for and against it."""

    __slots__ = ("admitted", "confirmed", "since")

    learned = True
    source = ESTIMATED

    def __init__(self, limit: Limit, now: float) -> None:
        super().__init__(limit)
        self.largest = FOREVER  # a hypothesis never makes a request infeasible
        self.since = now  # the last refusal, or when the hypothesis was made
        self.admitted = 0.0  # of the calls that began since then
        self.confirmed = 0  # times that a refusal or an answer agreed with it

    @property
    def believed_rate(self) -> float:
        """The rate that the hypothesis allows in the long run, per second."""
        raise NotImplementedError

    @property
    def capacity(self) -> float:
        """The most that it allows at once, after a pause."""
        raise NotImplementedError

    def is_refuted(self, now: float) -> bool:
        """Return True if more was admitted since the last refusal than this limit allows."""
        allowed = self.capacity + self.believed_rate * max(0.0, now - self.since)
        return self.admitted > allowed * (1.0 + ROUNDING) + ROUNDING

    def on_admitted(self, amount: float, started_at: float, now: float, _place: float = 0.0) -> bool:
        """Count a call that was admitted. Return True if that refutes the limit, which is then raised."""
        if started_at < self.since:
            return False
        self.admitted += amount
        if not self.is_refuted(now):
            return False
        self.yield_to_evidence(now)
        return True

    def yield_to_evidence(self, now: float) -> None:
        """Raise or drop the limit, which was refuted: afterwards it allows what was admitted."""
        raise NotImplementedError

    def begin_count(self, now: float) -> None:
        """Count admitted calls from now on: a call was refused, or the limit has changed."""
        self.since, self.admitted = now, 0.0

    def pack_evidence(self) -> dict[str, Any]:
        since = None if self.since == -FOREVER else self.since
        return {"since": since, "admitted": self.admitted, "confirmed": self.confirmed}

    def unpack_evidence(self, packed: Mapping[str, Any]) -> None:
        """Load the evidence; records of earlier versions have none."""
        since = packed.get("since", self.since)
        self.since = -FOREVER if since is None else since
        self.admitted = packed.get("admitted", 0.0)
        self.confirmed = packed.get("confirmed", 0)
