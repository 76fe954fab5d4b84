"""Invariants of the pool, each as a named predicate.

A predicate returns None where it holds, else a description of the violation. Tests, simulations and the debug switch
(``checked_pool``) share them. L is for leases, R for rates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from ...providers.signal import LONGEST_DELAY
from ..limit import Limit
from .cost import is_at_least
from .credential_report import derive_state
from .learning.adaptive_concurrency import MAX_SLOTS
from .learning.hypothesis import Hypothesis
from .limits.base import FOREVER, ROUNDING
from .limits.calendar import next_reset
from .pool import LeasePool
from .records import OUTAGE, Grant, Key, LeaseRequest, Quota, Ticket
from .states import OUT_OF_USE, UNAVAILABLE, Life, TicketState

Start = Sequence[float]  # (instant, amount)


def l1_no_more_leases_than_slots(pool: LeasePool) -> str | None:
    """L1: this process never has more leases of a credential in force than it may hold."""
    counted: dict[Key, int] = dict.fromkeys(pool.keys.values(), 0)
    for grant in pool.leases.values():
        counted[grant.key] += 1
    for key, ours in counted.items():
        count = ours + len(key.leases_elsewhere)
        # Adaptive slots may shrink while they are leased, and those of a shared key when a more generous process goes.
        if ours > (MAX_SLOTS if key.auto else key.stated) or count != key.leases:
            return f"{key.name} has {count} leases in force, {key.leases} on record, {key.slots} slots"
    return None


def l2_tokens_only_grow(tokens: Sequence[int]) -> str | None:
    """L2: each lease has a larger token than every lease before it."""
    for before, after in itertools.pairwise(tokens):
        if after <= before:
            return f"token {after} was granted after {before}"
    return None


def l3_only_a_current_token_changes_anything(was_current: bool, changed: bool) -> str | None:
    """L3: release, settlement and report change something if and only if the lease was in force."""
    if was_current == changed:
        return None
    return "a lease in force could not be given back" if was_current else "a lease that had ended changed something"


def l6_grants_go_to_those_who_wait(tickets: Iterable[Ticket], waiting_before: Mapping[Ticket, None]) -> str | None:
    """L6: a grant goes only to a request that was waiting: not withdrawn, not granted before."""
    for ticket in tickets:
        if ticket.state is TicketState.GRANTED and ticket not in waiting_before:
            return f"{ticket.requester or 'a request'} was granted without waiting"
    return None


def l10_slots_add_up(pool: LeasePool, now: float) -> str | None:
    """L10: free, held, cooling and disabled slots add up to all slots, and each key is in one place."""
    counts = {"free": 0, "held": 0, "cooling": 0, "disabled": 0}
    for key in pool.keys.values():
        state, _, _ = derive_state(key, now)
        counts["held"] += key.leases
        free = max(0, key.slots - key.leases)
        if state in OUT_OF_USE:
            counts["disabled"] += free
        elif state in UNAVAILABLE:
            counts["cooling"] += free
        else:
            counts["free"] += free
    configured = sum(max(key.slots, key.leases) for key in pool.keys.values())
    if sum(counts.values()) != configured or min(counts.values()) < 0:
        return f"{counts} do not add up to {configured} slots"
    return _each_key_is_in_one_place(pool)


def _each_key_is_in_one_place(pool: LeasePool) -> str | None:
    for index in pool.indexes.all:
        ready: dict[Key, int] = {}
        for key in index.ready():
            ready[key] = ready.get(key, 0) + 1
        for key in pool.keys.values():
            serves = key.life is Life.ALIVE and index.labels <= key.labels
            later = key in index.bounds
            expected = serves and key.leases < key.slots and not later
            if ready.get(key, 0) != expected or (later and not serves):
                return f"{key.name} is {ready.get(key, 0)} times ready{' and later' if later else ''} in {index.model}"
            if (
                later
                and index.bounds[key] < FOREVER
                and not any(e[0] == index.bounds[key] and e[2] is key for e in index.later)
            ):
                return f"{key.name} would never be looked at again"
    return None


def r1_nothing_starts_while_closed(grant: Grant, closed: Mapping[tuple[Quota, str | None], float]) -> str | None:
    """R1: nothing starts on a quota, or a model family of it, before the end of its block."""
    quota = grant.key.quota
    for scope in (None, OUTAGE, *quota.scopes(grant.model)):
        until = closed.get((quota, scope), -FOREVER)
        if grant.granted_at < until:
            return f"lease {grant.token} started on {quota.name} {until - grant.granted_at:.3f}s too early"
    return None


def r2_starts_keep_to_the_limit(starts: Sequence[Start], limit: Limit, wall_offset: float = 0.0) -> str | None:
    """R2: in any window w at most burst + rate x w starts; strictly *amount* for a sliding or a calendar window."""
    if limit.per == "day":
        return _calendar_kept(starts, limit, wall_offset)
    per = float(limit.per)
    slack = limit.largest * 1e-9 + ROUNDING * limit.amount / per
    if limit.window == "sliding":
        for i, (first, _) in enumerate(starts):
            used = sum(amount for at, amount in starts[i:] if at < first + per)
            if used > limit.amount + slack:
                return f"{used:g} {limit.dimension} in the {per:g}s from {first:g}, limit {limit.amount:g}"
        return None
    rate = limit.amount / per
    total, lowest = 0.0, FOREVER  # the smallest (total before a start - rate x its instant) so far
    for at, amount in starts:
        lowest = min(lowest, total - rate * at)
        total += amount
        if total - rate * at - lowest > limit.largest + slack:
            return f"by {at:g} more {limit.dimension} had started than {limit.largest:g} + {rate:g}/s allow"
    return None


def _calendar_kept(starts: Sequence[Start], limit: Limit, wall_offset: float) -> str | None:
    used: dict[float, float] = {}
    for at, amount in starts:
        day = next_reset(limit, at + wall_offset)
        used[day] = used.get(day, 0.0) + amount
        if used[day] > limit.amount * (1 + 1e-9):
            return f"{used[day]:g} {limit.dimension} in one day, limit {limit.amount:g}"
    return None


def r3_nobody_waits_past_a_free_key(pool: LeasePool, now: float) -> str | None:
    """R3: the first waiting request cannot start now, and ``next_at`` is no later than when it can."""
    tickets = pool.tickets()
    if not tickets:
        return None
    head = tickets[0]
    best = min((_could_start(pool, key, head.request, now) for key in pool.keys.values()), default=FOREVER)
    if pool.keep_free:
        best = max(best, pool.next_spare_slot_at(now))
    best = max(best, pool.not_before)
    if best <= now:
        return f"{head.requester or 'the first in line'} waits although a key is free for it"
    if pool.next_at > best + ROUNDING:
        return f"the first waiter could start at {best:g}, but nothing checks before {pool.next_at:g}"
    return None


def _could_start(pool: LeasePool, key: Key, request: LeaseRequest, now: float) -> float:
    if key.leases >= key.slots or not key.could_serve(request.labels, request.model):
        return FOREVER
    return pool.starts_at(key, request, now)


def r4_served_in_order(pool: LeasePool, granted: Iterable[Ticket]) -> str | None:
    """R4: no request is passed by a later one with the same requirements that takes as much."""
    waiting = pool.tickets()
    for ticket in granted:
        if ticket.state is not TicketState.GRANTED:
            continue
        for other in waiting:
            same = (other.request.labels, other.request.model) == (ticket.request.labels, ticket.request.model)
            if same and other.order < ticket.order and is_at_least(ticket.request.cost, other.request.cost):
                return f"{ticket.requester or 'a later request'} passed {other.requester or 'an earlier one'}"
    return None


def r6_a_delay_is_sane(delay: float | None) -> str | None:
    """R6: a quota is closed for 0 to 35 days, never forever and never for NaN, whatever an answer states."""
    if delay is None or (math.isfinite(delay) and 0 <= delay <= LONGEST_DELAY):
        return None
    return f"a delay of {delay}"


def r7_no_limit_survives_the_calls_against_it(quota: Quota, now: float) -> str | None:
    """R7: no reported or estimated limit is in force if more was admitted since its last refusal than it allows."""
    for state in quota.limits:
        if isinstance(state, Hypothesis) and state.obeyed and state.is_refuted(now):
            allowed = state.capacity + state.believed_rate * (now - state.since)
            return (
                f"{state.source} limit of {quota.name}: {state.admitted:g} {state.limit.dimension} were admitted in "
                f"{now - state.since:g}s, it allows {allowed:g}"
            )
    return None
