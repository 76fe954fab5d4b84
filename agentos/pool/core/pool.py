"""The pool: keys, leases and waiting requests, and the one rule that joins them.

The rule: requests are served in order of priority, then arrival. Each takes the key on which it can start
earliest, and starts if that is now. A later request may start before one that still waits only if it takes nothing
that would have let the earlier one start sooner (``needs.RefillClaims``).

Operations return the tickets whose wait they ended, granted or failed; the caller tells their owners. After each,
``next_at`` is the instant at which ``tick`` should be called if nothing else happens, and ``next_ticket`` whom that
instant concerns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from ...errors import PoolClosed
from ...providers.signal import PARKED_FROM
from .candidate_index import CandidateIndex
from .cost import DIMENSIONS, Used
from .feasibility import why_infeasible
from .limits.base import FOREVER, LimitState
from .limits.calendar import WallTime
from .queue_cursor import QueueCursor
from .records import NO_LABELS, Block, Draw, Grant, Key, KeySpec, Labels, LeaseRequest, Quota, Ticket
from .reservations import RefillClaims, reserve, starts_at
from .selection import Affinities, find_key, make_lane, next_spare_slot_at
from .states import LIFE, Gate, Life, LifeEvent, TicketState

NOBODY: tuple[Ticket, ...] = ()
NOTHING: tuple[Draw, ...] = ()
_INDEXES_REMEMBERED = 64


class LeasePool:
    """A pure state machine over keys, leases and tickets. It takes ``now`` and never asks for it."""

    def __init__(self, *, keep_free: int = 0, max_lease: float | None = None, wall_offset: float = 0.0) -> None:
        self.keys: dict[str, Key] = {}
        self.keep_free = keep_free
        self._plain = CandidateIndex(NO_LABELS, None)
        self._indexes: dict[tuple[Labels, str | None], CandidateIndex] = {(NO_LABELS, None): self._plain}
        self._index_list = [self._plain]
        self._may_be_straight = not keep_free and max_lease is None
        self._straight = self._may_be_straight  # there is but one kind of request, and nothing to restrict it
        self._models_matter = False  # some limit or some cooling is for one model only
        self._affinities = Affinities()
        self.max_lease = max_lease
        self.wall = WallTime(wall_offset)
        self.quotas: dict[tuple[bool, str], Quota] = {}  # by (shared, name)
        # By token, and so by age. With max_lease the oldest is looked at all the time, which a dict with a gap at its
        # front does badly.
        self.leases: dict[int, Grant] = {} if max_lease is None else OrderedDict()
        self.has_calendar = False
        self.waiting = 0
        self.next_at = FOREVER
        self.next_ticket: Ticket | None = None
        self.notes: list[str] = []  # what a person should be told; the shell logs and empties it
        self.closed = False
        self.drifts = max_lease is not None  # it may change without having been asked anything
        self.kept_out = False  # what it was asked last could not be asked of the store, where it is shared
        self.not_before = -FOREVER  # nothing starts before this instant, however free a key looks
        self._watchful = False  # the end of a lease may mean something: see ``learning``
        self._token = 0
        self._used = 0
        self._arrivals = 0

    # -- starting at once -------------------------------------------------------------------------------------

    def acquire(self, ask: LeaseRequest, requester: str | None, now: float) -> Grant | None:
        """Start now, or not at all: None if the request would have to wait, or others already do."""
        if self.waiting:
            return None
        if self._straight and (ask.plain or not (ask.special or self._models_matter)):
            # What most requests find: one kind of request, and a key nobody uses. This is _find and _start, less all
            # that does not apply here: it is the way everybody pays for.
            lane = self._plain
            level = lane.levels[0]
            queue = level.queue
            later = lane.later
            if queue and not level.returned and (not later or later[0][0] > now):
                key = next(iter(queue))
                if key.slots == 1:
                    quota = key.quota
                    draws = NOTHING if quota.open_wide else reserve(quota, ask, now)
                    if draws is not None:
                        del queue[key]
                        if not queue:
                            lane.filled &= ~1
                        key.leases = 1
                        self._token = token = self._token + 1
                        grant = self.leases[token] = Grant(key, token, requester, now, ask.model, draws)
                        return grant
        if self.closed:
            return None
        lane = self._index_for(ask.labels, ask.model)
        if self.max_lease is not None:
            self._expire(now)
        started = self._start_on_first(lane, ask, requester, now)
        while started is None:
            found, at = self._find(lane, ask, now, None)
            if found is None or at > now:
                return None
            started = self._start(found, ask, requester, now)
        return started

    def _start_on_first(
        self, lane: CandidateIndex, ask: LeaseRequest, requester: str | None, now: float
    ) -> Grant | None:
        """Lease the key that is first in line, if that can start *ask* now; None: look at all of them.

        It nearly always can, and then ``_find`` would only have asked its limits what ``reserve`` asks them again.
        """
        if not lane.filled or self.keep_free or ask.affinity is not None or (lane.later and lane.later[0][0] <= now):
            return None
        key = lane.first()
        quota = key.quota
        if key.barred or quota.blocks or quota.probation:
            return None
        draws = NOTHING if quota.open_wide else reserve(quota, ask, now)
        if draws is None:
            return None
        self._token = token = self._token + 1
        grant = Grant(key, token, requester, now, ask.model, draws)
        self._record_lease(grant, ask)
        return grant

    def _start(self, key: Key, ask: LeaseRequest, requester: str | None, now: float) -> Grant | None:
        """Lease *key*, which was chosen. None, if it turned out to be taken: then it is known to be by now."""
        draws = NOTHING if key.quota.open_wide else reserve(key.quota, ask, now)
        assert draws is not None, "a key was chosen that cannot start now"  # noqa: S101
        self._token = token = self._token + 1
        grant = Grant(key, token, requester, now, ask.model, draws)
        self._record_lease(grant, ask)
        return grant

    def _record_lease(self, grant: Grant, ask: LeaseRequest) -> None:
        """A lease begins: its key has one slot less."""
        self.leases[grant.token] = grant
        key = grant.key
        before = key.leases
        key.leases = before + 1
        self._used = key.used = self._used + 1
        for lane in self._index_list:
            if not lane.labels or lane.labels <= key.labels:
                lane.slot_taken(key, before)
        if ask.affinity is not None:
            self._affinities.remember(ask.affinity, key)
        if key.auto:
            self._slot_taken(grant)

    def _slot_taken(self, grant: Grant) -> None:
        """A lease began on a key whose slots are to be found out."""

    # -- waiting ----------------------------------------------------------------------------------------------

    def enqueue(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Put a request in line. It may be granted, or failed, by the time this returns."""
        if self.closed:
            ticket.state, ticket.error = TicketState.FAILED, PoolClosed()
            return (ticket,)
        error = why_infeasible(self.keys.values(), ticket.request, self.keep_free)
        if error is not None:
            ticket.state, ticket.error = TicketState.FAILED, error
            return (ticket,)
        if self.max_lease is not None:
            self._expire(now)
        ask = ticket.request
        self._arrivals += 1
        ticket.order = (-ask.priority, self._arrivals)
        ticket.queued_at = now
        ticket.index = lane = self._index_for(ask.labels, ask.model)
        lane.waiting.add(ticket)
        self.waiting += 1
        return self._serve(now)

    def withdraw(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Leave the line. If the grant has just come, it goes on to the next."""
        if ticket.state is TicketState.GRANTED:
            assert ticket.grant is not None  # noqa: S101 - for the type checker
            return self.release(ticket.grant, now) or NOBODY
        if ticket.state is not TicketState.WAITING or ticket.index is None:
            return NOBODY  # it has left already, or never got here
        self._leave(ticket, TicketState.WITHDRAWN)
        return self._serve(now)

    def _leave(self, ticket: Ticket, state: TicketState) -> None:
        ticket.state = state
        ticket.index.waiting.remove(ticket)
        self.waiting -= 1

    def tick(self, now: float) -> Sequence[Ticket]:
        """Time has passed: end what is over, start what can start."""
        if self.max_lease is not None:
            self._expire(now)
        return self._serve(now)

    # -- holding and giving back ------------------------------------------------------------------------------

    def release(self, grant: Grant, now: float) -> Sequence[Ticket] | None:
        """Give the slot back. None: that lease has already ended, and nothing changed."""
        ticket = self._grant_next(grant, now)
        if ticket is not None:
            return (ticket,)
        if not self.end(grant):
            return None
        return self._serve(now) if self.waiting else NOBODY

    def _grant_next(self, grant: Grant, now: float) -> Ticket | None:
        """Give the key straight to the first in line, where nothing else can matter; None if something might.

        What ``end`` and ``_serve`` would do, in the case that matters most: everybody waits for a slot, of keys
        without limits. A thread that was asleep pays for every step here with the time until it runs.
        """
        key, lane = grant.key, self._plain
        if not (
            self.waiting
            and self._straight
            and key.slots == 1
            and key.quota.open_wide
            and not lane.filled
            and not lane.later
            and key.life is Life.ALIVE
            and self.leases.pop(grant.token, None) is not None
        ):
            return None
        ticket = lane.waiting.head()
        assert ticket is not None  # noqa: S101 - for the type checker: there is but one lane, and somebody waits
        self._token = token = self._token + 1
        ask = ticket.request
        ticket.grant = self.leases[token] = Grant(key, token, ticket.requester, now, ask.model, NOTHING)
        self._used = key.used = self._used + 1
        if ask.affinity is not None:
            self._affinities.remember(ask.affinity, key)
        self._leave(ticket, TicketState.GRANTED)
        self.next_at, self.next_ticket = FOREVER, None
        return ticket

    def end(self, grant: Grant) -> bool:
        """The half of ``release`` that needs no clock: if anybody waits, ``tick`` must follow."""
        if self.leases.pop(grant.token, None) is None:
            return False
        for draw in grant.draws:
            if draw[2]:
                self._end_draws(grant)
                break
        key = grant.key
        key.leases = n = key.leases - 1
        if key.life is Life.ALIVE:
            self._used = key.used = self._used + 1
            lane = self._plain
            bounds = lane.bounds
            if self._straight and key.slots == 1 and not key.quota.closed and (not bounds or key not in bounds):
                lane.levels[0].queue[key] = None
                lane.filled |= 1
                return True
            for lane in self._index_list:
                if not lane.labels or lane.labels <= key.labels:
                    lane.slot_freed(key, n)
        if self._watchful:
            self._on_lease_end(grant)
        return True

    @property
    def tracks_lease_ends(self) -> bool:
        """Whether the end of a lease may mean something."""
        return self._watchful

    def _on_lease_end(self, grant: Grant) -> None:
        """A lease has ended; there is something to be learned from that."""

    def _end_draws(self, grant: Grant) -> None:
        for draw in grant.draws:
            if draw[2]:
                self._end_guess(grant, draw[0])

    def _end_guess(self, grant: Grant, state: LimitState) -> None:
        state.usage.end_in_flight()
        if state.usage.end_unreported():
            self.notes.append(
                f"quota {grant.key.quota.name}: the limit on {DIMENSIONS[state.dimension]} is set aside, because no "
                "lease gives a cost and none reports usage; pass cost= or call lease.settle()"
            )

    def _expire(self, now: float) -> None:
        """End the leases that have lasted too long. They are kept in the order they began."""
        assert self.max_lease is not None  # noqa: S101 - for the type checker
        while self.leases:
            grant = next(iter(self.leases.values()))
            if grant.granted_at + self.max_lease > now:
                return
            self.end(grant)
            self.notes.append(
                f"lease {grant.token} on {grant.key.name} held by {grant.requester or 'nobody named'} "
                f"ended after {self.max_lease:g}s (max_lease); its holder may still be using the key"
            )

    def abandon(self, _grants: Iterable[Grant]) -> bool:
        """The holders were given up, and still run. False: the leases last until they are given back, as any other.

        True, where others share the pool: they are not renewed any more, and for this process they are lost.
        """
        return False

    def end_abandoned(self, _grant: Grant, _now: float) -> Sequence[Ticket] | None:
        """The holder of an abandoned lease has ended at last. None: it was not abandoned."""
        return None

    def is_in_force(self, grant: Grant, _now: float) -> bool:
        """Whether that lease is in force."""
        return self.leases.get(grant.token) is grant

    def reacquire(self, grant: Grant, now: float) -> Grant | None:
        """The lease, if it is in force though this process stood still; else another on its key, if that is free."""
        return grant if self.is_in_force(grant, now) else None

    def find_loss_reason(self, _grant: Grant, _now: float) -> str | None:
        """Why that lease must not be used any more though nobody here gave it back; None if it may."""
        return None

    def settle(self, grant: Grant, used: Used, now: float) -> Sequence[Ticket] | None:
        """Replace what was reserved by what was used. None: that lease has already ended, and nothing changed."""
        if self.leases.get(grant.token) is not grant:
            return None
        quota = grant.key.quota
        if not quota.limits or not self._correct(grant, used, now):
            return NOBODY
        # Even if more was used than thought: who waits for this quota may now be due elsewhere, and let others by.
        if self._straight and not self.waiting and not self._plain.bounds:
            return NOBODY
        return self._reopened(quota, now)

    def _correct(self, grant: Grant, used: Used, now: float) -> bool:
        """Put what was used in the place of what was reserved; whether that differs."""
        changed = False
        draws = grant.draws
        for i, (state, amount, guessed, stamp) in enumerate(draws):
            actual = used[state.dimension]
            if actual is None:
                continue
            if actual > state.heaviest:
                actual = state.heaviest
            state.usage.add(actual)
            if actual != amount or guessed:
                changed = True
                stamp = state.correct(stamp, actual - amount, now)
                draws[i] = (state, actual, False, stamp)  # type: ignore[index]  # there is one, so it is a list
                if guessed:
                    state.usage.end_in_flight()
        if len(draws) < len(grant.key.quota.limits):
            self._take_late(grant, used, now)
        return changed

    @staticmethod
    def _take_late(grant: Grant, used: Used, now: float) -> None:
        """A limit that was set aside is kept again, now that usage is reported."""
        drawn = {draw[0] for draw in grant.draws}
        for state in grant.key.quota.limits_for(grant.model):
            actual = used[state.dimension]
            if actual is not None and state not in drawn:
                actual = min(actual, state.heaviest)
                state.usage.add(actual)
                grant.draws = [*grant.draws, (state, actual, False, state.take(actual, now))]

    # -- what the provider said -------------------------------------------------------------------------------

    def close_quota(self, key: Key, until: float, *, model: str | None, evidence: str, now: float) -> Sequence[Ticket]:
        """No more requests on this key's quota (for one model family, if named) before *until*."""
        if not self._close_quota(key, until, model, evidence, now):
            return NOBODY
        return self._serve(now) if self.waiting else NOBODY

    def _close_quota(self, key: Key, until: float, model: str | None, evidence: str, now: float) -> bool:
        self._reset_silence(key)
        if until <= now:
            return False
        gate = Gate.COOLING if until - now <= PARKED_FROM else Gate.PARKED
        scope = None if model is None else key.quota.scopes(model)[0]
        if not key.quota.block(scope, Block(gate, until, now, evidence)):
            return False
        if scope is not None and not self._models_matter:
            self._models_matter = True
            self._reindex_waiting()
        return True

    def spend(self, key: Key, evidence: str, now: float) -> Sequence[Ticket]:
        """The money of this key's quota is gone: closed until a person acts."""
        self._spend(key, evidence, now)
        return self._after_key_loss(now)

    def _spend(self, key: Key, evidence: str, now: float) -> None:
        self._reset_silence(key)
        key.quota.spend(Block(Gate.SPENT, FOREVER, now, evidence))

    @staticmethod
    def _reset_silence(key: Key) -> None:
        """A request that was refused has no usage to report: its silence says nothing."""
        for state in key.quota.limits:
            state.usage.silent = 0

    def reject(self, key: Key, evidence: str, now: float) -> Sequence[Ticket]:
        """The provider refused the credential itself: dead until a person acts."""
        self._reset_silence(key)
        self._change_life(key, LifeEvent.REJECTED, evidence, now)
        return self._after_key_loss(now)

    def _after_key_loss(self, now: float) -> Sequence[Ticket]:
        """Some key serves no more: who could use no other is told."""
        failed = self._fail_infeasible()
        return [*failed, *self._serve(now)]

    def _change_life(self, key: Key, event: LifeEvent, evidence: str, now: float) -> None:
        before, key.life = key.life, LIFE[key.life][event]
        if key.life is before:
            return
        key.evidence, key.since = evidence, now
        if key.life is not Life.ALIVE:
            for lane in self._index_list:
                lane.remove(key)
        elif before is not Life.ALIVE:
            for lane in self._index_list:
                if lane.labels <= key.labels:
                    lane.put_back(key)

    # -- who is in the pool -----------------------------------------------------------------------------------

    def add(self, spec: KeySpec, now: float) -> Sequence[Ticket]:
        """A credential joins, even while others wait."""
        self._admit(spec)
        return self._serve(now) if self.waiting else NOBODY

    def _admit(self, spec: KeySpec) -> Key:
        # A credential that shares no quota has one of its own, which no other can join by its name.
        shared = spec.quota is not None
        quota = self.quotas.get((shared, spec.quota or spec.name))
        if quota is None:
            quota = Quota(spec.quota or spec.name, spec.limits, self.wall)
            self.quotas[shared, quota.name] = quota
            self.has_calendar = self.has_calendar or quota.has_calendar()
            if not self._models_matter and any(limit.model for limit in spec.limits):
                self._models_matter = True
                self._reindex_waiting()
        self._used += 1
        key = self.keys[spec.name] = Key(spec, quota, self._used)
        quota.keys.append(key)
        for lane in self._index_list:
            if lane.labels <= key.labels:
                lane.insert(key)
                lane.limited = lane.limited or bool(quota.limits)
        return key

    def set_leases_elsewhere(self, key: Key, elsewhere: tuple[str, ...]) -> None:
        """Others have so many leases on this key, in a pool that is shared. ``tick`` must follow."""
        leases = key.leases - len(key.leases_elsewhere) + len(elsewhere)
        key.leases_elsewhere = elsewhere
        if leases == key.leases:
            return
        self._move(key, leases, key.slots)

    def _move(self, key: Key, leases: int, slots: int) -> None:
        """So many of so many slots of a key are leased, from now on: its place in the lanes is another."""
        lanes = [lane for lane in self._index_list if lane.labels <= key.labels and key not in lane.bounds]
        for lane in lanes:
            lane.remove(key)
        key.leases, key.slots = leases, slots
        if key.life is Life.ALIVE:
            for lane in lanes:
                lane.put_back(key)

    def retire(self, key: Key, now: float) -> Sequence[Ticket]:
        """A credential leaves: its leases run on, nothing new starts on it."""
        self._change_life(key, LifeEvent.RETIRED, "retired by hand", now)
        return self._after_key_loss(now)

    def revive(self, key: Key, now: float) -> Sequence[Ticket]:
        """A person has acted: a dead, retired or spent credential may be used again."""
        self._revive(key, now)
        return self._reopened(key.quota, now)

    def _revive(self, key: Key, now: float) -> None:
        self._change_life(key, LifeEvent.REVIVED, "", now)
        key.quota.spend(None)

    def clear(self, key: Key, now: float) -> Sequence[Ticket]:
        """A person says to forget all that is known of this key and its quota: usable, cold, and nothing used."""
        self._clear(key, now)
        return self._reopened(key.quota, now)

    def _clear(self, key: Key, now: float) -> None:
        self._change_life(key, LifeEvent.REVIVED, "", now)
        key.quota.reset()

    def close(self) -> Sequence[Ticket]:
        """Grant nothing more; every waiter is told."""
        self.closed = True
        self._straight = self._may_be_straight = False
        tickets = self.tickets()
        for ticket in tickets:
            self._leave(ticket, TicketState.FAILED)
            ticket.error = PoolClosed()
        self.next_at, self.next_ticket = FOREVER, None
        return tickets

    def forget_waiting(self) -> None:
        """Nobody waits any more, and nobody is told: in a copy of the pool without those who did."""
        for ticket in self.tickets():
            self._leave(ticket, TicketState.WITHDRAWN)
        self.next_at, self.next_ticket = FOREVER, None

    def _reopened(self, quota: Quota, now: float) -> Sequence[Ticket]:
        """The quota may carry something earlier than was thought."""
        self._reopen(quota)
        return self._serve(now) if self.waiting else NOBODY

    def _reopen(self, quota: Quota) -> None:
        for lane in self._index_list:
            if lane.bounds:
                for key in quota.keys:
                    lane.reopen(key)

    def on_wall_clock_change(self, offset: float) -> None:
        """The wall clock was set: a new day is nearer, or further off, than was thought. ``tick`` must follow."""
        self.wall.offset = offset
        for quota in self.quotas.values():
            if quota.has_calendar():
                self._reopen(quota)

    def _reindex_waiting(self) -> None:
        """Models begin to matter: those who wait for one line up apart."""
        for ticket in self.tickets():
            if ticket.request.model is not None:
                ticket.index.waiting.remove(ticket)
                ticket.index = self._index_for(ticket.request.labels, ticket.request.model)
                ticket.index.waiting.add(ticket)

    def _apply(
        self,
        change: Callable[[float], object],
        key: Key,
        now: float,
        *,
        life: Life | None = None,
        evidence: str = "",
        opened: bool = False,
    ) -> None:
        """Make a change to what is known of a key or its quota. Where that is kept elsewhere, it is made there."""
        change(now)

    def is_leased_elsewhere(self) -> bool:
        """Whether others than those this pool knows have leased something of it: only where it is shared."""
        return False

    def tickets(self) -> list[Ticket]:
        """Who waits, in order."""
        return sorted((t for lane in self._index_list for t in lane.waiting), key=Ticket.rank)

    # -- the rule ---------------------------------------------------------------------------------------------

    def _serve(self, now: float) -> list[Ticket]:
        """Go through the waiting requests in order and start each that may."""
        granted: list[Ticket] = []
        self.next_at, self.next_ticket = FOREVER, None
        cursors = [QueueCursor(lane) for lane in self._index_list if lane.waiting]
        claims = RefillClaims()
        skipped: list[Ticket] = []
        while cursors:
            cursor = cursors[0] if len(cursors) == 1 else min(cursors, key=QueueCursor.order)
            ticket = cursor.ticket
            if cursor.is_already_blocked():
                # It cannot start now; what it has a right to matters only if somebody behind it could.
                skipped.append(ticket)
            else:
                for earlier in skipped:
                    self._plan(earlier, now, claims)
                skipped.clear()
                key = self._plan(ticket, now, claims)
                while key is not None and (grant := self._start(key, ticket.request, ticket.requester, now)) is None:
                    key = self._plan(ticket, now, claims)
                if key is None:
                    cursor.mark_blocked()
                else:
                    ticket.grant = grant
                    self._leave(ticket, TicketState.GRANTED)
                    granted.append(ticket)
            if not cursor.advance():
                cursors.remove(cursor)
        if self.waiting and self.max_lease is not None and self.leases:
            expiry = next(iter(self.leases.values())).granted_at + self.max_lease
            if expiry < self.next_at:
                self.next_at = expiry
                self.next_ticket = min(
                    (QueueCursor(lane) for lane in self._index_list if lane.waiting), key=QueueCursor.order
                ).ticket
        return granted

    def _plan(self, ticket: Ticket, now: float, claims: RefillClaims) -> Key | None:
        """The key on which *ticket* can start now; None if it must wait, and then it claims what it waits for."""
        key, at = self._find(ticket.index, ticket.request, now, claims)
        if at <= now:
            return key
        ticket.planned, ticket.starts_at = key, at
        if at < self.next_at:
            self.next_at, self.next_ticket = at, ticket
        if key is not None:
            claims.add(key, ticket.request, now, at)
        return None

    # -- what can never be ------------------------------------------------------------------------------------

    def _fail_infeasible(self) -> list[Ticket]:
        failed = []
        for lane in self._index_list:
            for ticket in list(lane.waiting):
                ticket.error = why_infeasible(self.keys.values(), ticket.request, self.keep_free)
                if ticket.error is not None:
                    self._leave(ticket, TicketState.FAILED)
                    failed.append(ticket)
        return failed

    # -- which key --------------------------------------------------------------------------------------------

    def _find(
        self, lane: CandidateIndex, ask: LeaseRequest, now: float, claims: RefillClaims | None
    ) -> tuple[Key | None, float]:
        """The key on which *ask* can start earliest, and when. Without *claims* only "now" is of interest."""
        if lane.later:
            lane.promote_due(now)
        if self.keep_free:
            at = self.next_spare_slot_at(now)
            if at > now:
                return None, at
        return find_key(lane, ask, now, claims, self._affinities.get(ask.affinity), self._starts_at)

    def _starts_at(self, key: Key, ask: LeaseRequest, now: float, claims: RefillClaims | None) -> float:
        alone = starts_at(key.quota, ask, now)
        return alone if claims is None or key.quota not in claims else claims.starts_at(key, ask, now, alone)

    def starts_at(self, key: Key, ask: LeaseRequest, now: float) -> float:
        """When *ask* could start on *key*, if a slot of it is free and nobody here waits."""
        return self._starts_at(key, ask, now, None)

    def next_spare_slot_at(self, now: float) -> float:
        """From when on one slot more than those to be kept free is free and open."""
        return next_spare_slot_at(self.keys.values(), self._plain, self.keep_free, now)

    def earliest_start(self, ask: LeaseRequest, now: float) -> float:
        """When *ask* could start if nobody else waited; FOREVER: when somebody gives a slot back."""
        return self._find(self._index_for(ask.labels, ask.model), ask, now, RefillClaims())[1]

    # -- kinds of requests ------------------------------------------------------------------------------------

    def _index_for(self, labels: Labels, model: str | None) -> CandidateIndex:
        kind = (labels, model if self._models_matter else None)
        lane = self._indexes.get(kind)
        if lane is None:
            if len(self._indexes) >= _INDEXES_REMEMBERED:
                self._drop_idle_indexes()
            lane = self._indexes[kind] = make_lane(*kind, self.keys.values())
            self._index_list.append(lane)
            self._straight = False
        return lane

    def _drop_idle_indexes(self) -> None:
        """Drop the lanes nobody waits in; they are built again when asked for."""
        self._indexes = {kind: lane for kind, lane in self._indexes.items() if lane is self._plain or lane.waiting}
        self._index_list = list(self._indexes.values())
        self._straight = self._may_be_straight and len(self._index_list) == 1

    def candidate_indexes(self) -> list[CandidateIndex]:
        """The kinds of requests there have been, each with its index of the keys."""
        return list(self._index_list)
