"""Signals of providers and a pool that receives them: no clock, no threads, an instant is a number."""

from __future__ import annotations

from agentos.pool.core.checked_pool import CheckedPool
from agentos.pool.core.cost import request_cost
from agentos.pool.core.credential_report import KeyReport, build_report
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.learning.adaptive_rate import AdaptiveRate
from agentos.pool.core.learning.reported import ReportedLimit
from agentos.pool.core.records import NO_LABELS, PLAIN, Grant, KeySpec, LeaseRequest, Ticket
from agentos.providers.signal import Event, Reading, Signal


def pool_of(*specs: KeySpec | str, keep_free: int = 0, max_lease: float | None = None) -> CheckedPool:
    pool = CheckedPool(keep_free=keep_free, max_lease=max_lease)
    for spec in specs:
        pool.add(spec if isinstance(spec, KeySpec) else KeySpec(spec), 0.0)
    return pool


def ask(*, tokens: float | None = None, model: str | None = None) -> LeaseRequest:
    return LeaseRequest(request_cost(None if tokens is None else {"tokens": tokens}), model, None, 0, NO_LABELS)


def take(pool: AdaptivePool, wanted: LeaseRequest = PLAIN, now: float = 0.0) -> Grant:
    grant = pool.acquire(wanted, None, now)
    assert grant is not None
    return grant


def takes(pool: AdaptivePool, count: int, now: float = 0.0) -> list[Grant]:
    return [take(pool, now=now) for _ in range(count)]


def line_up(pool: AdaptivePool, wanted: LeaseRequest = PLAIN, now: float = 0.0, name: str = "waiter") -> Ticket:
    ticket = Ticket(wanted, name)
    pool.enqueue(ticket, now)
    return ticket


def ok(*readings: Reading, scoped: bool = False, provider: str = "default") -> Signal:
    return Signal(Event.OK, readings=readings, scoped=scoped, provider=provider)


def limited(delay: float | None = None, *readings: Reading, scoped: bool = False) -> Signal:
    return Signal(Event.LIMITED, delay, readings=readings, evidence=("429",), scoped=scoped, status=429)


def said(event: Event, delay: float | None = None, *, provider: str = "default", status: int | None = None) -> Signal:
    return Signal(event, delay, evidence=(event.name,), provider=provider, status=status)


def requests_left(remaining: float, limit: float = 60.0, window: float | None = 60.0) -> Reading:
    return Reading("requests", limit, remaining, window=window, source="x-requests")


def state_of(pool: AdaptivePool, name: str, now: float) -> KeyReport:
    return next(row for row in build_report(pool, now) if row.name == name)


def states(pool: AdaptivePool, now: float) -> dict[str, str]:
    return {row.name: row.state for row in build_report(pool, now)}


def pace_of(pool: AdaptivePool, name: str = "a", scope: str = "") -> AdaptiveRate:
    found = pool.keys[name].quota.learned[f"pace {scope}".rstrip()]
    assert isinstance(found, AdaptiveRate)
    return found


def told_of(pool: AdaptivePool, name: str = "a") -> ReportedLimit:
    found = [state for state in pool.keys[name].quota.learned.values() if isinstance(state, ReportedLimit)]
    assert len(found) == 1
    return found[0]
