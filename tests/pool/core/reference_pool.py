"""A naive reference pool: lists, full scans, and the whole history replayed at every question."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentos.pool import Limit
from agentos.pool.core.cost import DIMENSIONS
from agentos.pool.core.records import LeaseRequest

FOREVER = float("inf")
EPSILON = 1e-6


@dataclass
class NaiveLimit:
    limit: Limit
    history: list[list[float]] = field(default_factory=list)  # [instant, amount], in order of time

    @property
    def heaviest(self) -> float:
        """What one request can take: of a bucket all it holds, and what flows in within a day."""
        limit = self.limit
        assert limit.per != "day"
        per_second = limit.amount / limit.per
        return FOREVER if limit.window == "sliding" else limit.largest + max(limit.per, 86_400.0) * per_second

    def leaves_at(self, start: float) -> float:
        """When a sliding window forgets a start: a little later than the provider may, which it reaches later."""
        assert self.limit.per != "day"
        return start + self.limit.per + min(0.01, 0.01 * self.limit.per)

    def level(self, now: float, extra: float) -> float:
        """What a bucket holds at *now*, by replaying every start since the beginning."""
        limit = self.limit
        assert limit.per != "day"
        rate = limit.amount / limit.per
        level, last = limit.largest, -FOREVER
        for at, amount in self.history:
            level = min(limit.largest, level + (rate * (at - last) if last > -FOREVER else 0.0)) - amount
            last = at
        if last > -FOREVER:
            level = min(limit.largest, level + rate * (now - last))
        return level - extra

    def used(self, at: float, now: float, extra: float) -> float:
        """What a sliding window has seen in the *per* seconds before *at*, had *extra* started at *now*."""
        entries = [*self.history, [now, extra]]
        return sum(amount for start, amount in entries if self.leaves_at(start) > at)

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        limit = self.limit
        assert limit.per != "day"
        if limit.window == "sliding":
            instants = sorted({now, self.leaves_at(now), *(self.leaves_at(start) for start, _ in self.history)})
            fitting = [t for t in instants if t >= now and self.used(t, now, extra) + need <= limit.amount + EPSILON]
            return fitting[0] if fitting else self.leaves_at(now)
        missing = need - self.level(now, extra)
        return now if missing * limit.per / limit.amount <= EPSILON else now + missing * limit.per / limit.amount


@dataclass(eq=False)
class NaiveQuota:
    limits: list[NaiveLimit]
    closed: dict[str | None, float] = field(default_factory=dict)  # model or None -> until

    def needs(self, ask: LeaseRequest) -> list[tuple[NaiveLimit, float]]:
        found = []
        for limit in self.limits:
            if limit.limit.model in (None, ask.model):
                amount = ask.cost[DIMENSIONS.index(limit.limit.dimension)]
                assert amount is not None, "the naive pool is always told the cost"
                found.append((limit, amount))
        return found

    def closed_until(self, ask: LeaseRequest) -> float:
        return max(self.closed.get(None, -FOREVER), self.closed.get(ask.model, -FOREVER))

    def starts_at(self, ask: LeaseRequest, now: float) -> float:
        if any(need > limit.limit.largest for limit, need in self.needs(ask)):
            return FOREVER
        return max([now, self.closed_until(ask), *(limit.ready_at(need, now) for limit, need in self.needs(ask))])


@dataclass(eq=False)
class NaiveKey:
    name: str
    slots: int
    quota: NaiveQuota
    labels: frozenset[tuple[str, str]]
    used: int
    alive: bool = True
    leases: int = 0


@dataclass(eq=False)
class NaiveLease:
    key: NaiveKey
    entries: list[tuple[NaiveLimit, list[float]]]


@dataclass(eq=False)
class NaiveTicket:
    name: int
    ask: LeaseRequest
    order: tuple[float, int]


@dataclass(eq=False)
class NaiveClaim:
    key: NaiveKey
    at: float
    needs: dict[int, float]  # by id of the limit; with those of earlier claims on the quota


class NaivePool:
    def __init__(self) -> None:
        self.keys: list[NaiveKey] = []
        self.waiting: list[NaiveTicket] = []
        self.next_at = FOREVER
        self.uses = 0
        self.arrivals = 0

    def add(self, name: str, slots: int, quota: NaiveQuota, labels: frozenset[tuple[str, str]]) -> None:
        self.uses += 1
        self.keys.append(NaiveKey(name, slots, quota, labels, self.uses))

    def enter(self, name: int, ask: LeaseRequest) -> None:
        self.arrivals += 1
        self.waiting.append(NaiveTicket(name, ask, (-ask.priority, self.arrivals)))
        self.waiting.sort(key=lambda ticket: ticket.order)

    def start(self, key: NaiveKey, ask: LeaseRequest, now: float) -> NaiveLease:
        self.uses += 1
        key.used = self.uses
        key.leases += 1
        entries = []
        for limit, need in key.quota.needs(ask):
            entry = [now, need]
            limit.history.append(entry)
            entries.append((limit, entry))
        return NaiveLease(key, entries)

    def end(self, lease: NaiveLease) -> None:
        lease.key.leases -= 1
        if lease.key.alive:
            self.uses += 1
            lease.key.used = self.uses

    def settle(self, lease: NaiveLease, dimension: str, actual: float, now: float) -> None:
        for limit, entry in lease.entries:
            if limit.limit.dimension == dimension:
                actual = min(actual, limit.heaviest)
                if actual <= entry[1] or limit.limit.window == "sliding":
                    entry[1] = actual
                else:
                    limit.history.append([now, actual - entry[1]])  # nobody could know before now

    def serve(self, now: float, planned: dict[int, str] | None = None) -> list[tuple[int, NaiveLease]]:
        """Go through everybody in order; start whoever may. Also finds the next instant worth a look.

        Where several keys are the earliest for one who has to wait, the rule lets the pool choose: *planned*.
        """
        self.next_at = FOREVER
        claims: dict[NaiveQuota, list[NaiveClaim]] = {}
        served = []
        for ticket in list(self.waiting):
            plans = [
                (self.may_start(key, ticket.ask, now, claims), key.leases, key.used, key)
                for key in self.fitting(ticket)
            ]
            plan = min(plans, key=lambda p: p[:3], default=None)
            if plan is not None and plan[0] > now:
                chosen = [
                    p for p in plans if p[3].name == (planned or {}).get(ticket.name) and p[0] <= plan[0] + EPSILON
                ]
                plan = chosen[0] if chosen else plan
            if plan is not None and plan[0] <= now:
                self.waiting.remove(ticket)
                served.append((ticket.name, self.start(plan[3], ticket.ask, now)))
            elif plan is not None and plan[0] < FOREVER:
                self.next_at = min(self.next_at, plan[0])
                self.claim(plan[3], ticket.ask, now, plan[0], claims)
        return served

    def fitting(self, ticket: NaiveTicket) -> list[NaiveKey]:
        return [k for k in self.keys if k.alive and k.leases < k.slots and ticket.ask.labels <= k.labels]

    def claim(
        self, key: NaiveKey, ask: LeaseRequest, now: float, at: float, claims: dict[NaiveQuota, list[NaiveClaim]]
    ) -> None:
        if key.quota.closed_until(ask) > now:
            return
        earlier = claims.setdefault(key.quota, [])
        needs = dict(earlier[-1].needs) if earlier else {}
        for limit, need in key.quota.needs(ask):
            needs[id(limit)] = needs.get(id(limit), 0.0) + need
        earlier.append(NaiveClaim(key, at, needs))

    def may_start(
        self, key: NaiveKey, ask: LeaseRequest, now: float, claims: dict[NaiveQuota, list[NaiveClaim]]
    ) -> float:
        alone = key.quota.starts_at(ask, now)
        earlier = claims.get(key.quota, [])
        if not earlier or alone == FOREVER:
            return alone
        if len([claim for claim in earlier if claim.key is key]) >= key.slots - key.leases:
            return FOREVER
        if alone <= now and all(self.leaves(claim, key.quota, ask, now) for claim in earlier):
            return now
        taken = earlier[-1].needs
        behind = [limit.ready_at(need, now, taken.get(id(limit), 0.0)) for limit, need in key.quota.needs(ask)]
        return max([alone, earlier[-1].at, *behind])

    def leaves(self, claim: NaiveClaim, quota: NaiveQuota, ask: LeaseRequest, now: float) -> bool:
        """Whether the claimant would start as early if *ask* started now."""
        return all(
            limit.ready_at(claim.needs[id(limit)], now, need) <= claim.at + EPSILON
            for limit, need in quota.needs(ask)
            if id(limit) in claim.needs
        )
