"""Reports of the pool's credentials: state, reason and headroom, derived on request and never stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .limits.base import FOREVER, LimitState, format_number
from .pool import LeasePool
from .records import EVERY_MODEL, Key, Quota, Ticket
from .reservations import starts_at
from .states import OUT_OF_USE, CredentialStatus, Life


@dataclass(frozen=True, slots=True)
class Headroom:
    """The amount left of one limit."""

    dimension: str
    amount: float
    left: float
    model: str | None
    set_aside: bool  # it is not applied: answers tell no usage, or the limit is not obeyed
    per: float | str = 60.0
    learned: bool = False  # not stated by the user: reported by the provider, or inferred
    window: str = "continuous"  # or "sliding"


@dataclass(frozen=True, slots=True)
class LimitInForce:
    """The limit that applies to one dimension of a quota: the lowest of those that are stated, reported or estimated.

    Limits of a day or longer count as a dimension of their own, and so do those of each model family.
    """

    dimension: str
    amount: float
    per: float | str
    source: str  # "stated", "reported" or "estimated"
    certainty: str  # how sure it is, for people
    left: float
    model: str | None = None

    def __str__(self) -> str:
        return f"{self.describe()}, {self.source} ({self.certainty}): {format_number(math.floor(self.left))} left"

    def describe(self) -> str:
        """Return ``60 requests a minute``, ``90,000 input tokens in 10 s for big-1``."""
        per = _PERIOD_WORDS.get(self.per) or f"in {self.per:g} s"
        model = f" for {self.model}" if self.model else ""
        return f"{format_number(self.amount)} {self.dimension.replace('_', ' ')} {per}{model}"


@dataclass(frozen=True, slots=True)
class KeyReport:
    """One credential at one instant. ``until`` is FOREVER where only a person or a holder can change it."""

    name: str
    quota: str
    state: CredentialStatus
    until: float
    why: str
    slots: int
    holders: tuple[str, ...]
    limits: tuple[Headroom, ...]
    history: tuple[tuple[float, str], ...] = ()
    limits_in_force: tuple[LimitInForce, ...] = ()
    slots_source: str = "stated"  # or "estimated"


_DAY = 86_400.0
_PERIOD_WORDS = {1.0: "a second", 60.0: "a minute", 3_600.0: "an hour", _DAY: "a day", "day": "a day"}
_PERIODS = {1.0: "s", 60.0: "min", 3_600.0: "h", 86_400.0: "day", "day": "day"}


def describe_limit(dimension: str, amount: float, per: float | str, *, learned: bool = False) -> str:
    """Return ``at its limit (120/min)``, ``at its limit (90,000 tokens/min, learned)``."""
    what = "" if dimension == "requests" else f" {dimension.replace('_', ' ')}"
    period = f"/{_PERIODS[per]}" if per in _PERIODS else f" in {per:g} s"
    return f"at its limit ({format_number(amount)}{what}{period}{', learned' if learned else ''})"


def build_report(pool: LeasePool, now: float) -> list[KeyReport]:
    """Report every credential in the order in which they joined."""
    holders: dict[Key, list[str]] = {}
    for grant in pool.leases.values():
        holder = f"lease {grant.token}" if grant.requester is None else str(grant.requester)
        holders.setdefault(grant.key, []).append(holder)
    in_force = {quota: find_limits_in_force(quota, now) for quota in {key.quota for key in pool.keys.values()}}
    return [
        _report(key, (*holders.get(key, ()), *key.leases_elsewhere), in_force[key.quota], now)
        for key in pool.keys.values()
    ]


def find_limits_in_force(quota: Quota, now: float) -> tuple[LimitInForce, ...]:
    """Return one limit for each dimension of *quota*, in the order in which they were stated or learned."""
    found: dict[tuple[str, str | None, bool], list[LimitState]] = {}
    for state in filter(lambda state: state.obeyed, quota.limits):
        key = (state.limit.dimension, state.scope, _seconds(state) >= _DAY)
        found.setdefault(key, []).append(state)
    return tuple(_describe_in_force(min(states, key=_lowest_first), now) for states in found.values())


def _lowest_first(state: LimitState) -> tuple[bool, float]:
    """Order limits by their rate; those that are set aside come last, since they are not applied."""
    return state.usage.set_aside, state.limit.amount / _seconds(state)


def _seconds(state: LimitState) -> float:
    return _DAY if state.limit.per == "day" else float(state.limit.per)


def _describe_in_force(state: LimitState, now: float) -> LimitInForce:
    limit = state.limit
    certainty = "not applied: the answers tell no usage" if state.usage.set_aside else state.certainty(now)
    left = max(0.0, state.left(now))
    return LimitInForce(limit.dimension, limit.amount, limit.per, state.source, certainty, left, state.scope)


def _report(key: Key, holders: tuple[str, ...], in_force: tuple[LimitInForce, ...], now: float) -> KeyReport:
    state, until, why = derive_state(key, now)
    headroom = tuple(
        Headroom(
            s.limit.dimension,
            s.limit.amount,
            s.left(now),
            s.scope,
            s.usage.set_aside or not s.obeyed,
            s.limit.per,
            s.learned,
            s.limit.window or "continuous",
        )
        for s in key.quota.limits
    )
    return KeyReport(
        name=key.name,
        quota=key.quota.name,
        state=state,
        until=until,
        why=why,
        slots=key.slots,
        holders=holders,
        limits=headroom,
        history=tuple(key.quota.history),
        limits_in_force=in_force,
        slots_source="estimated" if key.auto else "stated",
    )


def derive_state(key: Key, now: float) -> tuple[CredentialStatus, float, str]:
    """Return the status of a credential, until when it holds, and the evidence. The most important comes first."""
    if key.life is not Life.ALIVE:
        return CredentialStatus(key.life.value), FOREVER, key.evidence
    if key.quota.spent is not None:
        return CredentialStatus.SPENT, FOREVER, key.quota.spent.evidence
    if EVERY_MODEL in key.barred:
        return CredentialStatus.DEAD, FOREVER, key.barred[EVERY_MODEL]
    whole = key.quota.whole_block()
    closed = whole is not None and whole.until > now
    if key.leases >= key.slots:
        until = whole.until if closed and whole is not None else FOREVER
        why = "every slot is leased" + (f"; {whole.evidence}" if closed and whole else "")
        return CredentialStatus.LEASED, until, why
    if closed and whole is not None:
        return CredentialStatus(whole.gate.value), whole.until, whole.evidence
    held_back = key.quota.probe_holds_until(None)
    if held_back > now:
        return CredentialStatus.COOLING, held_back, "one request tries whether a long rest is over"
    at, which = now, ""
    for limit in key.quota.limits_for(None):
        ready = limit.ready_at(1.0 if limit.limit.dimension == "requests" else 0.0, now)
        usage = limit.usage
        if usage.in_flight and usage.p95 is None and not usage.set_aside:
            why = "a request of unknown cost is in flight; the next waits until it is settled"
            return CredentialStatus.LIMITED, FOREVER, why
        if ready > at:
            at = ready
            which = describe_limit(limit.limit.dimension, limit.limit.amount, limit.limit.per, learned=limit.learned)
    if at > now:
        return CredentialStatus.LIMITED, at, which
    closed_models = [
        f"{scope} {block.gate.value} for {block.until - now:.1f}s more ({block.evidence})"
        for scope, block in key.quota.model_blocks(now).items()
    ]
    closed_models += [f"not for {model} ({why})" for model, why in key.barred.items()]
    return CredentialStatus.AVAILABLE, now, "; ".join(closed_models)


def explain_wait(pool: LeasePool, ticket: Ticket, now: float) -> list[str]:
    """Return what keeps *ticket* from starting on each credential that could serve it, the earliest first."""
    reasons = []
    for key in pool.keys.values():
        request = ticket.request
        if not request.labels <= key.labels:
            continue
        state, _, why = derive_state(key, now)
        if state is CredentialStatus.LEASED and key.leases_elsewhere:
            why += f", by {', '.join(key.leases_elsewhere)}"
        block = key.quota.block_for(request.model)
        at = FOREVER if state is CredentialStatus.LEASED or state in OUT_OF_USE else starts_at(key.quota, request, now)
        if state is CredentialStatus.AVAILABLE and block is not None and block.until > now:
            state, why = CredentialStatus(block.gate.value), block.evidence
        elif state is CredentialStatus.AVAILABLE and at > now:
            state, why = CredentialStatus.LIMITED, "not enough left for its cost"
        elif state is CredentialStatus.AVAILABLE:
            why = "kept for a request ahead of it, or by keep_free"
        reasons.append((at, f"{key.name}: {state}{f' ({why})' if why else ''}{_format_delay(at - now)}"))
    return [text for _, text in sorted(reasons, key=lambda pair: pair[0])]


def _format_delay(seconds: float) -> str:
    return f", in {seconds:.1f}s" if 0 < seconds < FOREVER else ""
