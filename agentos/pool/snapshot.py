"""Public views of a pool: a row per credential, the reason for a wait, a forecast."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..util.durations import format_rough_duration
from .core.credential_report import Headroom, KeyReport, LimitInForce, describe_limit
from .core.forecast import Improvement
from .core.limits.base import FOREVER, format_number
from .core.states import OUT_OF_USE, UNAVAILABLE, CredentialStatus

__all__ = [
    "OUT_OF_USE",
    "UNAVAILABLE",
    "CredentialState",
    "CredentialStatus",
    "Explanation",
    "Forecast",
    "Headroom",
    "HistoryEntry",
    "LimitInForce",
    "build_state",
    "describe_limit",
    "format_number",
]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of what was learned, with its time (epoch seconds)."""

    at: float
    what: str


@dataclass(frozen=True, slots=True, init=False)
class CredentialState:
    """One credential at the time of ``snapshot()``: its state, until when, and why. Never its secret.

    ``CredentialState("key-1")`` alone is an available one.
    """

    name: str
    in_use: bool
    reserved_by: str | None
    rate_limited_until: float  # epoch seconds; 0.0 when it is not waiting for an instant
    is_available: bool
    state: str  # a CredentialStatus: available, leased, cooling, parked, limited, spent, dead or retired
    why: str
    quota: str
    slots: int
    leases: int
    limits: tuple[Headroom, ...]
    history: tuple[HistoryEntry, ...]  # what was learned about its quota, the newest last
    limits_in_force: tuple[LimitInForce, ...]  # of its quota: for each dimension the one that applies
    slots_source: str  # "stated", or "estimated" for slots="auto"

    def __init__(
        self,
        key: str | None = None,
        in_use: bool | str | None = False,
        reserved_by: str | float | None = None,
        rate_limited_until: float | None = 0.0,
        *,
        key_id: str | None = None,
        name: str | None = None,
        is_available: bool | None = None,
        state: str | None = None,
        why: str = "",
        quota: str | None = None,
        slots: int = 1,
        leases: int | None = None,
        limits: tuple[Headroom, ...] = (),
        history: tuple[HistoryEntry, ...] = (),
        limits_in_force: tuple[LimitInForce, ...] = (),
        slots_source: str = "stated",
    ) -> None:
        name = next((given for given in (key, key_id, name) if given is not None), None)
        if name is None:
            raise TypeError("CredentialState needs the name of a credential")
        # Positional arguments of the originals: (key, in_use, rate_limited_until) and (key, reserved_by,
        # rate_limited_until).
        if isinstance(reserved_by, (int, float)):
            reserved_by, rate_limited_until = None, reserved_by
        if isinstance(in_use, str):
            reserved_by = in_use
        in_use = bool(in_use) or reserved_by is not None
        until = rate_limited_until or 0.0
        if state is None:
            idle_state = CredentialStatus.COOLING if until > time.time() else CredentialStatus.AVAILABLE
            state = CredentialStatus.LEASED if in_use else idle_state
        fields = {
            "name": name,
            "in_use": in_use,
            "reserved_by": reserved_by,
            "rate_limited_until": until,
            "is_available": state == CredentialStatus.AVAILABLE if is_available is None else is_available,
            "state": state,
            "why": why,
            "quota": quota if quota is not None else name,
            "slots": slots,
            "leases": leases if leases is not None else int(in_use),
            "limits": limits,
            "history": history,
            "limits_in_force": limits_in_force,
            "slots_source": slots_source,
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    @property
    def key(self) -> str:
        """The name, as in one of the originals."""
        return self.name

    @property
    def key_id(self) -> str:
        """The name, as in the other original."""
        return self.name


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason why a requester waits, or that it does not."""

    requester: str
    state: str  # waiting, holding or unknown
    position: int | None = None  # 1 is the head of the queue
    waited: float = 0.0
    starts_in: float | None = None  # estimated; None: when a lease ends
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.state != "waiting":
            return f"{self.requester} is {'holding ' + ', '.join(self.why) if self.why else 'not known to this pool'}"
        due = "when a credential is given back" if self.starts_in is None else f"in about {self.starts_in:.1f}s"
        head = f"{self.requester} waits as number {self.position} for {self.waited:.1f}s; it likely starts {due}"
        return "\n".join([head, *(f"  {reason}" for reason in self.why)])


@dataclass(frozen=True, slots=True)
class Forecast:
    """The time at which a number of calls is done, what limits them, and what would help."""

    seconds: float  # infinite: no credential can serve them
    finishes_at: float  # epoch seconds
    binding: str
    moves: tuple[Improvement, ...] = ()

    def __str__(self) -> str:
        if self.seconds == FOREVER:
            return f"never: {self.binding}"
        lines = [f"done in about {format_rough_duration(self.seconds)}; held up by {self.binding}"]
        lines += [f"  with {move.what}: {format_rough_duration(move.seconds)}" for move in self.moves]
        return "\n".join(lines)


def build_state(row: KeyReport, now: float, offset: float) -> CredentialState:
    """Build the public row, with instants as epoch seconds."""
    due = now < row.until < FOREVER
    return CredentialState(
        row.name,
        in_use=bool(row.holders),
        reserved_by=", ".join(row.holders) or None,
        rate_limited_until=row.until + offset if due else 0.0,
        state=row.state,
        why=row.why,
        quota=row.quota,
        slots=row.slots,
        leases=len(row.holders),
        limits=row.limits,
        history=tuple(HistoryEntry(at + offset, text) for at, text in row.history),
        limits_in_force=row.limits_in_force,
        slots_source=row.slots_source,
    )
