"""Pool scenarios, step by step, with two executors: the pure core, and a pool of some store."""

from __future__ import annotations

import dataclasses
import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentos import (
    Credential,
    CredentialState,
    Lease,
    Limit,
    NeverFits,
    NoCredentialAvailable,
    NoUsableCredential,
)
from agentos.pool.completion_queue import CompletionQueue, QueuedRequest
from agentos.pool.core.cost import parse_used, request_cost
from agentos.pool.core.credential_report import Headroom, KeyReport, build_report
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.limits.base import FOREVER
from agentos.pool.core.records import Grant, KeySpec, LeaseRequest, Ticket
from agentos.pool.core.states import TicketState
from agentos.pool.credential import parse_labels
from agentos.pool.lease import ACQUIRED
from agentos.pool.runtime.feedback import describe_answer
from agentos.providers import Event, Reading, Signal
from agentos.testing import FakeClock

from .store_contract import Place

MIDNIGHT = 1_700_006_400.0  # 2023-11-15 00:00 UTC


# -- what can happen ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One thing that happens to *subject*: a requester, a credential, or time."""

    verb: str
    subject: Any
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.verb}({', '.join([repr(self.subject), *(f'{k}={v!r}' for k, v in self.facts.items())])})"


def join(name: str, **facts: Any) -> Step:
    """A credential joins: slots, quota, limits, labels."""
    return Step("join", name, facts)


def take(who: str, **ask: Any) -> Step:
    """Somebody asks for a lease at once: cost, model, affinity, priority, labels."""
    return Step("take", who, ask)


def enqueue(who: str, **ask: Any) -> Step:
    """Somebody gets in line."""
    return Step("enqueue", who, ask)


def call_off(who: str) -> Step:
    """Somebody leaves the line, or passes on the lease that has just come."""
    return Step("call_off", who)


def give_back(who: str) -> Step:
    return Step("give_back", who)


def settle(who: str, **amounts: float) -> Step:
    return Step("settle", who, amounts)


def rate_limited(who: str, seconds: float, model: str | None = None) -> Step:
    return Step("rate_limited", who, {"seconds": seconds, "model": model})


def reports(who: str, event: Event, delay: float | None = None, *readings: Reading, **facts: Any) -> Step:
    """The answer to a call: an event, a delay, what is left; provider, scoped, status, evidence."""
    return Step("reports", who, {"signal": Signal(event, delay, readings=readings, **facts)})


def rejected(who: str) -> Step:
    return Step("rejected", who)


def spent(who: str) -> Step:
    return Step("spent", who)


def revive(name: str) -> Step:
    return Step("revive", name)


def retire(name: str) -> Step:
    return Step("retire", name)


def clear(name: str) -> Step:
    return Step("clear", name)


def time_passes(seconds: float) -> Step:
    return Step("time_passes", seconds)


def wall_clock_is_set(by: float) -> Step:
    """The hour of the day changes by so many seconds, without time having passed."""
    return Step("wall_clock_is_set", by)


