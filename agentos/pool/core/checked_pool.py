"""A pool that checks its invariants after every step, for tests, simulations and the debug switch; slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...errors import InvariantViolated
from ...providers.signal import Event, Signal
from . import invariants
from .cost import Used
from .learning.adaptive_pool import AdaptivePool, FeedbackResult
from .limits.base import FOREVER, LimitState
from .records import Grant, Key, KeySpec, LeaseRequest, Quota, Ticket

_STARTS_REMEMBERED = 2_000
_REFUSED = frozenset({Event.LIMITED, Event.PARKED})


class CheckedPool(AdaptivePool):
    """An ``AdaptivePool`` that raises ``InvariantViolated`` when an invariant does not hold."""

    def __init__(self, *, keep_free: int = 0, max_lease: float | None = None, wall_offset: float = 0.0) -> None:
        super().__init__(keep_free=keep_free, max_lease=max_lease, wall_offset=wall_offset)
        self._tokens: deque[int] = deque(maxlen=2)
        self._closings: dict[tuple[Quota, str | None], float] = {}
        self._spent: set[Quota] = set()
        self._starts: dict[LimitState, deque[list[float]]] = {}
        self._start_of: dict[tuple[int, LimitState], list[float]] = {}

    def acquire(self, request: LeaseRequest, requester: str | None, now: float) -> Grant | None:
        grant = super().acquire(request, requester, now)
        if grant is not None:
            self._note(grant)
        self._audit(now)
        return grant

    def enqueue(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        return self._checked(super().enqueue(ticket, now), now)

    def withdraw(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        return self._checked(super().withdraw(ticket, now), now)

    def tick(self, now: float) -> Sequence[Ticket]:
        return self._checked(super().tick(now), now)

    def end(self, grant: Grant) -> bool:
        was_current = self.leases.get(grant.token) is grant
        changed = super().end(grant)
        was_current = was_current and self.find_loss_reason(grant, -FOREVER) is None
        self._require(invariants.l3_only_a_current_token_changes_anything(was_current, changed), "L3")
        for state, *_ in grant.draws:
            self._start_of.pop((grant.token, state), None)
        return changed

    def _grant_next(self, grant: Grant, now: float) -> Ticket | None:
        before = dict.fromkeys(self.tickets())
        was_current = self.leases.get(grant.token) is grant
        ticket = super()._grant_next(grant, now)
        if ticket is not None:
            assert ticket.grant is not None  # noqa: S101 - for the type checker
            self._require(invariants.l3_only_a_current_token_changes_anything(was_current, True), "L3")
            self._require(invariants.l6_grants_go_to_those_who_wait([ticket], before), "L6")
            self._note(ticket.grant)
            self._checked([ticket], now)
            self._require(invariants.r3_nobody_waits_past_a_free_key(self, now), "R3")
        return ticket

    def settle(self, grant: Grant, used: Used, now: float) -> Sequence[Ticket] | None:
        was_current = self.leases.get(grant.token) is grant
        for state, *_ in grant.draws if was_current else ():
            start = self._start_of.get((grant.token, state))
            actual = used[state.dimension]
            if start is not None and actual is not None:
                start[1] = min(start[2], actual)  # what exceeds the reservation was not known before
        touched = super().settle(grant, used, now)
        was_current = was_current and self.find_loss_reason(grant, now) is None
        self._require(invariants.l3_only_a_current_token_changes_anything(was_current, touched is not None), "L3")
        return None if touched is None else self._checked(touched, now)

    def close_quota(self, key: Key, until: float, *, model: str | None, evidence: str, now: float) -> Sequence[Ticket]:
        scope = None if model is None else key.quota.scopes(model)[0]
        if until > now:
            place = (key.quota, scope)
            self._closings[place] = max(until, self._closings.get(place, -FOREVER))
        touched = super().close_quota(key, until, model=model, evidence=evidence, now=now)
        return self._checked(touched, now)

    def spend(self, key: Key, evidence: str, now: float) -> Sequence[Ticket]:
        self._spent.add(key.quota)
        return self._checked(super().spend(key, evidence, now), now)

    def reject(self, key: Key, evidence: str, now: float) -> Sequence[Ticket]:
        return self._checked(super().reject(key, evidence, now), now)

    def report(
        self, grant: Grant, signal: Signal, now: float, *, sure: bool = True, elsewhere: bool = False
    ) -> FeedbackResult | None:
        was_current = self.leases.get(grant.token) is grant
        result = super().report(grant, signal, now, sure=sure, elsewhere=elsewhere)
        was_current = was_current and self.find_loss_reason(grant, now) is None
        self._require(invariants.l3_only_a_current_token_changes_anything(was_current, result is not None), "L3")
        if result is not None:
            if signal.event in _REFUSED:
                for state, *_ in grant.draws:
                    if (start := self._start_of.get((grant.token, state))) is not None:
                        start[1] = 0.0  # it took nothing
            self.review_closings(grant.key.quota)
            self._checked(result.to_wake, now)
        return result

    def end_run_bars(self, now: float) -> Sequence[Ticket]:
        return self._checked(super().end_run_bars(now), now)

    def add(self, spec: KeySpec, now: float) -> Sequence[Ticket]:
        return self._checked(super().add(spec, now), now)

    def retire(self, key: Key, now: float) -> Sequence[Ticket]:
        return self._checked(super().retire(key, now), now)

    def revive(self, key: Key, now: float) -> Sequence[Ticket]:
        self._spent.discard(key.quota)
        return self._checked(super().revive(key, now), now)

    def clear(self, key: Key, now: float) -> Sequence[Ticket]:
        self._spent.discard(key.quota)
        self._closings = {place: until for place, until in self._closings.items() if place[0] is not key.quota}
        for state in key.quota.limits:
            self._starts.pop(state, None)
        return self._checked(super().clear(key, now), now)

    def review_closings(self, quota: Quota) -> None:
        """Take over the blocks of a quota: another process may have opened it."""
        closings = {place: until for place, until in self._closings.items() if place[0] is not quota}
        closings.update({(quota, scope): block.until for scope, block in quota.blocks.items()})
        self._closings = closings
        self._spent.discard(quota)
        if quota.spent is not None:
            self._spent.add(quota)

    def on_wall_clock_change(self, offset: float) -> None:
        for state in [state for state in self._starts if not state.refills]:
            del self._starts[state]  # after a change of the clock, days cannot be distinguished
        super().on_wall_clock_change(offset)

    def _serve(self, now: float) -> list[Ticket]:
        before = dict.fromkeys(self.tickets())
        granted = super()._serve(now)
        self._require(invariants.l6_grants_go_to_those_who_wait(granted, before), "L6")
        for ticket in granted:
            if ticket.grant is not None:
                self._note(ticket.grant)
        self._require(invariants.r3_nobody_waits_past_a_free_key(self, now), "R3")
        return granted

    def _checked(self, touched: Sequence[Ticket], now: float) -> Sequence[Ticket]:
        self._require(invariants.r4_served_in_order(self, touched), "R4")
        self._audit(now)
        return touched

    def _note(self, grant: Grant) -> None:
        self._tokens.append(grant.token)
        self._require(invariants.l2_tokens_only_grow(list(self._tokens)), "L2")
        closed = dict(self._closings)
        closed.update(((quota, None), FOREVER) for quota in self._spent)
        self._require(invariants.r1_nothing_starts_while_closed(grant, closed), "R1")
        refuted = invariants.r7_no_limit_survives_the_calls_against_it(grant.key.quota, grant.granted_at)
        self._require(refuted, "R7")
        for state, amount, _, _ in grant.draws:
            if state.learned:
                continue  # a learned limit changes with what was learned
            starts = self._starts.setdefault(state, deque(maxlen=_STARTS_REMEMBERED))
            # A day is one of the wall clock at that time.
            at = grant.granted_at + (self.wall.offset if state.limit.per == "day" else 0.0)
            start = [at, amount, amount]  # instant, what counts, what was reserved
            starts.append(start)
            self._start_of[grant.token, state] = start
            counted = [(at, amount) for at, amount, _ in starts]
            self._require(invariants.r2_starts_keep_to_the_limit(counted, state.limit), "R2")

    def _audit(self, now: float) -> None:
        self._require(invariants.l1_no_more_leases_than_slots(self), "L1")
        self._require(invariants.l10_slots_add_up(self, now), "L10")

    @staticmethod
    def _require(found: str | None, name: str) -> None:
        if found is not None:
            raise InvariantViolated(name=name, detail=found)
