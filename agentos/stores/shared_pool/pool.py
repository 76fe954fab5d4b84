"""SharedPool: a pool that applies the core's rules to a view of a shared store.

The core selects a key in the view and requests it from the store. If the store refuses, it has updated the view by
then, and the core selects again. What holders report goes to the store as actions, which are applied to the true state
at that moment; while the store cannot be written they are deferred, and callers do not wait for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from ...errors import PoolClosed, StoreError
from ...pool.core.candidate_index import CandidateIndex
from ...pool.core.cost import Used
from ...pool.core.limits.base import FOREVER
from ...pool.core.pool import NOBODY, NOTHING, LeasePool
from ...pool.core.quota_codec import named_limits, pack_quota, reset_record
from ...pool.core.records import OUTAGE, PLAIN, Draw, Grant, Key, LeaseRequest, Quota, Ticket
from ...pool.core.reservations import RefillClaims, reserve
from ...pool.core.settlement import correct_draws, note_cost
from ...pool.core.states import Life, LifeEvent, TicketState
from ...pool.store_protocol import QuotaReservation, SlotGranted, SlotRequest, Step, name_request
from .view import TOO_LATE, PoolView
from .waiting import NAMED, build_claim, find_idle_until, parse_claims, start_after_claims, wanted_numbers

# Delay after a refusal that the view does not explain, before the view is refreshed again.
_UNEXPLAINED_FOR = 0.005

_LONGEST_REQUESTER = 200
_PASSES = 4
# Other processes send a wake-up when it is our turn. In case it is lost, refresh at these intervals.
_REFRESH_EVERY = 0.1
_REFRESH_WHEN_IDLE = 1.0
# A caller that begins to wait was refused within this time, and the wait step reads what has changed since.
_JUST_NOW = 0.01


class SharedPool(PoolView):
    """The core on a view of a store: its decisions take effect when the store has executed them."""

    # -- starting ---------------------------------------------------------------------------------------------

    def acquire(self, request: LeaseRequest, requester: str | None, now: float) -> Grant | None:
        grant = super().acquire(request, requester, now)
        if grant is None and not self.waiting and not self.closed and self._catch_up(now):
            grant = super().acquire(request, requester, now)
        return grant

    def _find(
        self, index: CandidateIndex, request: LeaseRequest, now: float, claims: RefillClaims | None
    ) -> tuple[Key | None, float]:
        if now < self.not_before:
            return None, self.not_before
        return super()._find(index, request, now, claims)

    def starts_at(self, key: Key, request: LeaseRequest, now: float, claims: RefillClaims | None = None) -> float:
        """Return when *request* may start: later than in the core if starting now would delay a process ahead."""
        at = super().starts_at(key, request, now, claims)
        if at > now or not self._claimed.get(key.quota):
            return at
        return start_after_claims(self._claimed[key.quota], key, request, now)

    def _start_on_first(
        self, index: CandidateIndex, request: LeaseRequest, requester: str | None, now: float
    ) -> Grant | None:
        return None  # only the store can grant

    def _start(self, key: Key, request: LeaseRequest, requester: str | None, now: float) -> Grant | None:
        quota = key.quota
        _, number = self._numbers[key]
        draws: list[Draw] | tuple[Draw, ...] = NOTHING

        def reserve_at(at: float, claims: Sequence[str]) -> QuotaReservation | None:
            nonlocal draws
            self._claimed[quota] = parse_claims(number, quota, claims, at)
            if key.life is not Life.ALIVE or (self.keep_free and self.next_spare_slot_at(at) > at):
                return None
            if self._claimed[quota] and self.starts_at(key, request, at) > at:
                return None
            found = NOTHING if quota.open_wide else reserve(quota, request, at)
            if found is None:
                return None
            draws = found
            if not found and not quota.probation:
                return QuotaReservation(None)
            if OUTAGE in quota.probation:
                self._probes_before.setdefault(quota, -FOREVER)  # as it was: else this request could not start
            record = self._records[quota] = pack_quota(quota, self._records[quota])
            guesses = {draw[0] for draw in found if draw[2]}
            return QuotaReservation(record, tuple(name for name, state in named_limits(quota) if state in guesses))

        bid = self._build_slot_request(key, requester, reserve_at, now, still_waiting=self.waiting > 1)
        before = self._foreign_changes
        self._requested_grant = True
        answer = self._try_in_store(lambda: self._store.try_grant(bid), now)
        if isinstance(answer, SlotGranted):
            if not bid.still_waiting:
                self._waits_as = None
            grant = Grant(key, answer.token, requester, answer.at, request, draws)
            self._record_lease(grant, request)
            self._store.confirm_grant()
            if self.max_lease is not None and len(self.leases) == 1:
                self._store.wake_maintenance()  # to end the lease in time if its holder does not
            return grant
        if answer is not None:
            self._refresh_view(now)  # so that the next selection is a better one
            self.pause_reason = answer.why
            if answer.not_before is not None:
                self.not_before = answer.not_before
            elif self._foreign_changes == before:
                self.not_before = now + _UNEXPLAINED_FOR
        return None

    def _build_slot_request(
        self,
        key: Key,
        requester: str | None,
        reserve_at: Callable[[float, Sequence[str]], QuotaReservation | None],
        now: float,
        *,
        still_waiting: bool,
    ) -> SlotRequest:
        credential, number = self._numbers[key]
        return SlotRequest(
            request=name_request(self._name, next(self._requests), key.stated),
            credential=credential,
            slots=key.own_slots,
            learned=key.learned_slots,
            quota=number,
            requester=None if requester is None else self.mask(str(requester)[:_LONGEST_REQUESTER]),
            reserve=reserve_at,
            free=lambda wanted: self._free_now(key, now, wanted),
            still_waiting=still_waiting,
            sees_all=self.keep_free > 0,
            since=now,
        )

    def reacquire(self, grant: Grant, now: float) -> Grant | None:
        self._try_in_store(self._store.maintain, now)
        if grant not in self._lost or self.kept_out:
            return super().reacquire(grant, now)
        key = grant.key
        # The cost was reserved at the grant and stays reserved; an estimated cost ended with the lease.
        draws = [draw for draw in grant.draws if not draw[2]]
        bid = self._build_slot_request(
            key,
            grant.requester,
            lambda _at, _claims: QuotaReservation(None) if key.life is Life.ALIVE else None,
            now,
            still_waiting=self.waiting > 0,
        )
        answer = self._try_in_store(lambda: self._store.try_grant(bid), now)
        if not isinstance(answer, SlotGranted):
            return None
        again = Grant(key, answer.token, grant.requester, answer.at, LeaseRequest(grant.cost, grant.model), draws)
        self._record_lease(again, PLAIN)
        self._store.confirm_grant()
        self._store.on_lease_replaced(grant.token, again.token)
        return again

    def _free_now(self, key: Key, now: float, wanted: Callable[[int], bool]) -> int:
        """Return how many slots of wanted keys could start a request now; looks at ``NAMED`` keys at most."""
        free = key.slots - key.leases
        for other in itertools.islice(self.indexes.plain.ready(), NAMED):
            if (
                other is not key
                and (other.quota.open_wide or other.quota.closed_until <= now)
                and wanted(self._numbers[other][0])
            ):
                free += other.slots - other.leases
        return free

    # -- releasing and reporting ------------------------------------------------------------------------------

    def end(self, grant: Grant) -> bool:
        if self.leases.get(grant.token) is not grant:
            return False
        in_force: bool | None = None

        def give_back(step: Step) -> None:
            nonlocal in_force
            in_force = step.end(self._numbers[grant.key][0], grant.token)
            if in_force and any(guessed for _, _, guessed, _ in grant.draws):
                step.read(quota=self._numbers[grant.key][1])
                LeasePool._end_draws(self, grant)
                self._keep(step, grant.key.quota)
            self._ended_now.append(grant.token)

        # First in the view: if an interrupt follows, this process no longer holds the lease, and the store learns it.
        self._ending.add(grant.token)
        super().end(grant)
        self._submit(give_back, None)
        if in_force is False or (in_force is None and self._store.is_expired()):
            self._mark_lost(grant, TOO_LATE)
        self._leave_if_finished()
        return grant not in self._lost

    def abandon(self, grants: Iterable[Grant]) -> bool:
        held = [grant for grant in grants if self.leases.get(grant.token) is grant]
        for grant in held:
            self._drop_lease(grant)
        self._abandoned.update(held)
        if held:
            self._try_in_store(lambda: self._store.abandon([grant.token for grant in held]), None)
            self._leave_if_finished()
        return True

    def end_abandoned(self, grant: Grant, now: float) -> Sequence[Ticket] | None:
        if grant not in self._abandoned:
            return None
        self._abandoned.discard(grant)
        self._submit(lambda step: step.end(self._numbers[grant.key][0], grant.token), now)
        self._refresh_view(now)
        return self._serve(now) if self.waiting else NOBODY

    def _end_draws(self, grant: Grant) -> None:
        pass  # done in the store's step

    def settle(self, grant: Grant, used: Used, now: float) -> Sequence[Ticket] | None:
        if not self.is_in_force(grant, now):
            return None
        quota = grant.key.quota
        note_cost(grant, used)
        if all(used[state.dimension] is None for state in quota.limits_for(grant.model)):
            return NOBODY  # nothing that is limited was used
        changed = False

        def correct(step: Step) -> None:
            nonlocal changed
            credential, number = self._numbers[grant.key]
            if not step.settle(credential, grant.token):
                return  # deferred, and lost meanwhile
            step.read(quota=number)
            before = self._draws_before.setdefault(grant, grant.draws)
            grant.draws = list(grant.draws)
            changed = correct_draws(grant, used, step.now)
            eased = sum(draw[1] for draw in grant.draws) < sum(draw[1] for draw in before)
            self._keep(step, quota, eased=eased)

        self._submit(correct, now)
        grant.settled = True
        if grant in self._lost:
            return None
        return self._reopened(quota, now) if changed else NOBODY

    def close_quota(self, key: Key, until: float, *, model: str | None, evidence: str, now: float) -> Sequence[Ticket]:
        self._apply(lambda at: self._close_quota(key, until, model, evidence, at), key, now)
        return self._serve(now) if self.waiting else NOBODY

    def spend(self, key: Key, evidence: str, now: float) -> Sequence[Ticket]:
        self._apply(lambda at: key.quota.spend(evidence, at), key, now)
        return self._after_key_loss(now)

    def reject(self, key: Key, evidence: str, now: float) -> Sequence[Ticket]:
        def reject(at: float) -> None:
            key.quota.reset_silence()
            self._change_life(key, LifeEvent.REJECTED, evidence, at)

        self._apply(reject, key, now, life=Life.DEAD, evidence=evidence)
        return self._after_key_loss(now)

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
        """Change the state of a key or its quota: in the store, and if that is deferred, in the view at once."""
        done = put_off = False

        def apply(step: Step) -> None:
            nonlocal done
            before = self._foreign_changes
            step.read(*self._numbers[key])
            if not put_off or self._foreign_changes != before:  # else it is already applied to the same state
                change(step.now)
            self._keep(step, key.quota, opened=opened)
            if life is not None:
                step.write_life(self._numbers[key][0], life.value, evidence, step.now)
            done = True

        self._submit(apply, now)
        if not done:
            put_off = True
            change(now)

    def _keep(self, step: Step, quota: Quota, *, opened: bool = False, eased: bool = False) -> None:
        record = self._records[quota] = pack_quota(quota, self._records[quota])
        step.write_quota(self._numbers[quota.keys[0]][1], record, opened=opened, eased=eased)

    # -- manual actions ---------------------------------------------------------------------------------------

    def revive(self, key: Key, now: float) -> Sequence[Ticket]:
        self._apply(lambda at: self._revive(key, at), key, now, life=Life.ALIVE, opened=True)
        return self._reopened(key.quota, now)

    def clear(self, key: Key, now: float) -> Sequence[Ticket]:
        def clear(at: float) -> None:
            self._clear(key, at)
            self._records[key.quota] = reset_record(self._records[key.quota])

        self._apply(clear, key, now, life=Life.ALIVE, opened=True)
        return self._reopened(key.quota, now)

    def close(self) -> Sequence[Ticket]:
        touched = super().close()
        self._leave_if_finished()
        return touched

    def _leave_if_finished(self) -> None:
        """Leave the store if the pool is closed and all leases are released."""
        if self.is_finished():
            self._store.close()

    # -- waiting in turn with other processes -----------------------------------------------------------------

    def enqueue(self, ticket: Ticket, now: float) -> Sequence[Ticket]:
        self._catch_up(now - _JUST_NOW)
        if self._broken is not None and not self.closed:
            ticket.state, ticket.error = TicketState.FAILED, self._broken
            return (ticket,)
        return super().enqueue(ticket, now)

    def tick(self, now: float) -> Sequence[Ticket]:
        self._catch_up(now)
        return super().tick(now)

    def maintain(self, now: float, *, called: bool) -> Sequence[Ticket]:
        """Renew what is due and, if callers wait, serve them from what other processes changed.

        *called*: another process has notified us that it is our turn.
        """
        if self.max_lease is not None:
            self._expire(now)
        self._try_in_store(self._store.maintain, now)
        news = self._catch_up(now if called else now - _REFRESH_EVERY / 2)
        if not self.waiting:
            return NOBODY
        if not called:
            return self._serve(now) if news or self._broken or self.not_before <= now else NOBODY
        self.not_before = -FOREVER
        self._requested_grant = False
        touched = self._serve(now)
        if self.waiting and not self._requested_grant:
            self._write_waiting(now, passed=True)
        return touched

    def due_at(self, now: float) -> float:
        """Return when ``maintain`` is due."""
        if self._broken is not None:
            return FOREVER
        due = min(self._store.next_renewal_at(), now + (_REFRESH_EVERY if self.waiting else _REFRESH_WHEN_IDLE))
        if self.waiting:
            due = min(due, self._store.next_refresh_at)
        if self.max_lease is not None and self.leases:
            due = min(due, next(iter(self.leases.values())).granted_at + self.max_lease)
        return due

    def find_pause_reason(self, now: float) -> tuple[str, ...]:
        """Return why the store grants nothing at all now, if that is so."""
        return (self.pause_reason,) if self.pause_reason and now < self.not_before else ()

    def is_finished(self) -> bool:
        """Return whether the pool is closed and all leases are released."""
        return self.closed and not self.leases

    def _serve(self, now: float) -> list[Ticket]:
        touched: list[Ticket] = []
        for _ in range(_PASSES):
            before = self._foreign_changes
            if self._fewer_keys:
                self._fewer_keys = False
                touched += self._fail_infeasible()
            touched += super()._serve(now)
            if self._broken is not None:
                return [*touched, *self._fail_all(self._broken)]
            self._announce_waiting(now)
            if self._foreign_changes == before or not self.waiting:
                break  # else what others did meanwhile may change which ticket can start
        return touched

    def _announce_waiting(self, now: float) -> None:
        """Write to the store whether and for what this process waits, so that it is notified at its turn."""
        if self.waiting:
            if self.kept_out:
                return  # the store was not reached: it is not known yet that we must wait
            before = self._waits_as
            if before is None and self._store.next_refresh_at == FOREVER and not self._has_active_peers:
                return  # no other session; our next step, or what it changes, shows a new one
            if before is None or before != self._waiting_for(now):
                self._write_waiting(now, passed=False)
                self._refresh_view(now)  # a slot may have become free before this was written
            if before is None:
                self._store.wake_maintenance()  # it must refresh for us from now on
        elif self._waits_as is not None:
            self._waits_as = None
            self._submit(lambda step: step.stop_waiting(), now)

    def _write_waiting(self, now: float, *, passed: bool) -> None:
        self._waits_as = wanted, idle, claim = self._waiting_for(now)
        self._submit(lambda step: step.wait(wanted, idle, claim, passed=passed), now)

    def _waiting_for(self, now: float) -> tuple[tuple[int, ...] | None, float | None, str | None]:
        """Return the credentials that callers wait for (None: any), not before when, and the refill they claim."""
        indexes, numbers = self.indexes.all, self._numbers
        idle = None if len(numbers) > NAMED else find_idle_until(indexes, self.keys.values(), self.starts_at, now)
        return wanted_numbers(indexes, numbers), idle, build_claim(indexes, numbers, now)

    def _fail_all(self, error: StoreError | PoolClosed) -> list[Ticket]:
        tickets = self.empty_queue(TicketState.FAILED)
        for ticket in tickets:
            ticket.error = error
        return tickets
