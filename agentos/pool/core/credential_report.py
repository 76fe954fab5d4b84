"""Reports of the pool's credentials: state, reason and headroom, derived on request and never stored."""

from __future__ import annotations

from dataclasses import dataclass

from .limits.base import FOREVER, format_number
from .pool import LeasePool
from .records import EVERY_MODEL, Key, Ticket
from .reservations import starts_at
from .states import OUT_OF_USE, CredentialStatus, Life


@dataclass(frozen=True, slots=True)
class Headroom:
    """The amount left of one limit."""

    dimension: str
    amount: float
    left: float
    model: str | None
    set_aside: bool
    per: float | str = 60.0
    learned: bool = False  # not stated by the user: reported by the provider, or inferred
    window: str = "continuous"  # or "sliding"


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
    return [_report(key, (*holders.get(key, ()), *key.leases_elsewhere), now) for key in pool.keys.values()]


def _report(key: Key, holders: tuple[str, ...], now: float) -> KeyReport:
    state, until, why = derive_state(key, now)
    headroom = tuple(
        Headroom(
            s.limit.dimension,
            s.limit.amount,
            s.left(now),
            s.scope,
            s.usage.set_aside,
            s.limit.per,
            s.learned,
            s.limit.window or "continuous",
        )
        for s in key.quota.limits
    )
    history = tuple(key.quota.history)
    return KeyReport(key.name, key.quota.name, state, until, why, key.slots, holders, headroom, history)


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
