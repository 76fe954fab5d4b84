"""What this process does with a shared store, whichever it is: it joins, asks, tells, renews and leaves.

A store of its own kind says how one step is done: all of it or nothing. What cannot be done now is put off, and done at
the beginning of the next step.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from ..errors import PoolClosed, StoreError, StoreUnavailable
from ..pool.core.fair_queue import StoreSession
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
from .granting import grant
from .sqlite.file import busy_backoff
from .step_queueing import QueueingStep

T = TypeVar("T")

# A holder stops a little before the others may take its lease, so that its last call has begun by then.
_MARGIN = 0.1  # of the time to live
_LONGEST_MARGIN = 1.0

# How long to insist where the caller cannot come back later: when a credential joins, and when the process leaves.
_JOIN_RETRY_SECONDS = 5.0
LEAVE_RETRY_SECONDS = 1.0
_IN_TROUBLE_FOR = 0.25
_LONGEST_BUSY = 0.05


def safety_margin(ttl: float) -> float:
    """How long before its lease may be another's a holder stops."""
    return min(_LONGEST_MARGIN, _MARGIN * ttl)


class SessionStep(QueueingStep):
    """A step of a session: all that the protocol's ``Step`` has, and credentials can be made known in it."""

    @abstractmethod
    def enrol(self, card: CredentialIdentity) -> EnrolledCredential:
        """Make a credential and its quota known."""

    @abstractmethod
    def end(self, credential: int, token: int) -> bool:
        """End a lease of this session. False: it is not in force."""

    @abstractmethod
    def settle(self, credential: int, token: int) -> bool:
        """The cost of a lease is no guess any more. False: it is not in force."""

    @abstractmethod
    def _write_record(self, number: int, record: Record) -> None:
        """Keep what is known of a quota now."""

    def write_quota(self, number: int, record: Record, *, opened: bool = False, eased: bool = False) -> None:
        """Keep what is known of a quota now. *opened*: every process that waits is told; *eased*: the first is."""
        self._write_record(number, record)
        if opened or eased:
            self._notify_all() if opened else self._notify_first()

    @abstractmethod
    def write_life(self, number: int, life: str, evidence: str, since: float) -> None:
        """Keep whether a credential lives."""

    @abstractmethod
    def join(self, me: StoreSession) -> None:
        """Begin a session."""

    @abstractmethod
    def find_held(self, tokens: Collection[int]) -> list[tuple[int, int]]:
        """The leases of this session with one of *tokens*: credential and token."""

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
            self.read(credential)  # by now the lease is another session's: the view counts it as such


S = TypeVar("S", bound=SessionStep)