@dataclass(frozen=True)
class Story:
    """*starts* is the gist of it: who got which credential, and after how many seconds, in order."""

    name: str
    credentials: Sequence[Step]
    steps: Sequence[Step]
    starts: Sequence[tuple[str, str, float]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of the pool: keep_free, max_lease
    begins: float = MIDNIGHT - 3600.0  # by the wall clock

    def __str__(self) -> str:
        return "\n".join([f"{self.name} {dict(self.options)}", *map(repr, [*self.credentials, *self.steps])])


# -- telling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One credential, in words that do not depend on who tells."""

    name: str
    quota: str
    state: str
    until: float | None
    why: str | None
    slots: int
    holders: tuple[str, ...]
    limits: tuple[Headroom, ...]
    lessons: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """The answer of one step, the waits it ended, and the state after it."""

    said: Any
    starts: tuple[tuple[str, str, float], ...]  # who, on which credential, at which instant: in order
    failures: tuple[tuple[str, str], ...]  # who is told that it waits in vain, and why: in no order
    now: float
    waiting: tuple[str, ...]
    first_starts_at: float | None
    rows: tuple[Row, ...]


class Teller(ABC):
    """Does the steps of a story to somebody, and says what came of it."""

    def __init__(self, clock: FakeClock, story: Story) -> None:
        self.clock = clock
        clock.wall_offset = story.begins - clock.now()
        self._starts: list[tuple[str, str, float]] = []
        self._failures: list[tuple[str, str]] = []

    def do(self, step: Step) -> Answer:
        return self.answer(self.act(step))

    def act(self, step: Step) -> Any:
        return getattr(self, step.verb)(step.subject, **step.facts)

    def answer(self, said: Any) -> Answer:
        waiting = self.waiting()
        first = self.starts_at(waiting[0]) if waiting else None
        rows = tuple(self.rows())
        starts, self._starts = tuple(self._starts), []
        failures, self._failures = tuple(sorted(self._failures)), []
        return Answer(said, starts, failures, self.clock.now(), tuple(waiting), first, rows)

    def time_passes(self, seconds: float) -> None:
        let_time_pass(seconds, self)

    def go_to(self, instant: float) -> None:
        while self.clock.now() < instant:
            self.clock.advance(instant - self.clock.now())
        self.look()

    def wall_clock_is_set(self, by: float) -> None:
        self.clock.wall_offset += by
        self.look()

    @abstractmethod
    def look(self) -> None:
        """See what is due."""

    @abstractmethod
    def looks_next(self) -> float:
        """The instant at which it wants to look again."""

    @abstractmethod
    def waiting(self) -> list[str]:
        """Return the waiters, in order."""

    @abstractmethod
    def starts_at(self, who: str) -> float | None:
        """Return when a waiter will likely start; None: when a lease is released."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Return the status of every credential."""


def let_time_pass(seconds: float, *tellers: Teller) -> None:
    """All look whenever one of them wants to: one who looks more often may find more, and that is no disagreement."""
    now = tellers[0].clock.now()
    target = now + seconds
    while (at := min(teller.looks_next() for teller in tellers)) <= target:
        assert at > now, "it wants to look again at once"
        now = at
        for teller in tellers:
            teller.go_to(now)
    for teller in tellers:
        teller.go_to(target)


def _ask(
    cost: Mapping[str, float] | None = None,
    model: str | None = None,
    affinity: str | None = None,
    priority: int = 0,
    labels: Any = None,
) -> LeaseRequest:
    return LeaseRequest(request_cost(cost), model, affinity, priority, parse_labels("labels", labels))


class CoreTeller(Teller):
    """The reference: the rule book itself, with no shell and no store."""

    def __init__(self, story: Story) -> None:
        super().__init__(FakeClock(), story)
        self.core = AdaptivePool(wall_offset=self.clock.wall_offset, **story.options)
        self.grants: dict[str, Grant] = {}
        self.tickets: dict[str, Ticket] = {}
        for step in story.credentials:
            self.join(step.subject, **step.facts)

    def _note(self, touched: Sequence[Ticket]) -> None:
        for ticket in touched:
            who = str(ticket.requester)
            if ticket.grant is not None:
                self.grants[who] = ticket.grant
                self._starts.append((who, ticket.grant.key.name, self.clock.now()))
            else:
                self._failures.append((who, repr(ticket.error)))

    def join(
        self,
        name: str,
        slots: int | str = 1,
        quota: str | None = None,
        limits: tuple[Limit, ...] = (),
        labels: Any = None,
    ) -> None:
        auto = not isinstance(slots, int)
        spec = KeySpec(name, 1 if auto else int(slots), quota, limits, parse_labels("labels", labels), auto)
        self._note(self.core.add(spec, self.clock.now()))

    def take(self, who: str, **facts: Any) -> Any:
        ask, now = _ask(**facts), self.clock.now()
        grant = self.core.acquire(ask, who, now)
        if grant is None:
            ticket = Ticket(ask, who)
            touched = [*self.core.enqueue(ticket, now)]
            if ticket.state is TicketState.WAITING:
                touched += self.core.withdraw(ticket, now)
            self._note([other for other in touched if other is not ticket])
            if ticket.error is not None:
                return repr(ticket.error)
            grant = ticket.grant
        if grant is None:
            self._bring_up_to_date()
            at = self.core.earliest_start(ask, now)
            return ("not now", None if at == FOREVER else at)
        self.grants[who] = grant
        return grant.key.name

    def enqueue(self, who: str, **facts: Any) -> None:
        ticket = self.tickets[who] = Ticket(_ask(**facts), who)
        self._note(self.core.enqueue(ticket, self.clock.now()))

    def call_off(self, who: str) -> None:
        if who in self.tickets:
            self._note(self.core.withdraw(self.tickets[who], self.clock.now()))

    def give_back(self, who: str) -> bool | None:
        return self._of(who, lambda grant, now: self.core.release(grant, now))

    def settle(self, who: str, **amounts: float) -> bool | None:
        return self._of(who, lambda grant, now: self.core.settle(grant, parse_used("settle", amounts), now))

    def rate_limited(self, who: str, seconds: float, model: str | None) -> bool | None:
        def close(grant: Grant, now: float) -> Sequence[Ticket]:
            return self.core.close_quota(grant.key, now + seconds, model=model, evidence="", now=now)

        return self._of(who, close, held=True)

    def reports(self, who: str, signal: Signal) -> None:
        def report(grant: Grant, now: float) -> Sequence[Ticket] | None:
            reason = signal.evidence if signal.event is Event.OK else (describe_answer(grant, signal),)
            heard = self.core.report(grant, replace(signal, evidence=reason), now)
            return None if heard is None else heard.to_wake

        self._of(who, report, held=True)

    def rejected(self, who: str) -> bool | None:
        return self._of(who, lambda grant, now: self.core.reject(grant.key, "401", now), held=True)

    def spent(self, who: str) -> bool | None:
        return self._of(who, lambda grant, now: self.core.spend(grant.key, "no money", now), held=True)

    def _of(
        self, who: str, act: Callable[[Grant, float], Sequence[Ticket] | None], *, held: bool = False
    ) -> bool | None:
        grant = self.grants.get(who)
        if grant is None:
            return None
        if held and self.core.leases.get(grant.token) is not grant:
            return False
        touched = act(grant, self.clock.now())
        self._note(touched or ())
        return touched is not None

    def revive(self, name: str) -> None:
        self._note(self.core.revive(self.core.keys[name], self.clock.now()))

    def retire(self, name: str) -> None:
        self._note(self.core.retire(self.core.keys[name], self.clock.now()))

    def clear(self, name: str) -> None:
        self._note(self.core.clear(self.core.keys[name], self.clock.now()))

    def look(self) -> None:
        if self.core.wall.offset != self.clock.wall_offset:
            self.core.on_wall_clock_change(self.clock.wall_offset)
        self._note(self.core.tick(self.clock.now()))

    def looks_next(self) -> float:
        return self.core.next_at

    def _bring_up_to_date(self) -> None:
        if self.core.max_lease is not None:
            self._note(self.core.tick(self.clock.now()))

    def waiting(self) -> list[str]:
        self._bring_up_to_date()
        return [str(ticket.requester) for ticket in self.core.tickets()]

    def starts_at(self, who: str) -> float | None:
        ticket, now = self.tickets[who], self.clock.now()
        at = self.core.earliest_start(ticket.request, now)
        if now < ticket.starts_at < FOREVER:
            at = max(at, ticket.starts_at)
        return None if at == FOREVER else at

    def rows(self) -> Iterator[Row]:
        now = self.clock.now()
        for row in build_report(self.core, now):
            until = row.until if now < row.until < FOREVER else None
            holders, lessons = tuple(sorted(row.holders)), tuple(what for _, what in row.history)
            yield Row(row.name, row.quota, row.state, until, _why(row), row.slots, holders, row.limits, lessons)


def _why(row: KeyReport | CredentialState) -> str | None:
    """Return the reason if it names no lease, since each store numbers leases in its own way."""
    return row.why if row.state in ("dead", "spent", "retired", "limited") else None


class PoolTeller(Teller):
    """A pool, through its front door and a desk."""

    def __init__(self, place: Place, story: Story) -> None:
        super().__init__(place.clock, story)
        self.pool = place.open(
            *(_credential(step.subject, **step.facts) for step in story.credentials), **story.options
        )
        self.desk = CompletionQueue(lambda: None)
        self.leases: dict[str, Lease] = {}
        self.tickets: dict[str, QueuedRequest] = {}

    def _note(self) -> None:
        while self.desk.completed:
            ticket = self.desk.completed.popleft()
            if ticket.grant is not None:
                self.leases[ticket.item] = Lease(self.pool._runtime, ticket.grant, ACQUIRED)
                self._starts.append((ticket.item, ticket.grant.key.name, self.clock.now()))
            else:
                self._failures.append((ticket.item, repr(ticket.error)))

    def join(self, name: str, **facts: Any) -> None:
        assert self.pool.add(_credential(name, **facts)) == name
        self._note()

    def take(self, who: str, **ask: Any) -> Any:
        try:
            lease = self.leases[who] = self.pool.acquire_nowait(who, **ask)
        except NoCredentialAvailable as error:
            said: Any = ("not now", None if error.next_free_in is None else self.clock.now() + error.next_free_in)
        except (NeverFits, NoUsableCredential) as error:
            said = repr(error)
        else:
            said = lease.name
        self._note()
        return said

    def enqueue(self, who: str, **ask: Any) -> None:
        ticket = self.tickets[who] = QueuedRequest(_ask(**ask), who, self.desk, who)
        self.pool._runtime.enqueue(ticket)
        self._note()

    def call_off(self, who: str) -> None:
        if who in self.tickets:
            self.pool._runtime.cancel(self.tickets[who])
            self._note()

    def give_back(self, who: str) -> bool | None:
        return self._of(who, Lease.release)

    def settle(self, who: str, **amounts: float) -> bool | None:
        return self._of(who, lambda lease: lease.settle(amounts))

    def rate_limited(self, who: str, seconds: float, model: str | None) -> bool | None:
        return self._of(who, lambda lease: lease.rate_limited(seconds, model))

    def reports(self, who: str, signal: Signal) -> None:
        self._of(who, lambda lease: lease.report(signal) is not None)

    def rejected(self, who: str) -> bool | None:
        return self._of(who, lambda lease: lease.rejected("401"))

    def spent(self, who: str) -> bool | None:
        return self._of(who, lambda lease: lease.spent("no money"))

    def _of(self, who: str, act: Callable[[Lease], bool]) -> bool | None:
        if who not in self.leases:
            return None
        said = act(self.leases[who])
        self._note()
        return said

    def revive(self, name: str) -> None:
        self.pool.revive(name)
        self._note()

    def retire(self, name: str) -> None:
        self.pool.retire(name)
        self._note()

    def clear(self, name: str) -> None:
        self.pool.clear(name)
        self._note()

    def look(self) -> None:
        self.pool._runtime.on_timer(self.desk)
        self._note()

    def looks_next(self) -> float:
        return self.desk.armed_at

    def waiting(self) -> list[str]:
        places = {who: said.position for who in self.tickets if (said := self.pool.explain(who)).state == "waiting"}
        self._note()
        assert sorted(place or 0 for place in places.values()) == list(range(1, len(places) + 1))
        assert self.desk.waiting == len(places)
        return sorted(places, key=lambda who: places[who] or 0)

    def starts_at(self, who: str) -> float | None:
        starts_in = self.pool.explain(who).starts_in
        return None if starts_in is None else self.clock.now() + starts_in

    def rows(self) -> Iterator[Row]:
        to_instants = self.clock.now() - self.clock.wall()
        for row in self.pool.snapshot():
            until = row.rate_limited_until + to_instants if row.rate_limited_until else None
            holders = tuple(sorted(row.reserved_by.split(", "))) if row.reserved_by else ()
            assert row.leases == len(holders)
            lessons = tuple(lesson.what for lesson in row.history)
            yield Row(row.name, row.quota, row.state, until, _why(row), row.slots, holders, row.limits, lessons)


def _credential(name: str, **facts: Any) -> Credential:
    return Credential(f"the-secret-of-{name}", name=name, **facts)


# -- comparing ----------------------------------------------------------------------------------------------------


def told_by_the_core(story: Story) -> list[Answer]:
    teller = CoreTeller(story)
    return [teller.do(step) for step in story.steps]


def starts_in(story: Story, answers: Sequence[Answer]) -> list[tuple[str, str, float]]:
    """Return which holder got which credential, and how many seconds after the beginning, in order."""
    began = FakeClock().now()
    keys = {row.name for answer in answers for row in answer.rows}
    found = []
    for step, answer in zip(story.steps, answers, strict=True):
        if step.verb == "take" and answer.said in keys:
            found.append((step.subject, answer.said, answer.now - began))
        found += [(who, key, at - began) for who, key, at in answer.starts]
    return found


def disagreement(story: Story, place: Place) -> str | None:
    """Return where a pool at *place* differs from the core; None if nowhere."""
    reference = CoreTeller(story)
    try:
        teller = PoolTeller(place, story)
    except Exception:
        return f"{story}\n{traceback.format_exc()}"
    for number, step in enumerate(story.steps, start=1):
        try:
            if step.verb == "time_passes":
                let_time_pass(step.subject, reference, teller)
                ours = theirs = None
            else:
                ours, theirs = reference.act(step), teller.act(step)
            expected, heard = reference.answer(ours), teller.answer(theirs)
        except Exception:
            return f"{story}\n\nat step {number}, {step}:\n{traceback.format_exc()}"
        differing = [
            f"  {fact.name}: {getattr(heard, fact.name)!r}\n    the core: {getattr(expected, fact.name)!r}"
            for fact in dataclasses.fields(Answer)
            if not alike(getattr(heard, fact.name), getattr(expected, fact.name))
        ]
        if teller.looks_next() > reference.looks_next() + 1e-6:
            differing.append(f"  the next look: {teller.looks_next()}, and the core: {reference.looks_next()}")
        if differing:
            return "\n".join([f"{story}\n\nafter step {number}, {step}, the pool says of", *differing])
    return None


def alike(one: Any, other: Any) -> bool:
    """The same, but for errors of rounding."""
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        return all(alike(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(alike(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def shortened(story: Story, disagrees: Callable[[Story], object]) -> Story:
    """The story with every step left out that is not needed for the disagreement."""
    before = None
    while before != len(story.steps):
        before = number = len(story.steps)
        while number:
            number -= 1
            without = dataclasses.replace(story, steps=[*story.steps[:number], *story.steps[number + 1 :]])
            if story.steps[number].verb != "join" and disagrees(without):  # later steps may speak of one that joined
                story = without
    return story
