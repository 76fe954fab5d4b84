"""SessionStore: one process's membership in a shared store, with the parts that SQLite and Redis have in common.

The subclass executes one step atomically. An action that cannot be executed now is deferred to the beginning of the
next step.
"""

from __future__ import annotations

import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from ..errors import PoolClosed, StoreError, StoreUnavailable
from ..pool.core.limits.base import FOREVER
from ..pool.core.quota_codec import Record
from ..pool.protocols import StoreView
from ..pool.store_protocol import (
    CredentialIdentity,
    EnrolledCredential,
    RemoteUser,
    SlotGranted,
    SlotRefused,
    SlotRequest,
    StepAction,
    StoreBusy,
    TransientStoreError,
)
from ..util.clock import Clock
from .fingerprint import compute_fingerprint
from .granting import grant
from .process_fairness import StoreSession
from .sqlite.file import busy_backoff
from .step_queueing import QueueingStep

T = TypeVar("T")

# A holder stops a little before other processes may take its lease, so that its last call has begun by then.
_MARGIN = 0.1  # fraction of the TTL
_LONGEST_MARGIN = 1.0

# Retry this long when the caller cannot come back later: when a credential is enrolled, and when the process leaves.
_JOIN_RETRY_SECONDS = 5.0
LEAVE_RETRY_SECONDS = 1.0
_FAILURE_DELAY = 0.25
_LONGEST_BUSY = 0.05


def safety_margin(ttl: float) -> float:
    """Return how many seconds before the session's expiry its holders stop."""
    return min(_LONGEST_MARGIN, _MARGIN * ttl)


class SessionStep(QueueingStep):
    """A step of a session: the protocol's ``Step``, and enrolling credentials."""

    @abstractmethod
    def enrol(self, card: CredentialIdentity) -> EnrolledCredential:
        """Register a credential and its quota, if they are new, and return their state."""

    @abstractmethod
    def end(self, credential: int, token: int) -> bool:
        """End a lease of this session. Return False if it is not in force."""

    @abstractmethod
    def settle(self, credential: int, token: int) -> bool:
        """Mark the cost of a lease as measured, no longer estimated. Return False if it is not in force."""

    @abstractmethod
    def _write_record(self, number: int, record: Record) -> None:
        """Write the record of a quota."""

    def write_quota(self, number: int, record: Record, *, opened: bool = False, eased: bool = False) -> None:
        """Write the record of a quota. *opened*: notify every waiting process; *eased*: notify the first."""
        self._write_record(number, record)
        if opened or eased:
            self._notify_all() if opened else self._notify_first()

    @abstractmethod
    def write_life(self, number: int, life: str, evidence: str, since: float) -> None:
        """Write whether a credential is alive."""

    @abstractmethod
    def join(self, me: StoreSession) -> None:
        """Begin session *me*."""

    @abstractmethod
    def find_held(self, tokens: Collection[int]) -> list[tuple[int, int]]:
        """Return credential and token of this session's leases that are among *tokens*."""

    @abstractmethod
    def _take_over(self, before: StoreSession, abandoned: Collection[int]) -> None:
        """Move the leases of session *before* to this one, except the *abandoned* tokens."""

    def continue_as(self, me: StoreSession, abandoned: Sequence[tuple[int, int]]) -> None:
        """Continue as session *me*. Only *abandoned* leases stay with the former session, which is not renewed."""
        before = self.me
        me.served, me.waiting_since, me.wanted = before.served, before.waiting_since, before.wanted
        me.notified_at, me.idle_until, me.claim = before.notified_at, before.idle_until, before.claim
        before.waiting_since = before.notified_at = before.claim = before.idle_until = None
        tokens = {token for _, token in abandoned}
        self.join(me)
        self._take_over(before, tokens)
        self.former.update(dict.fromkeys(tokens, before.id))
        for credential, _ in abandoned:
            self.read(credential)  # the lease is now another session's, and the view must count it so


S = TypeVar("S", bound=SessionStep)


