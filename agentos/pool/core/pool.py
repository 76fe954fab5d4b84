"""The core pool: credentials, leases and waiting requests, and the rule that serves them.

Requests are served by priority, then arrival. Each takes the key on which it can start earliest, and starts if that is
now. A later request may start before an earlier one only if it takes nothing that would let the earlier one start
sooner (``reservations.RefillClaims``).

Operations return the tickets that they granted or failed; the caller wakes their owners. Afterwards ``next_at`` is the
instant at which ``tick`` is due if nothing else happens, and ``next_ticket`` the ticket that it concerns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from ...errors import PoolClosed
from .candidate_index import CandidateIndex, CandidateIndexes
from .cost import Used
from .feasibility import find_infeasible, why_infeasible
from .learning.first_call import find_next_start
from .limits.base import FOREVER
from .limits.calendar import WallTime
from .queue_cursor import QueueCursor, serve_in_order
from .records import Draw, Grant, Key, KeySpec, LeaseRequest, Quota, Ticket
from .reservations import RefillClaims, reserve, starts_at
from .selection import Affinities, find_key, next_spare_slot_at
from .settlement import end_estimates, settle_draws
from .states import Life, LifeEvent, TicketState

NOBODY: tuple[Ticket, ...] = ()
NOTHING: tuple[Draw, ...] = ()


class LeasePool:
    """A pure state machine over keys, leases and tickets. Each operation receives ``now``."""

    def __init__(self, *, keep_free: int = 0, max_lease: float | None = None, wall_offset: float = 0.0) -> None:
        self.keys: dict[str, Key] = {}
        self.keep_free = keep_free
        self.indexes = CandidateIndexes(self.keys, fast_path=not keep_free and max_lease is None)
        self._affinities = Affinities()
        self.max_lease = max_lease
        self.wall = WallTime(wall_offset)
        self.quotas: dict[tuple[bool, str], Quota] = {}  # by (shared, name)
        # By token, so by age. max_lease reads the oldest all the time: slow in a dict with a gap in front.
        self.leases: dict[int, Grant] = {} if max_lease is None else OrderedDict()
        self.has_calendar = False
        self.waiting = 0
        self.next_at = FOREVER
        self.next_ticket: Ticket | None = None
        self.notes: list[str] = []  # warnings for the user; the scheduler logs and empties them
        self.closed = False
        self.drifts = max_lease is not None  # its state may change without an operation on it
        self.kept_out = False  # the shared store was not available for the last operation
        self.not_before = -FOREVER  # no lease starts before this instant, even on a free key
        self.tracks_lease_ends = False  # see ``learning``
        self._token = self._used = self._arrivals = 0

    # -- acquiring without waiting ----------------------------------------------------------------------------

    def acquire(self, request: LeaseRequest, requester: str | None, now: float) -> Grant | None:
        """Return a grant, or None if the request has to wait or other requests already wait."""
        if self.waiting:
            return None
        indexes = self.indexes
        if indexes.fast_path and (request.plain or not (request.special or indexes.by_model)):
            # The common case: one kind of request, an unused key. _find and _start without what cannot apply.
            index = indexes.plain
            level = index.levels[0]
            queue = level.queue
            later = index.later
            if queue and not level.returned and (not later or later[0][0] > now):
                key = next(iter(queue))
                if key.slots == 1:
                    quota = key.quota
                    draws = NOTHING if quota.open_wide else reserve(quota, request, now)
                    if draws is not None:
                        del queue[key]
                        if not queue:
                            index.filled &= ~1
                        key.leases = 1
                        self._token = token = self._token + 1
                        grant = self.leases[token] = Grant(key, token, requester, now, request, draws)
                        return grant
        if self.closed:
            return None
        index = indexes.get(request.labels, request.model)
        if self.max_lease is not None:
            self._expire(now)
        started = self._start_on_first(index, request, requester, now)
        while started is None:
            found, at = self._find(index, request, now, None)
            if found is None or at > now:
                return None
            started = self._start(found, request, requester, now)
        return started

    def _start_on_first(
        self, index: CandidateIndex, request: LeaseRequest, requester: str | None, now: float
    ) -> Grant | None:
        """Lease the first ready key if *request* can start on it now; this spares ``_find``. None: search."""
        later = index.later
        if not index.filled or self.keep_free or request.affinity is not None or (later and later[0][0] <= now):
            return None
        key = index.first()
        quota = key.quota
        if key.barred or quota.blocks or quota.probation or (key.auto and not (key.proven and quota.limits)):
            return None
        draws = NOTHING if quota.open_wide else reserve(quota, request, now)
        if draws is None:
            return None
        self._token = token = self._token + 1
        grant = Grant(key, token, requester, now, request, draws)
        self._record_lease(grant, request)
        return grant

    def _start(self, key: Key, request: LeaseRequest, requester: str | None, now: float) -> Grant | None:
        """Lease the selected *key*. None: a shared store refused it, and the view now shows why."""
        draws = NOTHING if key.quota.open_wide else reserve(key.quota, request, now)
        assert draws is not None, "a key was chosen that cannot start now"  # noqa: S101
        self._token = token = self._token + 1
        grant = Grant(key, token, requester, now, request, draws)
        self._record_lease(grant, request)
        return grant

    def _record_lease(self, grant: Grant, request: LeaseRequest) -> None:
        """Enter a new lease and take one slot of its key."""
        self.leases[grant.token] = grant
        key = grant.key
        before = key.leases
        key.leases = before + 1
        self._used = key.used = self._used + 1
        for index in self.indexes.all:
            if not index.labels or index.labels <= key.labels:
                index.slot_taken(key, before)
        if request.affinity is not None:
            self._affinities.remember(request.affinity, key)
        if key.auto:
            self._slot_taken(grant)

    def _slot_taken(self, grant: Grant) -> None:
        """Handle the start of a lease on a key with automatic slots."""

    # -- waiting ----------------------------------------------------------------------------------------------

    def enqueue(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Add a request to the wait queue. It may be granted or failed when this returns."""
        if self.closed:
            ticket.state, ticket.error = TicketState.FAILED, PoolClosed()
            return (ticket,)
        error = why_infeasible(self.keys.values(), ticket.request, self.keep_free)
        if error is not None:
            ticket.state, ticket.error = TicketState.FAILED, error
            return (ticket,)
        if self.max_lease is not None:
            self._expire(now)
        request = ticket.request
        self._arrivals += 1
        ticket.order = (-request.priority, self._arrivals)
        ticket.queued_at = now
        ticket.index = index = self.indexes.get(request.labels, request.model)
        index.waiting.add(ticket)
        self.waiting += 1
        return self._serve(now)

    def withdraw(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        """Remove a request from the wait queue. If it has just been granted, the next one gets that grant."""
        if ticket.state is TicketState.GRANTED:
            assert ticket.grant is not None  # noqa: S101 - for the type checker
            return self.release(ticket.grant, now) or NOBODY
        if ticket.state is not TicketState.WAITING or ticket.index is None:
            return NOBODY  # already removed, or never added
        self._leave(ticket, TicketState.WITHDRAWN)
        return self._serve(now)

    def _leave(self, ticket: Ticket, state: TicketState) -> None:
        ticket.state = state
        ticket.index.waiting.remove(ticket)
        self.waiting -= 1

    def tick(self, now: float) -> Sequence[Ticket]:
        """End the leases that expire and start the requests that can start now."""
        if self.max_lease is not None:
            self._expire(now)
        return self._serve(now)

    # -- leases in force --------------------------------------------------------------------------------------

    def release(self, grant: Grant, now: float) -> Sequence[Ticket] | None:
        """End the lease and serve waiting requests. None: it had already ended, and nothing changed."""
        ticket = self._grant_next(grant, now)
        if ticket is not None:
            return (ticket,)
        if not self.end(grant):
            return None
        return self._serve(now) if self.waiting else NOBODY

    def _grant_next(self, grant: Grant, now: float) -> Ticket | None:
        """Grant the key to the first waiting request if no other rule can apply; else None.

        A shortcut for ``end`` and ``_serve`` in the most frequent case: requests wait for a slot of keys without
        limits.
        """
        key, index = grant.key, self.indexes.plain
        if not (
            self.waiting
            and self.indexes.fast_path
            and key.slots == 1
            and key.quota.open_wide
            and not index.filled
            and not index.later
            and key.life is Life.ALIVE
            and self.leases.pop(grant.token, None) is not None
        ):
            return None
        ticket = index.waiting.head()
        assert ticket is not None  # noqa: S101 - for the type checker: there is one index, and a ticket waits
        self._token = token = self._token + 1
        request = ticket.request
        ticket.grant = self.leases[token] = Grant(key, token, ticket.requester, now, request, NOTHING)
        self._used = key.used = self._used + 1
        if request.affinity is not None:
            self._affinities.remember(request.affinity, key)
        self._leave(ticket, TicketState.GRANTED)
        self.next_at, self.next_ticket = FOREVER, None
        return ticket

    def end(self, grant: Grant) -> bool:
        """End a lease without serving: ``tick`` must follow if requests wait. Return False if it had ended."""
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
            indexes = self.indexes
            index = indexes.plain
            bounds = index.bounds
            if indexes.fast_path and key.slots == 1 and not key.quota.closed and (not bounds or key not in bounds):
                index.levels[0].queue[key] = None
                index.filled |= 1
                return True
            for index in indexes.all:
                if not index.labels or index.labels <= key.labels:
                    index.slot_freed(key, n)
        if self.tracks_lease_ends:
            self._on_lease_end(grant)
        return True

    def _on_lease_end(self, grant: Grant) -> None:
        """Learn from the end of a lease."""

    def _end_draws(self, grant: Grant) -> None:
        end_estimates(grant, self.notes)

    def _expire(self, now: float) -> None:
        """End the leases that are older than ``max_lease``; the oldest is first."""
        assert self.max_lease is not None  # noqa: S101 - for the type checker
        while self.leases:
            grant = next(iter(self.leases.values()))
            if grant.granted_at + self.max_lease > now:
                return
            self.end(grant)
            self.notes.append(
                f"lease {grant.token} on {grant.key.name} held by {grant.requester or 'an unnamed holder'} "
                f"ended after {self.max_lease:g}s (max_lease); its holder may still be using the key"
            )

    def abandon(self, _grants: Iterable[Grant]) -> bool:
        """Give up leases whose holders still run. True: they are lost. False: they last until released."""
        return False

    def end_abandoned(self, _grant: Grant, _now: float) -> Sequence[Ticket] | None:
        """Handle the end of an abandoned lease's holder. None: it was not abandoned."""
        return None

    def is_in_force(self, grant: Grant, _now: float) -> bool:
        """Return True if that lease is in force."""
        return self.leases.get(grant.token) is grant

    def reacquire(self, grant: Grant, now: float) -> Grant | None:
        """Return the lease if it is in force after a suspension of this process; else a new one on its key, or None."""
        return grant if self.is_in_force(grant, now) else None

    def find_loss_reason(self, _grant: Grant, _now: float) -> str | None:
        """Return why that lease must not be used any more although it was not released; None if it may."""
        return None

    def settle(self, grant: Grant, used: Used, now: float) -> Sequence[Ticket] | None:
        """Replace what was reserved by what was used. None: that lease has already ended, and nothing changed."""
        if self.leases.get(grant.token) is not grant:
            return None
        quota = grant.key.quota
        if not settle_draws(grant, used, now):
            return NOBODY
        # Even if more was used: requests that wait for this quota may now be planned elsewhere and let others pass.
        if self.indexes.fast_path and not self.waiting and not self.indexes.plain.bounds:
            return NOBODY
        return self._reopened(quota, now)

    # -- answers of the provider ------------------------------------------------------------------------------

    def close_quota(self, key: Key, until: float, *, model: str | None, evidence: str, now: float) -> Sequence[Ticket]:
        """Let no request start on this key's quota (for one model family, if given) before *until*."""
        if not self._close_quota(key, until, model, evidence, now):
            return NOBODY
        return self._serve(now) if self.waiting else NOBODY

    def _close_quota(self, key: Key, until: float, model: str | None, evidence: str, now: float) -> bool:
        key.quota.reset_silence()
        changed = key.quota.close_until(until, model, evidence, now)
        if changed and model is not None:
            self.indexes.split_by_model()
        return changed

    def spend(self, key: Key, evidence: str, now: float) -> Sequence[Ticket]:
        """Close this key's quota until a person acts: its money is gone."""
        key.quota.spend(evidence, now)
        return self._after_key_loss(now)

    def reject(self, key: Key, evidence: str, now: float) -> Sequence[Ticket]:
        """Mark the credential dead until a person acts: the provider refused it."""
        key.quota.reset_silence()
        self._change_life(key, LifeEvent.REJECTED, evidence, now)
        return self._after_key_loss(now)

    def _after_key_loss(self, now: float) -> Sequence[Ticket]:
        """Fail the requests that no remaining key can serve."""
        return [*self._fail_infeasible(), *self._serve(now)]

    def _fail_infeasible(self) -> list[Ticket]:
        failed = find_infeasible(self.tickets(), self.keys.values(), self.keep_free)
        for ticket in failed:
            self._leave(ticket, TicketState.FAILED)
        return failed

    def _change_life(self, key: Key, event: LifeEvent, evidence: str, now: float) -> None:
        if key.change_life(event, evidence, now):
            self.indexes.update_life(key)

    # -- credentials ------------------------------------------------------------------------------------------

    def add(self, spec: KeySpec, now: float) -> Sequence[Ticket]:
        """Add a credential, also while requests wait."""
        self._admit(spec)
        return self._serve(now) if self.waiting else NOBODY

    def _admit(self, spec: KeySpec) -> Key:
        # Without a shared quota it has its own, which no other credential can join by name.
        shared = spec.quota is not None
        quota = self.quotas.get((shared, spec.quota or spec.name))
        if quota is None:
            quota = Quota(spec.quota or spec.name, spec.limits, self.wall)
            self.quotas[shared, quota.name] = quota
            self.has_calendar = self.has_calendar or quota.has_calendar()
            if any(limit.model for limit in spec.limits):
                self.indexes.split_by_model()
        self._used += 1
        key = self.keys[spec.name] = Key(spec, quota, self._used)
        quota.keys.append(key)
        self.indexes.insert(key)
        return key

    def set_leases_elsewhere(self, key: Key, elsewhere: tuple[str, ...], slots: tuple[int, ...]) -> None:
        """Set the leases that other processes hold on this key, and their slots. ``tick`` must follow."""
        leases = key.leases - len(key.leases_elsewhere) + len(elsewhere)
        key.leases_elsewhere, key.slots_elsewhere = elsewhere, slots
        usable = key.target_slots()
        if leases != key.leases or usable != key.slots:
            self.indexes.move(key, leases, usable)

    def retire(self, key: Key, now: float) -> Sequence[Ticket]:
        """Remove a credential from use; leases in force continue."""
        self._change_life(key, LifeEvent.RETIRED, "retired by hand", now)
        return self._after_key_loss(now)

    def revive(self, key: Key, now: float) -> Sequence[Ticket]:
        """Let a dead, retired or spent credential be used again."""
        self._revive(key, now)
        return self._reopened(key.quota, now)

    def _revive(self, key: Key, now: float) -> None:
        self._change_life(key, LifeEvent.REVIVED, "", now)
        key.quota.set_spent(None)

    def clear(self, key: Key, now: float) -> Sequence[Ticket]:
        """Forget all that is known about this key and its quota."""
        self._clear(key, now)
        return self._reopened(key.quota, now)

    def _clear(self, key: Key, now: float) -> None:
        self._change_life(key, LifeEvent.REVIVED, "", now)
        key.quota.reset()

    def close(self) -> Sequence[Ticket]:
        """Fail every waiting request and grant nothing more."""
        self.closed = True
        self.indexes.disable_fast_path()
        tickets = self.empty_queue(TicketState.FAILED)
        for ticket in tickets:
            ticket.error = PoolClosed()
        return tickets

    def empty_queue(self, state: TicketState) -> list[Ticket]:
        """Remove all waiting requests; each gets *state*. Return them."""
        tickets = self.tickets()
        for ticket in tickets:
            self._leave(ticket, state)
        self.next_at, self.next_ticket = FOREVER, None
        return tickets

    def _reopened(self, quota: Quota, now: float) -> Sequence[Ticket]:
        """Check again a quota that may be open earlier."""
        self.indexes.reopen(quota.keys)
        return self._serve(now) if self.waiting else NOBODY

    def on_wall_clock_change(self, offset: float) -> None:
        """Apply a new offset of the wall clock: days end at other instants. ``tick`` must follow."""
        self.wall.offset = offset
        for quota in self.quotas.values():
            if quota.has_calendar():
                self.indexes.reopen(quota.keys)

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
        """Apply a change to the state of a key or its quota. A shared pool applies it in its store."""
        change(now)

    def tickets(self) -> list[Ticket]:
        """Return the waiting requests in the order in which they are served."""
        return self.indexes.tickets()

    # -- serving waiting requests -----------------------------------------------------------------------------

    def _serve(self, now: float) -> list[Ticket]:
        """Start each waiting request that may start, and set ``next_at``."""
        self.next_at, self.next_ticket = FOREVER, None
        cursors = [QueueCursor(index) for index in self.indexes.all if index.waiting]
        granted = serve_in_order(cursors, now, self._plan, self._start_ticket)
        if self.waiting and self.max_lease is not None and self.leases:
            expiry = next(iter(self.leases.values())).granted_at + self.max_lease
            if expiry < self.next_at:
                self.next_at, self.next_ticket = expiry, self.indexes.first_ticket()
        return granted

    def _start_ticket(self, ticket: Ticket, key: Key, now: float) -> bool:
        """Grant *key* to the ticket. Return False if it is taken."""
        ticket.grant = self._start(key, ticket.request, ticket.requester, now)
        if ticket.grant is not None:
            self._leave(ticket, TicketState.GRANTED)
        return ticket.grant is not None

    def _plan(self, ticket: Ticket, now: float, claims: RefillClaims) -> Key | None:
        """Return the key on which *ticket* can start now. None: it must wait, and claims what it waits for."""
        key, at = self._find(ticket.index, ticket.request, now, claims)
        if at <= now:
            return key
        ticket.planned, ticket.starts_at = key, at
        if at < self.next_at:
            self.next_at, self.next_ticket = at, ticket
        if key is not None:
            claims.add(key, ticket.request, now, at)
        return None

    def _find(
        self, index: CandidateIndex, request: LeaseRequest, now: float, claims: RefillClaims | None
    ) -> tuple[Key | None, float]:
        """Return the key on which *request* can start earliest, and when. Without *claims* only "now" matters."""
        if index.later:
            index.promote_due(now)
        if self.keep_free:
            at = self.next_spare_slot_at(now)
            if at > now:
                return None, at
        return find_key(index, request, now, claims, self._affinities.get(request.affinity), self.starts_at)

    def starts_at(self, key: Key, request: LeaseRequest, now: float, claims: RefillClaims | None = None) -> float:
        """Return when *request* can start on *key* if a slot is free and only the requests in *claims* are ahead."""
        at = max(starts_at(key.quota, request, now), find_next_start(key, request.model))
        return at if claims is None or key.quota not in claims else claims.starts_at(key, request, now, at)

    def next_spare_slot_at(self, now: float) -> float:
        """Return when more slots are free and open than ``keep_free`` keeps."""
        return next_spare_slot_at(self.keys.values(), self.indexes.plain, self.keep_free, now)

    def earliest_start(self, request: LeaseRequest, now: float) -> float:
        """Return when *request* could start if no request waited; FOREVER: when a lease ends."""
        return self._find(self.indexes.get(request.labels, request.model), request, now, RefillClaims())[1]
