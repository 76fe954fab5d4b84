"""Waiting where other processes wait, too: what they claim, what we claim, and how we hear that it is our turn."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import PoolClosed, StoreError
from ...pool.core.limits.base import FOREVER, ROUNDING
from ...pool.core.pool import NOBODY
from ...pool.core.quota_codec import named_limits, pack_claim, unpack_claim
from ...pool.core.records import Ask, Key, Quota, Ticket
from ...pool.core.reservations import Claims, draws_of
from ...pool.core.states import Life, Wait
from .view import ForeignClaim, PoolView

_PASSES = 4
NAMED = 100  # a process that waits for more credentials than these just says: any
# Others ring when there is something for us. Where that cannot be heard, we look for ourselves.
_LOOK_EVERY = 0.1
_LOOK_WHEN_IDLE = 1.0
# Who gets in line has just been refused, and hears of what has changed since when it says that it waits.
_JUST_NOW = 0.01


class WaitingPool(PoolView):
    """Serves its own line in turn with those of other processes."""

    # -- claims of other processes ----------------------------------------------------------------------------

    def _claims_on(self, number: int, quota: Quota, claims: Sequence[str], now: float) -> list[ForeignClaim]:
        """The claims on this quota, as the core can use them."""
        found = []
        for text in claims:
            claimed, at, amounts = unpack_claim(text)
            if claimed == number and at > now:
                found.append((at, [(state, amounts[name]) for name, state in named_limits(quota) if name in amounts]))
        return found

    def _starts_at(self, key: Key, ask: Ask, now: float, claims: Claims | None) -> float:
        """As the core has it; and if starting now would put off a process that is ahead, then after that one."""
        at = super()._starts_at(key, ask, now, claims)
        if at > now or not self._claimed.get(key.quota):
            return at
        draws = {state: amount for state, amount, _ in draws_of(key.quota, ask)}
        for until, amounts in self._claimed[key.quota]:
            if until > now and any(
                state.ready_at(amount, now, draws.get(state, 0.0)) > until + ROUNDING for state, amount in amounts
            ):
                return until
        return at

    def _own_claim(self, now: float) -> str | None:
        """The refill that the first in line here waits for: others who are behind must not put it off."""
        heads = [head for lane in self._lane_list if (head := lane.waiting.head()) is not None]
        head = min(heads, key=Ticket.rank)
        key = head.planned
        if key is None or not now < head.starts_at < FOREVER or key.quota.closed_for(head.ask.model) > now:
            return None
        draws = {state: amount for state, amount, _ in draws_of(key.quota, head.ask)}
        if not draws or any(not state.refills and state.ready_at(need, now) > now for state, need in draws.items()):
            return None
        amounts = {name: draws[state] for name, state in named_limits(key.quota) if state in draws}
        return pack_claim(self._numbers[key][1], head.starts_at, amounts)

    def _idle_until(self, now: float) -> float | None:
        """The instant before which nobody here could start, were every slot free; None: somebody might, at any time."""
        if len(self._numbers) > NAMED:
            return None
        first = FOREVER
        for lane in self._lane_list:
            head = lane.waiting.head()
            if head is None:
                continue
            for key in self.keys.values():
                if key.could_serve(head.ask.labels, head.ask.model):
                    first = min(first, self._starts_at(key, head.ask, now, None))
                    if first <= now:
                        return None
        return first if first < FOREVER else None

    # -- waiting ----------------------------------------------------------------------------------------------

    def enqueue(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        self._catch_up(now - _JUST_NOW)
        if self._broken is not None and not self.closed:
            ticket.state, ticket.error = Wait.FAILED, self._broken
            return (ticket,)
        return super().enqueue(ticket, now)

    def tick(self, now: float) -> Sequence[Ticket]:
        self._catch_up(now)
        return super().tick(now)

    def keep_up(self, now: float, *, called: bool) -> Sequence[Ticket]:
        """What is due even if nobody asks: renewals, and, for those who wait, what others did.

        *called*: another process says that it is our turn.
        """
        if self.max_lease is not None:
            self._expire(now)
        self._in_store(self._store.keep_up, now)
        news = self._catch_up(now if called else now - _LOOK_EVERY / 2)
        if not self.waiting:
            return NOBODY
        if not called:
            return self._serve(now) if news or self._broken or self.not_before <= now else NOBODY
        self.not_before = -FOREVER
        self._came = False
        touched = self._serve(now)
        if self.waiting and not self._came:
            self._say_that_we_wait(now, passed=True)
        return touched

    def due_at(self, now: float) -> float:
        """When ``keep_up`` should be called."""
        if self._broken is not None:
            return FOREVER
        due = min(self._store.renewal_at(), now + (_LOOK_EVERY if self.waiting else _LOOK_WHEN_IDLE))
        if self.waiting:
            due = min(due, self._store.next_look)
        if self.max_lease is not None and self.leases:
            due = min(due, next(iter(self.leases.values())).granted_at + self.max_lease)
        return due

    def why_it_rests(self, now: float) -> tuple[str, ...]:
        """Why nothing starts for nobody, if that is so and is the store's doing."""
        return (self.rests,) if self.rests and now < self.not_before else ()

    def is_over(self) -> bool:
        """Closed, and everything given back."""
        return self.closed and not self.leases

    def _serve(self, now: float) -> list[Ticket]:
        touched: list[Ticket] = []
        for _ in range(_PASSES):
            before = self._news
            if self._fewer_keys:
                self._fewer_keys = False
                touched += self._fail_hopeless()
            touched += super()._serve(now)
            if self._broken is not None:
                return [*touched, *self._fail_all(self._broken)]
            self._line_up(now)
            if self._news == before or not self.waiting:
                break  # else what others did meanwhile may change who can start
        return touched

    def _line_up(self, now: float) -> None:
        """Let the store know whether we wait, and for what: then we are called when it is our turn."""
        if self.waiting:
            if self.kept_out:
                return  # we do not know yet whether we have to wait; trying again tells
            before = self._waits_as
            if before is None and self._store.next_look == FOREVER and not self._company:
                return  # nobody else is there to know; who comes is seen in our next step, or by what they do
            if before is None or before != (self._wanted(), self._idle_until(now), self._own_claim(now)):
                self._say_that_we_wait(now, passed=False)
                self._look(now)  # something may have come free before we said that we wait
            if before is None:
                self._store.nudge()  # whoever looks for us now and then should do so from now on
        elif self._waits_as is not None:
            self._waits_as = None
            self._tell(lambda step: step.wait_no_more(), now)

    def _say_that_we_wait(self, now: float, *, passed: bool) -> None:
        self._waits_as = wanted, idle_until, claim = (self._wanted(), self._idle_until(now), self._own_claim(now))
        self._tell(lambda step: step.wait(wanted or None, idle_until, claim, passed=passed), now)

    def _wanted(self) -> tuple[int, ...]:
        """The credentials that would do for somebody who waits, by the store's numbers; empty: any."""
        if len(self._numbers) > NAMED:
            return ()
        labels = {lane.labels for lane in self._lane_list if lane.waiting}
        return tuple(
            number
            for key, (number, _) in self._numbers.items()
            if key.life is Life.ALIVE and any(wanted <= key.labels for wanted in labels)
        )

    def taken_elsewhere(self) -> bool:
        """Whether other processes have leased something of it."""
        return any(key.elsewhere for key in self.keys.values())

    def _fail_all(self, error: StoreError | PoolClosed) -> list[Ticket]:
        tickets = self.tickets()
        for ticket in tickets:
            self._leave(ticket, Wait.FAILED)
            ticket.error = error
        self.next_at, self.next_ticket = FOREVER, None
        return tickets
