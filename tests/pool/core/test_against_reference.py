"""The core and the reference pool never differ over the same random steps."""

from __future__ import annotations

import os
import random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from agentos.pool import Limit
from agentos.pool.core.checked_pool import CheckedPool
from agentos.pool.core.limits.base import FOREVER
from agentos.pool.core.records import Grant, KeySpec, Labels, LeaseRequest, Ticket
from agentos.pool.core.states import TicketState

from .reference_pool import NaiveKey, NaiveLease, NaiveLimit, NaivePool, NaiveQuota

# Rates that are exact in binary, so that both arrive at the same instants.
LIMITS: list[tuple[Limit, ...]] = [
    (),
    (Limit("requests", 4, per=8),),
    (Limit("requests", 4, per=8, burst=1),),
    (Limit("tokens", 64, per=16),),
    (Limit("requests", 8, per=4), Limit("tokens", 64, per=16)),
    (Limit("tokens", 64, per=16, burst=128),),
    (Limit("requests", 3, per=4, window="sliding"),),
    (Limit("tokens", 64, per=8, window="sliding"),),
    (Limit("tokens", 64, per=16, model="a"), Limit("requests", 4, per=2)),
]
LABELS: list[Labels] = [frozenset(), frozenset(), frozenset({("tier", "paid")})]
MODELS = [None, None, "a", "b"]
AT_MOST_WAITING = 14  # all within sight of the first: see LOOK_BEHIND