class SessionStore(ABC, Generic[S]):
    """One process's access to a shared store. Used under the pool's lock, except for ``leave``."""

    def __init__(self, where: str, clock: Clock, *, ttl: float, weight: float, view: StoreView) -> None:
        self.valid_until = FOREVER
        self.next_refresh_at = FOREVER
        self.where = where  # for people; without a password
        self._clock = clock
        self._ttl = ttl
        self._margin = safety_margin(ttl)
        self._weight = weight
        self._view = view
        self._pid = os.getpid()
        self._session: str | None = None
        self._left = False
        self._renew_at = FOREVER
        self._pending: list[StepAction] = []
        self._highest = 0  # highest token seen
        self._uncertain = False  # the store may hold a lease that the view does not have
        self._busy = 0  # how often in a row the store was busy
        self._remote_use_for: float | None = None  # seconds that remote workers may use leases after our end
        self._remote_users: weakref.WeakSet[RemoteUser] = weakref.WeakSet()
        self._abandoned: set[int] = set()  # tokens still to be left in a session that is not renewed
        self._former: dict[int, str] = {}  # token of an abandoned lease -> its session

    # -- what each store implements ---------------------------------------------------------------------------

    @abstractmethod
    def _salt(self) -> bytes:
        """Return the store's own salt for fingerprints."""

    @abstractmethod
    def _step(self, act: Callable[[S], T], request: str | None = None) -> T:
        """Execute *act* as one step, after the deferred actions. *request* is the one that is being granted.

        Leaves ``_uncertain`` set; the caller clears it when it has recorded what was done.
        """

    @abstractmethod
    def _new_session(self, step: S) -> StoreSession:
        """Return a new session for this process, not yet joined."""

    @abstractmethod
    def _end_session(self, session: str) -> None:
        """End a session on a separate connection: another thread may be suspended in the middle of a step."""

    @abstractmethod
    def _schedule_expiry(self, session: str) -> None:
        """Let a session expire, at most ``_remote_use_for`` seconds from now; on a separate connection."""

    @abstractmethod
    def refresh(self, since: float = FOREVER) -> bool:
        """Update the view with what others changed; data read at *since* or later is fresh enough. False: no change."""

    @abstractmethod
    def wake_maintenance(self) -> None:
        """Wake the thread that calls ``maintain``, which may be due earlier than it knows."""

    @abstractmethod
    def _detach(self, *, closed: bool) -> None:
        """Release resources after the session has ended; *closed*: no step is executing, and none will."""

    # -- commands that may outlive this process ---------------------------------------------------------------

    def lock_lease(self, token: int, mark: str) -> int | None:
        """Return a descriptor for a command with that *mark* to inherit; see the protocol. Raises OSError."""
        return None

    def unlock_lease(self, token: int) -> None:
        """Release the lock after the command has ended."""

    def on_lease_replaced(self, token: int, to: int) -> None:
        """Move the lock of a command whose lease was lost and replaced by one with another token."""

    # -- steps ------------------------------------------------------------------------------------------------

    def fingerprint(self, secret: str) -> str:
        """Return the store's id of a secret: a digest with the store's own salt."""
        return compute_fingerprint(self._salt(), secret)

    def try_grant(self, bid: SlotRequest) -> SlotGranted | SlotRefused:
        """Lease one slot, if the rules allow it now."""
        answer = self._step(lambda step: self._grant(step, bid), bid.request)
        if not isinstance(answer, SlotGranted):
            self._uncertain = False
        # A grant stays uncertain until the caller has recorded it: an interrupt in between would leave a lease that no
        # caller has.
        return answer

    def _grant(self, step: S, bid: SlotRequest) -> SlotGranted | SlotRefused:
        return grant(step, bid)

    def confirm_grant(self) -> None:
        """Note that the caller has recorded the lease that was just granted."""
        self._uncertain = False

    def submit(self, act: StepAction) -> None:
        """Execute *act* now or, if the store is busy or failing, at the beginning of the next step."""
        if self._left or self._is_forked():
            return
        self._pending.append(act)
        try:
            self._plain_step()
        except (StoreBusy, TransientStoreError) as error:
            self._defer(error)
            if isinstance(error, TransientStoreError):
                raise
        except BaseException:
            self._defer(StoreBusy())  # interrupted: executed soon nevertheless
            raise

    def enrol(self, card: CredentialIdentity) -> EnrolledCredential:
        """Register a credential and return its state in the store."""
        enrolled = self._retry(lambda: self._step(lambda step: step.enrol(card)))
        self._uncertain = False
        return enrolled

    def maintain(self) -> bool:
        """Renew the session if due, execute deferred actions, end expired sessions. Return False if nothing was due."""
        if self._session is None or self._left or self._is_forked() or not self._is_due(self._clock.now()):
            return False
        self._check_location()
        try:
            self._plain_step()
        except (StoreBusy, TransientStoreError) as error:
            self._defer(error)
            raise
        return True

    def _is_due(self, now: float) -> bool:
        return now >= min(self._renew_at, self.next_refresh_at)

    def _check_location(self) -> None:
        """Check before a renewal that the store is still at its location."""

    def _plain_step(self) -> None:
        """Execute a step with only what is due anyway: deferred actions, renewal, expiries."""
        self._step(lambda _step: None)
        self._uncertain = False

    def _run_deferred(self, step: S, passes: tuple[type[Exception], ...] = ()) -> None:
        """Execute the deferred actions in order. Errors in *passes* are the store's, not the action's."""
        for number, act in enumerate(self._pending):
            try:
                act(step)
            except passes:
                raise
            except Exception:
                del self._pending[number]  # else it would fail in every step and block all others
                raise

    def abandon(self, tokens: Collection[int]) -> None:
        """Stop renewing these leases; see the protocol. If the store is busy, the next step does it first."""
        if self._left or self._is_forked():
            return
        self._abandoned.update(tokens)
        try:
            self._plain_step()
        except (StoreBusy, TransientStoreError) as error:
            self._defer(error)
        except StoreError:
            pass  # the store is damaged: the next use of the pool reports it

    def _split_off_abandoned(self, step: S) -> None:
        """At the beginning of a step, continue in a new session if there are leases to abandon."""
        if not self._abandoned or self.is_expired():  # a session that may have expired is not continued
            return
        held = step.find_held(self._abandoned)
        self._abandoned.intersection_update(token for _, token in held)  # the others have ended
        if held:
            step.continue_as(self._new_session(step), held)

    def _on_step_done(self, step: S, acts: int) -> None:
        """Update the state after a step that executed the first *acts* deferred actions."""
        del self._pending[:acts]
        self._former = step.former
        self._abandoned.difference_update(step.former)
        self._view.step_done()
        for note in step.notes:
            self._view.note(note)

    def next_renewal_at(self) -> float:
        """Return when ``maintain`` is due, even if no caller waits."""
        return FOREVER if self._left else self._renew_at

    def is_expired(self) -> bool:
        """Return whether our leases must count as lost."""
        return self._clock.now() >= self.valid_until

    def busy_delay(self) -> float:
        """Return how long to wait before the next attempt at a busy store: longer each time."""
        return min(busy_backoff() * (1 << min(self._busy, 10)), _LONGEST_BUSY)

    def _defer(self, error: StoreBusy | TransientStoreError) -> None:
        """Let the maintenance thread retry soon."""
        self._renew_at = self._clock.now() + (self.busy_delay() if isinstance(error, StoreBusy) else _FAILURE_DELAY)
        self.next_refresh_at = max(self.next_refresh_at, self._renew_at)
        self.wake_maintenance()

    def _retry(self, act: Callable[[], T]) -> T:
        deadline = time.monotonic() + _JOIN_RETRY_SECONDS
        while True:
            try:
                return act()
            except (StoreBusy, TransientStoreError) as error:
                if time.monotonic() > deadline:
                    detail = str(error) or "other processes keep it locked"
                    raise StoreUnavailable(path=self.where, detail=detail) from None
            self._before_retry()

    def _before_retry(self) -> None:
        time.sleep(busy_backoff())

    # -- leaving ----------------------------------------------------------------------------------------------

    def delegate(self, user: RemoteUser, out_for: float) -> None:
        """Mark leases as used on other machines from now on; see the protocol. The next step writes it."""
        self._remote_users.add(user)
        self._remote_use_for = max(out_for, self._remote_use_for or 0.0)

    def leave(self) -> None:
        """End the session and its leases at once, except leases that remote workers may still use.

        Ends abandoned leases too: this is for the end of the process. Callable from any thread at any time; idempotent.
        """
        if self._is_forked():
            return
        self._leave()
        if self._former:
            former, self._former = set(self._former.values()), {}
            for session in former:
                self._end(session, in_use=True)
            self._detach(closed=False)

    def _leave(self) -> None:
        if self._left:
            return
        self._left = True
        for user in list(self._remote_users):
            user.disconnect_workers()
        if self._session is not None:
            self._end(self._session, in_use=bool(self._view.held_tokens()))
        self._detach(closed=False)

    def _end(self, session: str, *, in_use: bool) -> None:
        """End a session of ours; if remote workers may still use its leases (*in_use*), let it expire instead."""
        if self._remote_use_for is not None and in_use:
            self._schedule_expiry(session)
        else:
            self._end_session(session)

    def close(self) -> None:
        """Leave and close the store. Only when no step is executing."""
        if self._is_forked():
            return
        if (self._pending or self._abandoned) and not self._left:
            self._flush_deferred()
        self._leave()
        self._detach(closed=True)

    def _flush_deferred(self) -> None:
        deadline = time.monotonic() + LEAVE_RETRY_SECONDS
        while (self._pending or self._abandoned) and time.monotonic() < deadline:
            try:
                self._plain_step()
            except (StoreBusy, TransientStoreError):
                self._before_retry()
            except (StoreError, PoolClosed):  # closed: another thread has left the store
                return

    # -- other processes --------------------------------------------------------------------------------------

    def _is_forked(self) -> bool:
        """Return whether this is a forked child, which cannot use the connections of its parent."""
        return os.getpid() != self._pid

    def _require_own_process(self) -> None:
        if self._is_forked():
            raise StoreUnavailable(
                path=self.where,
                detail=f"this pool was made in process {self._pid} and forked; make one in each process",
            )
        if self._left:
            raise PoolClosed
