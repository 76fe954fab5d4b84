"""Reservations: what a request takes from a quota, when that is available, and if it would delay an earlier request."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .cost import INPUT, OUTPUT, REQUESTS, TOKENS
from .limits.base import FOREVER, LimitState
from .records import Draw, Key, LeaseRequest, Quota

_PADDING, _MOST_PADDINGS = 1.3, 8


def declared_amount(state: LimitState, request: LeaseRequest) -> float | None:
    """Return what the caller declared for one limit; of tokens at least the declared part."""
    amount = request.cost[state.dimension]
    if amount is None and state.dimension == TOKENS:
        parts = [part for part in (request.cost[INPUT], request.cost[OUTPUT]) if part is not None]
        return sum(parts) if parts else None
    return amount


def estimate_amount(state: LimitState, request: LeaseRequest) -> float | None:
    """Return what *request* takes from one limit: as declared, else as observed; None if unknown."""
    amount = request.cost[state.dimension]
    if amount is not None:
        return amount
    # An estimated limit is measured by what was taken: too much for calls in flight would make it too high.
    declared, observed = declared_amount(state, request), state.usage.mean if state.counts_starts else state.usage.p95
    if observed is None:
        return declared
    return max(declared or 0.0, min(observed, state.largest))


def compute_draws(quota: Quota, request: LeaseRequest) -> list[tuple[LimitState, float, bool]]:
    """Return what *request* would take from each of its limits: the limit, the amount, True if that is an estimate."""
    draws = []
    for state in quota.limits_for(request.model):
        amount = estimate_amount(state, request)
        if amount is not None:
            draws.append((state, amount, False))
        elif not state.usage.set_aside:
            draws.append((state, 0.0, True))
    return draws


def reserve(quota: Quota, request: LeaseRequest, now: float) -> list[Draw] | None:
    """Take what *request* needs; return None and take nothing if the quota does not allow it now."""
    model = request.model
    if (quota.closed_for(model) if quota.scoped else quota.closed_until) > now:
        return None
    if quota.blocks:
        quota.forget_ended_blocks(now)
    if quota.probation and quota.probe_holds_until(model) > now:
        return None
    cost = request.cost
    draws: list[Draw] = []
    for state in quota.unscoped if model is None else quota.limits_for(model):
        amount = cost[state.dimension]
        if amount is None:
            amount = estimate_amount(state, request)
        if amount is not None:
            stamp = state.reserve(amount, now)
            if stamp is not None:
                draws.append((state, amount, False, stamp))
                continue
        elif state.usage.set_aside:
            continue
        elif not state.usage.in_flight:
            stamp = state.reserve(0.0, now)
            if stamp is not None:
                state.usage.in_flight += 1
                draws.append((state, 0.0, True, stamp))
                continue
        for taken, so_much, guessed, mark in reversed(draws):
            taken.undo(mark, so_much)
            taken.usage.in_flight -= guessed
        return None
    if quota.probation:
        quota.begin_probe(model, now)
    return draws


def starts_at(quota: Quota, request: LeaseRequest, now: float) -> float:
    """Return when the quota allows *request*. FOREVER: never, or only when another lease ends."""
    model, cost = request.model, request.cost
    at = max(now, quota.closed_for(model))
    if quota.probation:
        at = max(at, quota.probe_holds_until(model))
    for state in quota.limits_for(model):
        amount = cost[state.dimension]
        if amount is None:
            amount = estimate_amount(state, request)
        if amount is None:
            if state.usage.set_aside:
                continue
            if state.usage.in_flight:
                return FOREVER
            amount = 0.0
        elif amount > state.largest:
            return FOREVER
        ready = state.ready_at(amount, now)
        if ready > at:
            at = ready
    return at


def reopens_at(quota: Quota, request: LeaseRequest, now: float) -> float:
    """Return when cooldowns and limits of the quota allow *request*, whatever is leased or being probed now."""
    at = max(now, quota.closed_for(request.model))
    for state in quota.limits_for(request.model):
        amount = request.cost[state.dimension]
        if amount is None:
            amount = estimate_amount(state, request)
        if amount is not None and amount <= state.largest and at < (ready := state.ready_at(amount, now)) < FOREVER:
            at = ready
    return at


def opens_at(quota: Quota, model: str | None, now: float) -> float:
    """Return a lower bound for every request for *model* at any cost: none can start before it."""
    at = quota.closed_for(model)
    if quota.probation:
        at = max(at, quota.probe_holds_until(model))
    for state in quota.limits_for(model):
        if state.usage.set_aside:
            continue  # a request without a cost skips it
        ready = state.ready_at(1.0 if state.dimension == REQUESTS else 0.0, now)
        if ready > at:
            at = ready
    return at


def find_exceeded_limit(quota: Quota, request: LeaseRequest) -> LimitState | None:
    """Return the limit that the declared cost of *request* exceeds even when nothing is used."""
    for state in quota.limits_for(request.model):
        amount = declared_amount(state, request)
        if amount is not None and amount > state.largest:
            return state
    return None


def with_margin(request: LeaseRequest, times: int, keys: Iterable[Key]) -> LeaseRequest:
    """Return *request* with more tokens reserved, after it was rate-limited that many times in a row.

    Its declared cost is probably too low, so that it would start too early and be refused every time. The margin never
    exceeds what the largest quota of *keys* allows: the request must stay feasible. Where no limit on tokens is known,
    a refusal says nothing about the cost.
    """
    usable = [key.quota for key in keys if key.could_serve(request.labels, request.model)]
    widest = max((_room(quota, request) for quota in usable), default=1.0)
    factor = max(1.0, min(_PADDING ** min(times, _MOST_PADDINGS), widest))
    requests, *tokens = request.cost
    whole, given, made = (None if amount is None else amount * factor for amount in tokens)
    return LeaseRequest(
        (requests, whole, given, made), request.model, request.affinity, request.priority, request.labels
    )


def _room(quota: Quota, request: LeaseRequest) -> float:
    """Return how many times the tokens of *request* fit into this quota when it is full."""
    rooms = []
    for state in quota.limits_for(request.model):
        amount = declared_amount(state, request)
        if amount and state.dimension != REQUESTS and state.source != "estimated":
            largest = min(state.largest, state.limit.largest)
            room = largest / amount
            rooms.append(room if room * amount <= largest else math.nextafter(room, 0.0))
    return min(rooms, default=1.0)


class RefillClaim:
    """A request that waits for a quota to refill, and has a right to that refill before later ones."""

    __slots__ = ("amounts", "at", "key")

    def __init__(self, key: Key, at: float, amounts: dict[LimitState, float]) -> None:
        self.key = key
        self.at = at
        self.amounts = amounts  # its own amounts plus those of the earlier claims


class RefillClaims:
    """The claims of earlier requests while the queue is served. Only waiting for a refill makes one.

    A request that waits for a cooldown or a new day claims nothing: what others use meanwhile does not delay it, and an
    hour's wait for one model must not block another.
    """

    __slots__ = ("_by_quota",)

    def __init__(self) -> None:
        self._by_quota: dict[Quota, list[RefillClaim]] = {}

    def __contains__(self, quota: Quota) -> bool:
        return quota in self._by_quota

    def add(self, key: Key, request: LeaseRequest, now: float, at: float) -> None:
        """Claim the refill that *request* waits for, if it is one; *request* will start on *key* at *at*."""
        quota = key.quota
        if quota.closed_for(request.model) > now:
            return
        earlier = self._by_quota.get(quota)
        amounts = dict(earlier[-1].amounts) if earlier else {}
        for state, amount, _ in compute_draws(quota, request):
            if not state.refills and state.ready_at(amount, now) > now:
                return
            amounts[state] = amounts.get(state, 0.0) + amount
        self._by_quota.setdefault(quota, []).append(RefillClaim(key, at, amounts))

    def starts_at(self, key: Key, request: LeaseRequest, now: float, alone: float) -> float:
        """Return when *request* may start on *key* if it could start at *alone* without claims."""
        claims = self._by_quota.get(key.quota)
        if claims is None or alone == FOREVER:
            return alone
        if sum(claim.key is key for claim in claims) >= key.slots - key.leases:
            return FOREVER  # all its free slots are claimed: as good as leased
        draws = compute_draws(key.quota, request)
        if alone <= now and all(self._leaves(claim, draws, now) for claim in claims):
            return now
        # Behind the claims: what they take counts as taken.
        taken = claims[-1].amounts
        at = max(alone, claims[-1].at)
        for state, amount, _ in draws:
            at = max(at, state.ready_at(amount, now, taken.get(state, 0.0)))
        return at

    @staticmethod
    def _leaves(claim: RefillClaim, draws: list[tuple[LimitState, float, bool]], now: float) -> bool:
        """Return True if starting with *draws* now does not delay the claim."""
        return all(
            state.ready_at(claim.amounts[state], now, amount) <= claim.at
            for state, amount, _ in draws
            if amount and state in claim.amounts
        )