class SessionStore(ABC, Generic[S]):
    """One process's access to a shared store. Used under the pool's lock, but for ``leave``."""

    def __init__(self, where: str, clock: Clock, *, ttl: float, weight: float, view: StoreView) -> None:
        self.valid_until = FOREVER
        self.next_refresh_at = FOREVER
        self.where = where  # as people are told; never a password
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
        self._highest = 0  # token that we know to have been given out
        self._uncertain = False  # a lease may be in the store that the view does not know of
        self._busy = 0  # how often it was busy in a row
        self._remote_use_for: float | None = None  # how long our leases may be in use when this process is gone
        self._remote_users: weakref.WeakSet[RemoteUser] = weakref.WeakSet()
        self._abandoned: set[int] = set()  # tokens that are still to be left in a session that is not renewed
        self._former: dict[int, str] = {}  # those that are: the session of each

    # -- what each store does in its own way ------------------------------------------------------------------

    @abstractmethod
    def _salt(self) -> bytes:
        """What fingerprints are made with: it is in this store alone."""

    @abstractmethod
    def _step(self, act: Callable[[S], T], request: str | None = None) -> T:
        """Do *act* as one step, after what was put off. *request* is the one that is being granted.

        Afterwards it is uncertain whether the caller knows of what was done, until it says so.
        """

    @abstractmethod
    def _new_session(self, step: S) -> StoreSession:
        """A session for this process, which has yet to be joined."""

    @abstractmethod
    def _end_session(self, session: str) -> None:
        """End it on a connection of its own: another thread may be in the middle of a step, never to go on."""

    @abstractmethod
    def _schedule_expiry(self, session: str) -> None:
        """Let it end by itself, ``out_for`` seconds from now at the latest; on a connection of its own."""

    @abstractmethod
    def refresh(self, since: float = FOREVER) -> bool:
        """Tell the view what others did; what was heard at *since* or later is new enough. False: nothing."""

    @abstractmethod
    def wake_maintenance(self) -> None:
        """Wake whoever calls ``maintain``: it may be due earlier than was thought."""

    @abstractmethod
    def _detach(self, *, closed: bool) -> None:
        """The session is over; *closed*: and no step is under way, nor will be."""

    # -- commands that may outlive this process ---------------------------------------------------------------

    def lock_lease(self, token: int, mark: str) -> int | None:
        """A descriptor for a command with that *mark* to inherit; see the protocol. Raises OSError."""
        return None

    def unlock_lease(self, token: int) -> None:
        """The command has ended."""

    def on_lease_replaced(self, token: int, to: int) -> None:
        """The lease was lost, and taken again with another token: its command goes on."""

    # -- steps ------------------------------------------------------------------------------------------------

    def fingerprint(self, secret: str) -> str:
        """By what the store knows a secret: a digest with a salt that is in this store alone."""
        return hmac.new(self._salt(), secret.encode(), hashlib.sha256).hexdigest()[:32]

    def try_grant(self, bid: SlotRequest) -> SlotGranted | SlotRefused:
        """Lease one slot, if the rules allow it at this moment."""
        answer = self._step(lambda step: self._grant(step, bid), bid.request)
        if not isinstance(answer, SlotGranted):
            self._uncertain = False
        # Else until the caller has it in its books: an interrupt may keep it from that, and it would be nobody's.
        return answer

    def _grant(self, step: S, bid: SlotRequest) -> SlotGranted | SlotRefused:
        return grant(step, bid)

    def confirm_grant(self) -> None:
        """The lease that was just granted is in the caller's books."""
        self._uncertain = False

    def submit(self, act: StepAction) -> None:
        """Do *act*, now or, if the store is busy or in trouble, at the beginning of the next step."""
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
            self._defer(StoreBusy())  # interrupted: it is done soon all the same
            raise

    def enrol(self, card: CredentialIdentity) -> EnrolledCredential:
        """Make a credential known, and return what is known of it."""
        enrolled = self._retry(lambda: self._step(lambda step: step.enrol(card)))
        self._uncertain = False
        return enrolled

    def maintain(self) -> bool:
        """Renew the session if that is due, do what was put off, end what has run out. False: nothing was due."""
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
        """Before a renewal: see whether the store is still where it was."""

    def _plain_step(self) -> None:
        """Nothing but what is due anyway: what was put off, renewals, ends."""
        self._step(lambda _step: None)
        self._uncertain = False

    def _run_deferred(self, step: S, passes: tuple[type[Exception], ...] = ()) -> None:
        """The acts, in order. Errors in *passes* are the store's own, and no act's fault."""
        for number, act in enumerate(self._pending):
            try:
                act(step)
            except passes:
                raise
            except Exception:
                del self._pending[number]  # it would fail again and again, and nothing else would be done any more
                raise

    def abandon(self, tokens: Collection[int]) -> None:
        """Renew these leases no more; see the protocol. If the store is busy, the next step does it first of all."""
        if self._left or self._is_forked():
            return
        self._abandoned.update(tokens)
        try:
            self._plain_step()
        except (StoreBusy, TransientStoreError) as error:
            self._defer(error)
        except StoreError:
            pass  # the store is damaged: the next use of the pool says so

    def _split_off_abandoned(self, step: S) -> None:
        """Called when a step begins in our session: go on in a new one, if there are leases to abandon."""
        if not self._abandoned or self.is_expired():  # a session that may have run out is not continued
            return
        held = step.find_held(self._abandoned)
        self._abandoned.intersection_update(token for _, token in held)  # the others have ended
        if held:
            step.continue_as(self._new_session(step), held)

    def _on_step_done(self, step: S, acts: int) -> None:
        """The step is done, and with it so many of the acts that were put off."""
        del self._pending[:acts]
        self._former = step.former
        self._abandoned.difference_update(step.former)
        self._view.step_done()
        for note in step.notes:
            self._view.note(note)

    def next_renewal_at(self) -> float:
        """When ``maintain`` is due, even if nobody waits."""
        return FOREVER if self._left else self._renew_at

    def is_expired(self) -> bool:
        """Whether our leases must count as lost already."""
        return self._clock.now() >= self.valid_until

    def busy_delay(self) -> float:
        """How long to leave a store alone that was busy: longer each time."""
        return min(busy_backoff() * (1 << min(self._busy, 10)), _LONGEST_BUSY)

    def _defer(self, error: StoreBusy | TransientStoreError) -> None:
        """Let the thread that keeps up do it, soon."""
        self._renew_at = self._clock.now() + (self.busy_delay() if isinstance(error, StoreBusy) else _IN_TROUBLE_FOR)
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

    def delegate(self, lender: RemoteUser, out_for: float) -> None:
        """Leases go to other machines from now on; see the protocol. The next step, such as a grant, writes it down."""
        self._remote_users.add(lender)
        self._remote_use_for = max(out_for, self._remote_use_for or 0.0)

    def leave(self) -> None:
        """End the session and all its leases at once, but for those that others may be using on other machines.

        Abandoned leases end, too: this is for the end of the process. From any thread, at any time; again does nothing.
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
        for lender in list(self._remote_users):
            lender.disconnect_workers()
        if self._session is not None:
            self._end(self._session, in_use=bool(self._view.held_tokens()))
        self._detach(closed=False)

    def _end(self, session: str, *, in_use: bool) -> None:
        """End a session of ours; if its leases may be *in_use* on other machines, only when their time is over."""
        if self._remote_use_for is not None and in_use:
            self._schedule_expiry(session)
        else:
            self._end_session(session)

    def close(self) -> None:
        """Leave, and let go of the store. Only when no step is under way."""
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
            except (StoreError, PoolClosed):  # closed: another thread has left the store meanwhile, for good
                return

    # -- other processes --------------------------------------------------------------------------------------

    def _is_forked(self) -> bool:
        """Whether this is a fork of the process that opened the store: connections must not be carried over."""
        return os.getpid() != self._pid

    def _require_own_process(self) -> None:
        if self._is_forked():
            raise StoreUnavailable(
                path=self.where,
                detail=f"this pool was made in process {self._pid} and forked; make one in each process",
            )
        if self._left:
            raise PoolClosed
