"""Statistics of the provider: counts per key, per quota and in total. Keys are shown by name, never by secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of one key, one quota, or all. ``calls = admitted + all of rejected``.

    Of the admitted, ``ok`` were answered, ``failed`` failed as planned, ``left`` lost their client before they ended,
    and ``in_flight`` have not ended. ``tokens`` is what the admitted reserved. ``first_at`` is the instant of the first
    call, ``last_at`` that of the last call or ending; None while there was none.
    """

    calls: int = 0
    admitted: int = 0
    ok: int = 0
    failed: int = 0
    left: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    in_flight: int = 0
    most_in_flight: int = 0
    tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None

    @property
    def refused(self) -> int:
        """Return the number of rejected calls, for any reason."""
        return sum(self.rejected.values())


@dataclass(frozen=True, slots=True)
class Statistics:
    """The provider's counts so far. ``violations`` are breaches of its own rules: any means that it is broken."""

    total: Tally
    keys: Mapping[str, Tally]
    quotas: Mapping[str, Tally]
    violations: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Statistics:
        """Build statistics from :meth:`to_dict`."""
        return cls(
            Tally(**told["total"]),
            {name: Tally(**each) for name, each in told["keys"].items()},
            {name: Tally(**each) for name, each in told["quotas"].items()},
            tuple(told["violations"]),
        )


class TallyCounter:
    """A mutable tally."""

    __slots__ = (
        "admitted",
        "calls",
        "failed",
        "first_at",
        "in_flight",
        "last_at",
        "left",
        "most_in_flight",
        "ok",
        "rejected",
        "tokens",
    )

    def __init__(self) -> None:
        self.calls = self.admitted = self.ok = self.failed = self.left = 0
        self.in_flight = self.most_in_flight = self.tokens = 0
        self.rejected: dict[str, int] = {}
        self.first_at: float | None = None
        self.last_at: float | None = None

    def arrived(self, now: float) -> None:
        """Count a call that arrived."""
        self.calls += 1
        self.last_at = now
        if self.first_at is None:
            self.first_at = now

    def was_admitted(self, tokens: int) -> None:
        """Count an admitted call, which is now in flight."""
        self.admitted += 1
        self.tokens += tokens
        self.in_flight += 1
        if self.in_flight > self.most_in_flight:
            self.most_in_flight = self.in_flight

    def was_rejected(self, reason: str) -> None:
        """Count a rejected call."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def ended(self, now: float, *, ok: bool, left: bool) -> None:
        """Count a call that is no longer in flight."""
        self.in_flight -= 1
        self.last_at = now
        if left:
            self.left += 1
        elif ok:
            self.ok += 1
        else:
            self.failed += 1

    def tally(self) -> Tally:
        """Return the current counts."""
        counts: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return Tally(**{**counts, "rejected": dict(self.rejected)})
