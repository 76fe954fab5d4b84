"""PoolView: the core with a copy of the store's records, updated with what other processes change."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ...errors import PoolClosed, StoreError
from ...pool.core.learning.adaptive_pool import AdaptivePool
from ...pool.core.limits.base import FOREVER
from ...pool.core.pool import NOBODY, LeasePool
from ...pool.core.quota_codec import Record, merge_records, pack_quota, shift_record_epoch, unpack_quota
from ...pool.core.records import OUTAGE, Draw, Grant, Key, KeySpec, Quota, Ticket
from ...pool.core.states import Life, LifeEvent
from ...pool.store_protocol import (
    CredentialIdentity,
    CredentialUpdate,
    EnrolledCredential,
    QuotaUpdate,
    Step,
    Store,
    StoreBusy,
    TransientStoreError,
)
from .waiting import ForeignClaim

# Delay before the next attempt at a store that cannot be written.
_FAILURE_DELAY = 0.25
_LOST_REMEMBERED = 1_000

TOO_LATE = "it could not be renewed in the store in time"
ABANDONED = "its run was stopped without waiting for it; the lease is not renewed any more"

T = TypeVar("T")


class PoolView(AdaptivePool):
    """The core and its copy of the store's state. Call ``attach`` before anything else."""

    _store: Store

    def __init__(self, *, keep_free: int = 0, max_lease: float | None = None, wall_offset: float = 0.0) -> None:
        super().__init__(keep_free=keep_free, max_lease=max_lease, wall_offset=wall_offset)
        self.drifts = True
        self._track_lease_ends()  # no shortcuts: the store decides, and others may have learned something
        self.indexes.split_by_model()  # others may cool one model down at any moment, even while the queue is served
        self._numbers: dict[Key, tuple[int, int]] = {}  # number of the credential, of its quota
        self._keys: dict[int, Key] = {}
        self._quotas: dict[int, Quota] = {}
        self._records: dict[Quota, Record] = {}  # as last read or written
        self._requests = itertools.count(1)
        self._name = uuid.uuid4().hex
        self._foreign_changes = 0  # number of changes by other processes
        self._has_active_peers = False  # others changed something since a step last showed no other session
        self._fewer_keys = False  # a key was rejected or a balance exhausted since the queue was last checked
        # What we wait for according to the store: keys (None: any), not before when, and our claim.
        self._waits_as: tuple[tuple[int, ...] | None, float | None, str | None] | None = None
        self._claimed: dict[Quota, list[ForeignClaim]] = {}  # by processes ahead of us, as last read
        self._ending: set[int] = set()  # released here, not yet confirmed by the store
        self._ended_now: list[int] = []  # of those, in this step
        self._draws_before: dict[Grant, list[Draw] | tuple[Draw, ...]] = {}  # of grants settled in this step
        self._probes_before: dict[Quota, float] = {}  # for an outage, of quotas reserved in this step
        self.pause_reason = ""  # why the store grants nothing before ``not_before``
        self._requested_grant = False  # the store has received a request of ours since it notified us
        self._lost: dict[Grant, str] = {}
        self._abandoned: set[Grant] = set()  # their runs were stopped; not renewed, no longer ours
        self._reported_failure: str | None = None  # the failure that was reported
        self._broken: StoreError | PoolClosed | None = None
        self.mask: Callable[[str], str] = str
        self.fingerprint_of: Callable[[str], str] = str  # by the credential's name

    def attach(self, store: Store) -> None:
        """Keep the state in *store*."""
        self._store = store

    # -- the view ---------------------------------------------------------------------------------------------

    def apply_updates(self, credentials: Sequence[CredentialUpdate], quotas: Sequence[QuotaUpdate]) -> None:
        """Apply what other processes changed."""
        self._has_active_peers = True
        for update in credentials:
            key = self._keys.get(update.number)
            if key is not None:
                self._foreign_changes += 1
                self.set_leases_elsewhere(key, update.holders, update.slots)
                self._apply_life(key, update)
        for quota_update in quotas:
            quota = self._quotas.get(quota_update.number)
            if quota is not None:
                self._foreign_changes += 1
                was_spent = quota.spent is not None
                unpack_quota(quota, quota_update.record)
                self._refresh_quota(quota)
                self._records[quota] = quota_update.record
                self.indexes.reopen(quota.keys)
                self._fewer_keys |= quota.spent is not None and not was_spent

    def _apply_life(self, key: Key, update: CredentialUpdate) -> None:
        if update.life == Life.DEAD.value and key.life is Life.ALIVE:
            self._change_life(key, LifeEvent.REJECTED, update.evidence, update.since)
            self._fewer_keys = True
        elif update.life == Life.ALIVE.value and key.life is Life.DEAD:
            self._change_life(key, LifeEvent.REVIVED, "", update.since)

    def on_session_lost(self, why: str) -> None:
        """Drop all leases: the session has ended without us.

        Called in the middle of a step, which can write nothing more; so no feedback is derived from these ends.
        """
        for grant in list(self.leases.values()):
            self._drop_lease(grant)
            self._mark_lost(grant, why)
        self._waits_as = None

    def _drop_lease(self, grant: Grant) -> None:
        """Remove a lease that is not this process's any more, without feedback to the limits."""
        self.tracks_lease_ends = False
        LeasePool.end(self, grant)
        self.tracks_lease_ends = True
        self._discard_lease_record(grant)

    def _mark_lost(self, grant: Grant, why: str) -> None:
        self._lost[grant] = why
        while len(self._lost) > _LOST_REMEMBERED:
            del self._lost[next(iter(self._lost))]
        self.notes.append(
            f"lease {grant.token} on {grant.key.name} held by {grant.requester or 'an unnamed holder'} is lost: {why}; "
            "its holder may still be using the key, and others may have it"
        )

    def held_tokens(self) -> Sequence[int]:
        """Return the leases that this process holds."""
        return list(self.leases)

    def unreturned_tokens(self) -> Sequence[int]:
        """Return the leases that this process holds, or has released without the store's confirmation."""
        return [*self.leases, *self._ending]

    def note(self, text: str) -> None:
        """Queue a message for people."""
        self.notes.append(text)

    def step_done(self) -> None:
        """Confirm the changes that this step made to the view."""
        self._draws_before.clear()
        self._probes_before.clear()
        if self._ended_now:
            self._ending.difference_update(self._ended_now)
            self._ended_now.clear()

    def step_failed(self) -> None:
        """Undo the changes of this step that are kept only in the view."""
        for grant, draws in self._draws_before.items():
            grant.draws = draws
        self._draws_before.clear()
        for quota, began in self._probes_before.items():
            quota.begin_probation({**quota.probation, OUTAGE: began})
        self._probes_before.clear()
        self._ended_now.clear()

    def find_loss_reason(self, grant: Grant, now: float) -> str | None:
        if grant in self._lost:
            return self._lost[grant]
        if grant in self._abandoned:
            return ABANDONED
        if grant.token in self.leases and now >= self._store.valid_until:
            return TOO_LATE
        return None

    def is_in_force(self, grant: Grant, now: float) -> bool:
        return super().is_in_force(grant, now) and now < self._store.valid_until

    # -- credentials in the pool ------------------------------------------------------------------------------

    def add(self, spec: KeySpec, now: float) -> Sequence[Ticket]:
        known = self._enrol(spec.name, spec.quota)
        self._add_enrolled(self._admit(spec), known)
        self._catch_up(now)
        return self._serve(now) if self.waiting else NOBODY

    def _enrol(self, name: str, quota: str | None) -> EnrolledCredential:
        fingerprint = self.fingerprint_of(name)
        # A shared quota has the same name in every process; any other belongs to its credential.
        return self._store.enrol(
            CredentialIdentity(fingerprint, name, f"key {fingerprint}" if quota is None else f"quota {quota}")
        )

    def _add_enrolled(self, key: Key, known: EnrolledCredential) -> None:
        self._numbers[key] = (known.credential.number, known.quota.number)
        self._keys[known.credential.number] = key
        self._quotas[known.quota.number] = key.quota
        self.apply_updates([known.credential], [known.quota])

    def enrol_again(self) -> None:
        """Register all credentials in a store that was replaced, with what this process knows of them."""
        self._keys.clear()
        self._quotas.clear()
        acts: list[Callable[[Step], None]] = []
        for (shared, name), quota in self.quotas.items():
            # All leases are lost, so nothing is in flight.
            record = shift_record_epoch(pack_quota(quota, self._records[quota]), 0.0)
            for key in quota.keys:
                dead = (Life.DEAD.value, key.evidence, key.since) if key.life is Life.DEAD else None
                self._add_enrolled(key, _merge_known(self._enrol(key.name, name if shared else None), record, dead))
                if dead:
                    acts.append(partial(self._submit_death, key, *dead))
            if record:
                acts.append(partial(self._submit_quota, quota, record))
        if acts:
            self._store.submit(lambda step: [act(step) for act in acts])

    def _submit_death(self, key: Key, life: str, evidence: str, since: float, step: Step) -> None:
        number, _ = self._numbers[key]
        step.write_life(number, life, evidence, since)

    def _submit_quota(self, quota: Quota, record: Record, step: Step) -> None:
        _, number = self._numbers[quota.keys[0]]
        step.read(quota=number)
        known = QuotaUpdate(number, merge_records(self._records[quota], record))
        self.apply_updates((), (known,))
        step.write_quota(number, known.record)

    # -- access to the store ----------------------------------------------------------------------------------

    def _submit(self, act: Callable[[Step], object], now: float | None) -> None:
        self._try_in_store(lambda: self._store.submit(act), now)

    def _try_in_store(self, call: Callable[[], T], now: float | None) -> T | None:
        """Return the store's answer; None if it is busy or failing, and then nothing starts for a while."""
        self.kept_out = True
        try:
            answer = call()
        except StoreBusy:
            if now is not None:
                self.not_before = now + self._store.busy_delay()
            return None
        except TransientStoreError as error:
            if now is not None:
                self.not_before = now + _FAILURE_DELAY
            if self._reported_failure is None:
                self._reported_failure = str(error)
                self.notes.append(f"the pool's shared state cannot be written: {error}; no lease starts until it can")
            return None
        except (StoreError, PoolClosed) as error:
            self._break(error)
            return None
        self.kept_out = False
        if self._store.next_refresh_at == FOREVER:
            self._has_active_peers = False
        if self._reported_failure is not None and answer is not False:
            self._reported_failure = None
            if self._broken is None:
                self.not_before = -FOREVER  # waiters need not wait longer
            self.notes.append("the pool's shared state can be written again")
        return answer

    def _catch_up(self, now: float) -> bool:
        """Refresh the view; return whether other processes changed anything."""
        before = self._foreign_changes
        if now >= self._store.next_refresh_at:
            self._try_in_store(self._store.maintain, now)
        self._refresh_view(now)
        return self._foreign_changes != before

    def _refresh_view(self, since: float) -> None:
        """Update the view with changes before *since*, or a little later if the store is busy."""
        try:
            self._store.refresh(since)
        except (StoreError, PoolClosed) as error:
            self._break(error)

    def _break(self, error: StoreError | PoolClosed) -> None:
        if self._broken is None:
            self._broken = error
            if isinstance(error, StoreError):
                self.notes.append(f"{error}; no lease starts any more")
        self.not_before = FOREVER


def _merge_known(known: EnrolledCredential, record: Record, dead: tuple[str, str, float] | None) -> EnrolledCredential:
    """Return what the store knows, merged with what this process knew."""
    credential = known.credential
    if dead is not None:
        life, evidence, since = dead
        credential = replace(credential, life=life, evidence=evidence, since=since)
    return EnrolledCredential(credential, replace(known.quota, record=merge_records(known.quota.record, record)))