class Story(RuleBasedStateMachine):
    """One step is one thing that happens. Hypothesis picks the luck of each step, and can leave steps out."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.pool = CheckedPool()
        self.naive = NaivePool()
        self.quotas: list[tuple[str, tuple[Limit, ...], NaiveQuota]] = []
        self.tickets: dict[int, Ticket] = {}
        self.leases: list[tuple[Grant, NaiveLease]] = []
        self.names = 0
        self.simple = False  # one kind of request and one-slot keys: the way through the core that is taken most

    @initialize(luck=st.integers(0, 2**32 - 1))
    def first_keys(self, luck: int) -> None:
        r = random.Random(luck)
        self.simple = r.random() < 0.3
        for _ in range(r.randint(1, 3)):
            self.join(r)

    @rule(luck=st.integers(0, 2**32 - 1))
    def step(self, luck: int) -> None:
        r = random.Random(luck)
        happening = r.choices(list(self.HAPPENINGS), weights=list(self.HAPPENINGS.values()))[0]
        getattr(self, happening)(r)

    HAPPENINGS: ClassVar[dict[str, int]] = {
        "ask_at_once": 8,
        "get_in_line": 16,
        "leave_the_line": 8,
        "give_back": 16,
        "settle_and_give_back": 16,
        "too_many": 4,
        "take_out": 1,
        "bring_back": 8,
        "another_key": 1,
        "time_passes": 24,
    }

    # -- the two are told the same ----------------------------------------------------------------------------

    def an_ask(self, r: random.Random) -> LeaseRequest:
        tokens = float(r.choice([1, 8, 16, 16, 40, 64]))
        cost = (float(r.choice([1, 1, 1, 2])), tokens, tokens, tokens)
        if self.simple:
            return LeaseRequest(cost, None, None, r.choice([0, 0, 0, 1]))
        return LeaseRequest(cost, r.choice(MODELS), None, r.choice([0, 0, 0, 1]), r.choice(LABELS))

    def another_key(self, r: random.Random) -> None:
        if len(self.naive.keys) < 5:
            self.join(r)

    def join(self, r: random.Random) -> None:
        limits, slots, labels, shared = r.choice(LIMITS), r.choice([1, 1, 2, 3]), r.choice(LABELS), r.randint(0, 3)
        if self.simple:
            limits, slots, labels = r.choice(LIMITS[:-1]), 1, frozenset()
        if 0 < shared <= len(self.quotas):
            quota, limits, naive = self.quotas[shared - 1]
        else:
            quota, naive = f"quota-{len(self.quotas)}", NaiveQuota([NaiveLimit(limit) for limit in limits])
            self.quotas.append((quota, limits, naive))
        name = f"key-{len(self.naive.keys)}"
        self.naive.add(name, slots, naive, labels)
        self.compare(self.pool.add(KeySpec(name, slots, quota, limits, labels), self.now))

    def ask_at_once(self, r: random.Random) -> None:
        ask = self.an_ask(r)
        grant = self.pool.acquire(ask, None, self.now)
        if self.naive.waiting:
            assert grant is None
            return
        self.naive.enter(-1, ask)
        served = self.naive.serve(self.now)
        self.naive.waiting.clear()
        self.naive.next_at = FOREVER
        assert [lease.key.name for _, lease in served] == ([] if grant is None else [grant.key.name])
        if grant is not None:
            self.leases.append((grant, served[0][1]))

    def get_in_line(self, r: random.Random) -> None:
        for _ in range(min(r.randint(1, 6), AT_MOST_WAITING - len(self.naive.waiting))):
            self.one_gets_in_line(self.an_ask(r))

    def one_gets_in_line(self, ask: LeaseRequest) -> None:
        self.names += 1
        ticket = self.tickets[self.names] = Ticket(ask, str(self.names))
        touched = self.pool.enqueue(ticket, self.now)
        if ticket.state is TicketState.FAILED:
            assert not self.could_ever_start(ask)
            del self.tickets[self.names]
            return
        assert self.could_ever_start(ask)
        self.naive.enter(self.names, ask)
        self.compare(touched)

    def leave_the_line(self, r: random.Random) -> None:
        if not self.tickets:
            return
        name = r.choice(sorted(self.tickets))
        touched = self.pool.withdraw(self.tickets.pop(name), self.now)
        self.naive.waiting = [ticket for ticket in self.naive.waiting if ticket.name != name]
        self.compare(touched)

    def give_back(self, r: random.Random) -> None:
        if not self.leases:
            return
        grant, lease = self.leases.pop(r.randrange(len(self.leases)))
        touched = self.pool.release(grant, self.now)
        assert touched is not None
        assert self.pool.release(grant, self.now) is None
        self.naive.end(lease)
        self.compare(touched)

    def settle_and_give_back(self, r: random.Random) -> None:
        if not self.leases:
            return
        used = 1e9 if r.random() < 0.02 else r.choice([0, 4, 16, 80])
        grant, lease = self.leases.pop(r.randrange(len(self.leases)))
        touched = self.pool.settle(grant, (None, float(used), None, None), self.now)
        assert touched is not None
        self.naive.settle(lease, "tokens", float(used), self.now)
        self.compare(touched)
        after = self.pool.release(grant, self.now)
        assert after is not None
        self.naive.end(lease)
        self.compare(after)

    def too_many(self, r: random.Random) -> None:
        seconds, model = r.choice([0.0, 0.5, 0.5, 3.0, 700.0]), None if self.simple else r.choice(MODELS)
        naive = r.choice(self.naive.keys)
        key = self.pool.keys[naive.name]
        until = self.now + seconds
        touched = self.pool.close_quota(key, until, model=model, evidence="test", now=self.now)
        if seconds:
            naive.quota.closed[model] = max(until, naive.quota.closed.get(model, -FOREVER))
        self.compare(touched)

    def take_out(self, r: random.Random) -> None:
        naive = r.choice(self.naive.keys)
        key, how = self.pool.keys[naive.name], r.choice(["reject", "retire"])
        naive.alive = False
        touched = self.pool.reject(key, "test", self.now) if how == "reject" else self.pool.retire(key, self.now)
        self.fail_hopeless(touched)
        self.compare([ticket for ticket in touched if ticket.state is not TicketState.FAILED])

    def bring_back(self, r: random.Random) -> None:
        naive = r.choice(self.naive.keys)
        naive.alive = True
        self.compare(self.pool.revive(self.pool.keys[naive.name], self.now))

    def time_passes(self, r: random.Random) -> None:
        target = self.now + r.choice([1, 1, 2, 3, 5, 8, 20, 64]) / 4
        while self.pool.next_at <= target:
            self.now = self.pool.next_at
            self.compare(self.pool.tick(self.now))
            assert self.pool.next_at > self.now
        self.now = target
        self.compare(self.pool.tick(self.now))

    # -- and must say the same --------------------------------------------------------------------------------

    def compare(self, touched: object) -> None:
        assert isinstance(touched, (list, tuple))
        planned = {name: t.planned.name for name, t in self.tickets.items() if t.planned is not None}
        served = dict(self.naive.serve(self.now, planned))
        granted = {int(ticket.requester or 0): ticket for ticket in touched if ticket.state is TicketState.GRANTED}
        said = {name: ticket.grant.key.name for name, ticket in granted.items() if ticket.grant is not None}
        assert said == {name: lease.key.name for name, lease in served.items()}
        for name, ticket in granted.items():
            assert ticket.grant is not None
            self.leases.append((ticket.grant, served[name]))
            del self.tickets[name]
        # The core may look again sooner than needed, never later: nobody sleeps past an instant.
        assert self.pool.next_at <= self.naive.next_at + 1e-6

    def fail_hopeless(self, touched: object) -> None:
        assert isinstance(touched, (list, tuple))
        failed = {int(ticket.requester or 0) for ticket in touched if ticket.state is TicketState.FAILED}
        assert failed == {t.name for t in self.naive.waiting if not self.could_ever_start(t.ask)}
        self.naive.waiting = [ticket for ticket in self.naive.waiting if ticket.name not in failed]
        for name in failed:
            del self.tickets[name]

    def could_ever_start(self, ask: LeaseRequest) -> bool:
        return any(self.fits(key, ask) for key in self.naive.keys)

    @staticmethod
    def fits(key: NaiveKey, ask: LeaseRequest) -> bool:
        return (
            key.alive
            and ask.labels <= key.labels
            and all(need <= limit.limit.largest for limit, need in key.quota.needs(ask))
        )

    @invariant()
    def the_same_are_waiting(self) -> None:
        assert [int(t.requester or 0) for t in self.pool.tickets()] == [t.name for t in self.naive.waiting]
        assert self.pool.waiting == len(self.naive.waiting)


# 50,000 steps in `make test`, always the same; AGENTOS_FUZZ_STEPS=N walks that many others, never the same.
STEPS = int(os.environ.get("AGENTOS_FUZZ_STEPS", "50000"))
STEPS_A_STORY = 100
STORIES_A_TEST = 50  # Hypothesis slows down with every story a test has told


@pytest.mark.parametrize("number", range(max(1, STEPS // STEPS_A_STORY // STORIES_A_TEST)))
def test_the_core_and_the_naive_pool_never_disagree(number: int) -> None:
    luck = random.SystemRandom().getrandbits(32) if "AGENTOS_FUZZ_STEPS" in os.environ else number
    story = seed(luck)(type("Story", (Story,), {}))
    run_state_machine_as_test(
        story,
        settings=settings(
            max_examples=STORIES_A_TEST,
            stateful_step_count=STEPS_A_STORY,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            # Shrinking a story takes minutes; AGENTOS_SHRINK=1 asks for it.
            phases=tuple(Phase) if "AGENTOS_SHRINK" in os.environ else (Phase.generate,),
        ),
    )
