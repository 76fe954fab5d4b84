"""Random pool scenarios of thirty to sixty steps, reproducible by their seed."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from agentos import Limit
from agentos.providers import Event, Reading

from .pool_scenarios import (
    CoreTeller,
    Step,
    Story,
    call_off,
    clear,
    enqueue,
    give_back,
    join,
    rate_limited,
    rejected,
    reports,
    retire,
    revive,
    settle,
    spent,
    take,
    time_passes,
    wall_clock_is_set,
)

# Rates and durations that are exact in binary, so that all arrive at the same instants.
LIMITS: list[tuple[Limit, ...]] = [
    (),
    (),
    (Limit("requests", 4, per=8),),
    (Limit("requests", 4, per=8, burst=1),),
    (Limit("tokens", 64, per=16),),
    (Limit("requests", 8, per=4), Limit("tokens", 64, per=16)),
    (Limit("tokens", 64, per=16, burst=128),),
    (Limit("requests", 3, per=4, window="sliding"),),
    (Limit("tokens", 64, per=8, window="sliding"),),
    (Limit("tokens", 64, per=16, model="a"), Limit("requests", 4, per=2)),
    (Limit("requests", 6, per="day", resets_at="00:00", tz="America/Los_Angeles"), Limit("tokens", 64, per=16)),
    (Limit("tokens", 128, per="day"),),
]
LABELS = [None, None, None, {"tier": "paid"}]
MODELS = [None, None, "a", "a-2024-08-06", "b"]
COSTS = [8.0, 8.0, 16.0, 16.0, 16.0, 40.0, 40.0, 64.0, 64.0, 160.0]
USED = [0.0, 4.0, 16.0, 48.0, 80.0]
AT_MOST_WAITING = 10

SAID = {
    Event.OK: 8,
    Event.LIMITED: 8,
    Event.PARKED: 1,
    Event.NOT_ENTITLED: 1,
    Event.MONEY_GONE: 0.5,
    Event.KEY_DEAD: 1,
    Event.BUSY: 4,
    Event.NETWORK: 3,
    Event.RAMP: 2,
    Event.CALLER: 1,
}

HAPPENINGS = {
    "take": 10,
    "enqueue": 24,
    "call_off": 4,
    "give_back": 24,
    "settle": 14,
    "reports": 8,
    "rate_limited": 5,
    "rejected": 1,
    "spent": 1,
    "revive": 4,
    "retire": 1,
    "clear": 1,
    "join": 1,
    "time_passes": 20,
    "wall_clock_is_set": 1,
}


def random_story(luck: int) -> Story:
    return _Author(luck).story()


class _Author:
    """Tells the core each step as it makes it up, so that most of them have something to be about."""

    def __init__(self, luck: int) -> None:
        self.r = r = random.Random(luck)
        self.luck = luck
        self.names = 0
        self.asked = 0
        self.settled: set[str] = set()
        self.quotas: list[tuple[Limit, ...]] = []
        self.simple = r.random() < 0.3  # one kind of request and one-slot keys: the way through the core most taken
        # An estimate is made anew only now and then, when somebody asks for it. So that it does not matter when, all
        # use the same where some do not tell their cost.
        self.always_used = r.choice(USED[1:]) if r.random() < 0.4 else None
        options: dict[str, Any] = {}
        if r.random() < 0.15:
            options["keep_free"] = 1
        if r.random() < 0.15:
            options["max_lease"] = 32.0
        self.options = options
        self.credentials = [self._credential() for _ in range(r.randint(1 + len(options), 4))]

    def story(self) -> Story:
        beginning = Story(f"story {self.luck}", self.credentials, (), options=self.options)
        self.core = CoreTeller(beginning)
        steps: list[Step] = []
        for _ in range(self.r.randint(30, 60)):
            happening = self.r.choices(list(HAPPENINGS), weights=list(HAPPENINGS.values()))[0]
            step: Step | None = getattr(self, happening)()
            if step is not None:
                self.core.do(step)
                steps.append(step)
        return dataclasses.replace(beginning, steps=steps)

    def join(self) -> Step | None:
        return self._credential() if self.names < 5 else None

    def _credential(self) -> Step:
        r = self.r
        self.names += 1
        facts: dict[str, Any] = {"slots": 1 if self.simple else r.choice([1, 1, 2, 3])}
        shared = r.randint(0, 5)
        if shared < len(self.quotas):
            facts |= {"quota": f"quota-{shared}", "limits": self.quotas[shared]}
        else:
            facts["limits"] = r.choice(LIMITS)
            if r.random() < 0.5:
                facts["quota"] = f"quota-{len(self.quotas)}"
                self.quotas.append(facts["limits"])
        if not self.simple:
            facts["labels"] = r.choice(LABELS)
        return join(f"key-{self.names}", **facts)

    def _ask(self) -> dict[str, Any]:
        r = self.r
        ask: dict[str, Any] = {"cost": {"tokens": r.choice(COSTS)}, "priority": r.choice([0, 0, 0, 1])}
        if self.always_used is not None and r.random() < 0.5:
            del ask["cost"]
        if not self.simple:
            ask |= {"model": r.choice(MODELS), "labels": r.choice(LABELS), "affinity": r.choice([None, None, "x", "y"])}
        return {argument: value for argument, value in ask.items() if value}

    def _somebody(self) -> str:
        self.asked += 1
        return f"r{self.asked}"

    def _holder(self) -> str | None:
        core = self.core.core
        holders = [who for who, grant in self.core.grants.items() if core.leases.get(grant.token) is grant]
        if self.r.random() < 0.03:
            holders = list(self.core.grants)  # who may have given it back already
        return self.r.choice(holders) if holders else None

    def _key(self) -> str:
        return self.r.choice(list(self.core.core.keys))

    def take(self) -> Step:
        return take(self._somebody(), **self._ask())

    def enqueue(self) -> Step | None:
        return enqueue(self._somebody(), **self._ask()) if self.core.core.waiting < AT_MOST_WAITING else None

    def call_off(self) -> Step | None:
        return call_off(self.r.choice(list(self.core.tickets))) if self.core.tickets else None

    def give_back(self) -> Step | None:
        who = self._holder()
        return None if who is None else give_back(who)

    def settle(self) -> Step | None:
        who = self._holder()
        if who is None or who in self.settled:
            return None
        self.settled.add(who)
        return settle(who, tokens=self.always_used or self.r.choice(USED))

    def rate_limited(self) -> Step | None:
        who = self._holder()
        model = None if self.simple else self.r.choice([None, None, *MODELS])
        return None if who is None else rate_limited(who, self.r.choice([0.0, 0.5, 0.5, 3.0, 700.0]), model)

    def reports(self) -> Step | None:
        r, who = self.r, self._holder()
        if who is None:
            return None
        dimension, least = r.choice([("requests", 16.0), ("requests", 16.0), ("tokens", 64.0)])
        left = Reading(dimension, r.choice([least, 64.0]), r.choice([0.0, 2.0, 8.0, 64.0]), None, 64.0, "a header")
        readings = [left] if r.random() < 0.5 else []
        event = r.choices(list(SAID), weights=list(SAID.values()))[0]
        told = {"provider": r.choice("xy"), "status": r.choice([401, 403]), "scoped": r.random() < 0.3}
        return reports(who, event, r.choice([None, 0.0, 0.5, 4.0, 32.0]), *readings, **told)

    def rejected(self) -> Step | None:
        who = self._holder()
        return None if who is None else rejected(who)

    def spent(self) -> Step | None:
        who = self._holder()
        return None if who is None else spent(who)

    def revive(self) -> Step:
        return revive(self._key())

    def retire(self) -> Step:
        return retire(self._key())

    def clear(self) -> Step | None:
        return clear(self._key()) if hasattr(self.core.core, "clear") else None

    def time_passes(self) -> Step:
        return time_passes(self.r.choice([0.25, 0.25, 0.5, 0.75, 1.25, 2.0, 5.0, 16.0, 3600.0]))

    def wall_clock_is_set(self) -> Step:
        # Never back: on a day that has begun twice, what was used the first time is not known any more.
        return wall_clock_is_set(self.r.choice([3600.0, 86_400.0]))
