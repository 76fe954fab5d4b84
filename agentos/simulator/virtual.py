"""Simulate a whole run in virtual time: the pool's core, the run's core and the provider's rules, without a clock.

Time jumps from one event to the next, so that an hour of calls takes seconds, and the same plan, work and seed give
exactly the same log of events. Only the provider and time are simulated; the production code decides which item gets
which key when, what an answer means and what happens to an item.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..pool.core.cost import parse_used, request_cost
from ..pool.core.learning.adaptive_pool import AdaptivePool
from ..pool.core.limits.base import FOREVER
from ..pool.core.records import Grant, KeySpec, LeaseRequest, Ticket
from ..pool.core.reservations import with_margin
from ..pool.core.states import TicketState
from ..pool.limit import Limit
from ..providers import Event, Signal, classify
from ..runs.core.item_scheduler import ItemScheduler
from ..runs.core.outcome_rules import classify_signal, lacks_tokens
from ..runs.core.records import Attempt, Item
from ..runs.core.states import AttemptEnd
from .plan import ProviderPlan, QuotaPlan
from .rules import Admitted, Provider, Refused
from .statistics import Statistics

_UNANSWERED = ("drop", "cut", "stall", "hang")
_ENDLESS = ("stall", "hang")
_TIMEOUT = 600.0  # seconds after which a client gives up on an answer

# Requests of one run that wait for a lease at once, as in the dispatcher: more would only lengthen the queue.
_IN_LINE = 2


@dataclass(frozen=True, slots=True)
class Work:
    """One item: what its call uses at the provider, and what the pool expects it to use."""

    tokens: int = 0
    cost: tuple[tuple[str, float], ...] = ()
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a run in virtual time."""

    done: int
    failed: int
    unfinished: int
    seconds: float  # from the start to the end of the last call
    statistics: Statistics  # by the provider's count
    events: int

    @property
    def rejected(self) -> int:
        """Return the number of refused calls."""
        return sum(self.statistics.total.rejected.values())


def build_key_specs(plan: ProviderPlan, *, slots: int | Literal["auto"] = "auto", known: bool = False) -> list[KeySpec]:
    """Return the plan's keys as specs for a pool: always their quotas, and their limits if *known*."""
    limits = {quota.name: _stated(quota) for quota in plan.quotas}
    return [
        KeySpec(
            key.name,
            1 if slots == "auto" else slots,
            key.quota,
            limits[key.quota] if known else (),
            auto=slots == "auto",
        )
        for key in plan.keys
    ]


def _stated(quota: QuotaPlan) -> tuple[Limit, ...]:
    limits = []
    if quota.rpm is not None:
        limits.append(Limit("requests", quota.rpm, burst=quota.requests_at_once))
    if quota.tpm is not None:
        limits.append(Limit("tokens", quota.tpm, burst=quota.tokens_at_once))
    return tuple(limits)


