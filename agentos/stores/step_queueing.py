"""Queueing rules shared by all stores: which waiting process is notified when a slot frees.

The order is defined in ``process_fairness``. Here it is applied to the sessions that a step has read; each store
keeps sessions and leases in its own way.

A store without transactions (Redis) checks at the commit that what a step decided on is unchanged. The ``depend_on_``
methods record what that is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from ..pool.core.limits.base import FOREVER
from ..pool.protocols import StoreView
from ..pool.store_protocol import QuotaReservation, SlotGranted, SlotRequest
from .process_fairness import DECLINED, StoreSession, encode_wanted, next_to_notify


class QueueingStep(ABC):
    """The queueing part of a step."""

    me: StoreSession
    others: list[StoreSession]

    def __init__(self, now: float, sessions: list[StoreSession], served: float, view: StoreView) -> None:
        self.now = now
        self.sessions = sessions  # including this process's
        self.served = served  # virtual time of the fair queue
        self.me_changed = False
        self.notes: list[str] = []  # messages for people, published when the step is done
        self.depends_on_waiting = False
        self.depends_on_front = False  # on no process entering the queue before a waiting one
        self.session_dependencies: list[StoreSession] = []
        self.former: dict[int, str] = {}  # abandoned leases of this process: token -> session
        self._view = view

    # -- what each store implements ---------------------------------------------------------------------------

    @abstractmethod
    def read(self, credential: int | None = None, quota: int | None = None) -> None:
        """Update the view with the state of these, before the rules are applied to it."""

    @abstractmethod
    def read_all(self) -> None:
        """Update the view with everything."""

    @abstractmethod
    def leases_on(self, credential: int) -> Iterable[tuple[str, str, int, float]]:
        """Return the leases on a credential, of all sessions: session, request, token, start."""

    @abstractmethod
    def lease(self, bid: SlotRequest, reserved: QuotaReservation) -> SlotGranted:
        """Create a lease. Its token is larger than that of every earlier lease."""

    @abstractmethod
    def _end_session(self, session: StoreSession) -> set[int]:
        """Remove a session and its leases. Return the credentials on which a slot became free."""

    @abstractmethod
    def _record_notified(self, session: StoreSession) -> None:
        """Write ``notified_at`` of another session, and wake its process when the step is done."""

    # -- what a step's decision depends on --------------------------------------------------------------------

    def depend_on_waiting(self) -> None:
        """The decision holds while no process begins to wait or changes what it waits for."""
        self.depends_on_waiting = True

    def depend_on_queue_front(self, session: StoreSession) -> None:
        """The decision holds while no process enters the queue before *session*."""
        if session.waiting_since is None:
            self.depends_on_waiting = True  # every waiting session is before it
        else:
            self.depends_on_front = True

    def depend_on_sessions(self, sessions: Iterable[StoreSession]) -> None:
        """The decision holds while these sessions do not change."""
        self.session_dependencies.extend(sessions)

    # -- sessions ---------------------------------------------------------------------------------------------

    def set_own_session(self, me: StoreSession) -> None:
        """Set which of the sessions is this process's."""
        self.me = me
        self.others = [session for session in self.sessions if session is not me]

    def find_owning_session(self, token: int) -> str:
        """Return the session that a lease of this process belongs to."""
        return self.former.get(token, self.me.id)

    def expire(self, session: StoreSession) -> None:
        """End a session that was not renewed, and its leases."""
        self.sessions.remove(session)
        self.others.remove(session)
        freed = self._end_session(session)
        if freed and (session.pid, session.host) != (self.me.pid, self.me.host):
            self.notes.append(
                f"{describe_process(session)} did not renew its session in time; its leases are free again"
            )
        for credential in freed:
            self._notify_next(credential)

    def next_expiry(self) -> float:
        """Return when the first of the other sessions expires, if it is not renewed."""
        return min((other.expires_at for other in self.others), default=FOREVER)

    # -- waiting ----------------------------------------------------------------------------------------------

    def wait(self, wanted: Sequence[int] | None, idle_until: float | None, claim: str | None, *, passed: bool) -> None:
        """Queue this process for one of these credentials (None: any); it is notified at its turn."""
        me = self.me
        if me.waiting_since is None:
            me.waiting_since = self.now
            me.served = max(me.served, self.served)
        me.wanted = None if wanted is None else encode_wanted(wanted)
        me.idle_until, me.claim = idle_until, claim
        me.notified_at = DECLINED if passed else None
        self.me_changed = True
        if passed:
            self._notify_one()

    def stop_waiting(self) -> None:
        """Take this process out of the queue. If it was notified, notify the next."""
        me = self.me
        if me.waiting_since is not None:
            called = me.notified_at is not None
            me.waiting_since = me.notified_at = me.claim = me.idle_until = None
            self.me_changed = True
            if called:
                self._notify_one()

    # -- notifying --------------------------------------------------------------------------------------------

    def notify(self, session: StoreSession) -> float:
        """Notify a process that it is its turn, unless it was notified before. Return when it was."""
        if session.can_be_notified():
            session.notified_at = self.now
            self._record_notified(session)
        return session.notified_at or self.now

    def _notify_next(self, credential: int) -> None:
        """Notify the next process that wants that credential, which has a free slot."""
        first = next_to_notify(self.sessions, credential, self.now)
        if first is None:
            self.depend_on_waiting()
            return
        self.depend_on_queue_front(first)
        if first.id != self.me.id:  # this process is awake
            self.notify(first)

    def _notify_one(self) -> None:
        """Pass the notification that this process declined to another one."""
        waiting = [
            session
            for session in self.others
            if session.waiting_since is not None
            and session.notified_at is None
            and (session.idle_until is None or session.idle_until <= self.now)
        ]
        self._notify_first_of(waiting)

    def _notify_first(self) -> None:
        """Notify the first waiting process: more is available than was assumed."""
        self._notify_first_of(
            [session for session in self.others if session.waiting_since is not None and session.can_be_notified()]
        )

    def _notify_first_of(self, waiting: Sequence[StoreSession]) -> None:
        if waiting:
            first = min(waiting, key=StoreSession.order)
            self.depend_on_queue_front(first)
            self.notify(first)
        else:
            self.depend_on_waiting()

    def _notify_all(self) -> None:
        self.depend_on_waiting()
        for session in self.others:
            if session.waiting_since is not None:
                self.notify(session)


def describe_process(session: StoreSession) -> str:
    """Return the process of a session as text for people."""
    return f"process {session.pid} on {session.host}" if session.host else f"process {session.pid}"