class VirtualRun:
    """One run over the keys of a plan, with *parallel* workers. ``run`` advances it to its end, or to an instant.

    Pass *pool* to continue with what an earlier run learned. *log* gets an event for each call that begins and ends.
    """

    def __init__(
        self,
        plan: ProviderPlan,
        work: Iterable[Work],
        *,
        specs: Sequence[KeySpec] | None = None,
        parallel: int = 128,
        seed: int = 0,
        retries: int = 10,
        pool: AdaptivePool | None = None,
        provider: Provider | None = None,
        log: list[tuple[Any, ...]] | None = None,
    ) -> None:
        self.now = 0.0
        self.provider = Provider(plan) if provider is None else provider
        self.pool = AdaptivePool() if pool is None else pool
        self.board = ItemScheduler(retries=retries)
        self.parallel = parallel
        self.events = 0
        self._secrets = {key.name: key.secret for key in plan.keys}
        self._luck = random.Random(seed)  # noqa: S311 - for pauses, not for secrets
        self._log = log
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._waiting: dict[Ticket, Item] = {}
        self._ends_at = 0.0
        self._tick_at = FOREVER
        for spec in build_key_specs(plan) if specs is None else specs:
            if spec.name not in self.pool.keys:
                self.pool.add(spec, 0.0)
        for index, each in enumerate(work):
            self.board.fresh.append(Item(index, f"item-{index}", each))
        self.board.exhausted = True
        self.board.taken = len(self.board.fresh)

    def run(self, until: float = FOREVER) -> Finished:
        """Advance time until all is done, or until the given instant."""
        self._admit()
        while self._agenda and not self.board.is_settled:
            at, _, act = self._agenda[0]
            if at > until:
                break
            heapq.heappop(self._agenda)
            self.now = max(self.now, at)
            self.events += 1
            act()
            self._admit()
        scheduler = self.board
        return Finished(
            scheduler.done,
            scheduler.failed,
            scheduler.taken - scheduler.done - scheduler.failed,
            self._ends_at,
            self.provider.statistics(),
            self.events,
        )

    # -- time -------------------------------------------------------------------------------------------------

    def _at(self, instant: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (instant, self._number, act))

    def _schedule_tick(self) -> None:
        """Schedule an event for when the pool is due, and when an item's backoff ends."""
        due = min(self.pool.next_at, self.board.next_due)
        if due < self._tick_at or self._tick_at <= self.now:
            self._tick_at = due
            if due < FOREVER:
                self._at(max(due, self.now), self._tick)

    def _tick(self) -> None:
        if self.now >= self._tick_at:
            self._tick_at = FOREVER
        self.board.release_due(self.now)
        self._granted(self.pool.tick(self.now))

    # -- items and leases -------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Request leases for as many items as there are idle workers."""
        scheduler, pool = self.board, self.pool
        idle = self.parallel - len(scheduler.running)
        while len(self._waiting) < min(idle, _IN_LINE):
            item = scheduler.next_item()
            if item is None:
                break
            request = _build_request(item.payload)
            if item.token_shortfalls and item.payload.cost:
                request = with_margin(request, item.token_shortfalls, pool.keys.values())
            grant = pool.acquire(request, item.id, self.now)
            if grant is not None:
                self._begin(item, grant)
                idle -= 1
                continue
            ticket = Ticket(request, item.id)
            self._waiting[ticket] = item
            self._granted(pool.enqueue(ticket, self.now))
        self._schedule_tick()

    def _granted(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            item = self._waiting.pop(ticket, None)
            if item is None:
                continue
            if ticket.state is TicketState.GRANTED and ticket.grant is not None:
                self._begin(item, ticket.grant)
            else:
                self.board.mark_unservable(item)  # no key can ever serve it

    def _begin(self, item: Item, grant: Grant) -> None:
        attempt = self.board.begin(item, grant, self.now)
        assert attempt is not None  # noqa: S101 - for the type checker: the run is not stopped
        work: Work = item.payload
        answer = self.provider.arrive(self._secrets[grant.key.name], work.tokens, self.now, model=work.model)
        if self._log is not None:
            kind = "admitted" if isinstance(answer, Admitted) else "refused"
            self._log.append((self.now, kind, item.id, grant.key.name))
        endless = isinstance(answer, Admitted) and answer.fate in _ENDLESS
        lasts = _TIMEOUT if endless else min(answer.latency, _TIMEOUT)
        self._at(self.now + lasts, lambda: self._come_back(attempt, grant, answer))

    def _come_back(self, attempt: Attempt, grant: Grant, answer: Admitted | Refused) -> None:
        pool, now = self.pool, self.now
        if isinstance(answer, Admitted):
            self.provider.finish(answer, now, left=answer.fate in _ENDLESS)
        signal = self._signal(answer, grant.model)
        feedback = pool.report(grant, signal, now)
        if feedback is not None:
            self._granted(feedback.to_wake)
        if isinstance(answer, Admitted) and answer.fate == "ok":
            used = parse_used("usage", {"tokens": float(answer.tokens)})
            self._granted(pool.settle(grant, used, now) or ())
        acted = feedback is not None and feedback.acted
        ended = (
            AttemptEnd.VALUE
            if signal.event is Event.OK
            else classify_signal(signal.event, acted=acted) or AttemptEnd.ERROR
        )
        attempt.item.token_shortfalls += ended is AttemptEnd.LIMIT and lacks_tokens(signal)
        rest = 0.0 if ended is AttemptEnd.LIMIT or signal.delay is None else signal.delay
        self._granted(pool.release(grant, now) or ())
        self.board.finish(attempt, ended, grant.key.quota.name, now, self._luck.random(), rest)
        self._ends_at = now

    def _signal(self, answer: Admitted | Refused, model: str | None) -> Signal:
        status = answer.status if isinstance(answer, Refused) or answer.fate not in _UNANSWERED else None
        plan = self.provider.plan
        provider = plan.style if plan.dialect in ("full", "retry-after", "none") else None  # others have no name
        return classify(status, answer.headers, answer.body, now=self.now, provider=provider, model=model)


def _build_request(work: Work) -> LeaseRequest:
    return LeaseRequest(request_cost(dict(work.cost)) if work.cost else request_cost(None), work.model)
