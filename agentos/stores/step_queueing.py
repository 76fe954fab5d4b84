"""What a step of any store has to do with the line: who is called when something comes free, and what waiting means.

The rules of whose turn it is are in ``_core.turns``. Here they are applied to the sessions that a step has at hand; how
sessions and leases are kept is each store's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from ..pool.core.fair_queue import DECLINED, StoreSession, encode_wanted, next_to_notify
from ..pool.core.limits.base import FOREVER
from ..pool.protocols import StoreView
from ..pool.store_protocol import QuotaReservation, SlotGranted, SlotRequest


class QueueingStep(ABC):
    """One step, as far as the line is concerned."""

    me: StoreSession
    others: list[StoreSession]

    def __init__(self, now: float, sessions: list[StoreSession], served: float, view: StoreView) -> None:
        self.now = now
        self.sessions = sessions  # those of others, and of this process
        self.served = served  # where those who wait are
        self.me_changed = False
        self.notes: list[str] = []  # what people should be told when it is done
        self.depends_on_waiting = False
        self.depends_on_front = False  # on that nobody gets in line before somebody who waits
        self.session_dependencies: list[StoreSession] = []
        self.former: dict[int, str] = {}  # abandoned leases of this process: token -> the session that is not renewed
        self._view = view

    # -- what each store does in its own way ------------------------------------------------------------------

    @abstractmethod
    def read(self, credential: int | None = None, quota: int | None = None) -> None:
        """Let the view see what is true of these, before the rules are applied to it."""

    @abstractmethod
    def read_all(self) -> None:
        """Let the view see everything."""

    @abstractmethod
    def leases_on(self, credential: int) -> Iterable[tuple[str, int, float]]:
        """The leases of a credential that are in force, whoever has them: request, token, and since when."""

    @abstractmethod
    def lease(self, bid: SlotRequest, reserved: QuotaReservation) -> SlotGranted:
        """Begin a lease. Its token is larger than that of every lease before it."""

    @abstractmethod
    def _end_session(self, session: StoreSession) -> set[int]:
        """Remove a session and its leases. Returns the credentials that have a free slot by that."""

    @abstractmethod
    def _record_notified(self, session: StoreSession) -> None:
        """Keep ``called_at`` of somebody else's session, and wake its process when the step is done."""

    # -- what a step rests on, where another may come between what it reads and what it writes ------------------

    def depend_on_waiting(self) -> None:
        """What is decided holds as long as nobody begins to wait, or to wait for something else."""
        self.depends_on_waiting = True

    def depend_on_queue_front(self, session: StoreSession) -> None:
        """What is decided holds as long as nobody gets in line before that one."""
        if session.waiting_since is None:
            self.depends_on_waiting = True  # every one of them is before it
        else:
            self.depends_on_front = True

    def depend_on_sessions(self, sessions: Iterable[StoreSession]) -> None:
        """What is decided holds as long as these are as they are."""
        self.session_dependencies.extend(sessions)

    # -- sessions ---------------------------------------------------------------------------------------------

    def set_own_session(self, me: StoreSession) -> None:
        """Say which of the sessions is this process's."""
        self.me = me
        self.others = [session for session in self.sessions if session is not me]

    def find_owning_session(self, token: int) -> str:
        """The session that a lease of this process belongs to."""
        return self.former.get(token, self.me.id)

    def expire(self, session: StoreSession) -> None:
        """End a session that was not renewed, and its leases."""
        self.sessions.remove(session)
        self.others.remove(session)
        freed = self._end_session(session)
        if freed and (session.pid, session.host) != (self.me.pid, self.me.host):
            self.notes.append(
                f"{describe_process(session)} has not been heard of for too long; what it had leased is free again"
            )
        for credential in freed:
            self._notify_next(credential)

    def next_expiry(self) -> float:
        """When the first of the others runs out, if it is not renewed."""
        return min((other.expires_at for other in self.others), default=FOREVER)

    # -- waiting ----------------------------------------------------------------------------------------------

    def wait(self, wanted: Sequence[int] | None, idle_until: float | None, claim: str | None, *, passed: bool) -> None:
        """Say that this process waits for one of these credentials (None: for any): it is called at its turn."""
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
        """Nobody in this process waits. If it was called, others may want what it was called for."""
        me = self.me
        if me.waiting_since is not None:
            called = me.notified_at is not None
            me.waiting_since = me.notified_at = me.claim = me.idle_until = None
            self.me_changed = True
            if called:
                self._notify_one()

    # -- calling ----------------------------------------------------------------------------------------------

    def notify(self, session: StoreSession) -> float:
        """Tell a process that it is its turn, unless it was told. Returns when it was."""
        if session.can_be_notified():
            session.notified_at = self.now
            self._record_notified(session)
        return session.notified_at or self.now

    def _notify_next(self, credential: int) -> None:
        """That credential has a free slot."""
        first = next_to_notify(self.sessions, credential, self.now)
        if first is None:
            self.depend_on_waiting()
            return
        self.depend_on_queue_front(first)
        if first.id != self.me.id:  # we are awake
            self.notify(first)

    def _notify_one(self) -> None:
        """Somebody else may want what we were called for."""
        waiting = [
            session
            for session in self.others
            if session.waiting_since is not None
            and session.notified_at is None
            and (session.idle_until is None or session.idle_until <= self.now)
        ]
        self._notify_first_of(waiting)

    def _notify_first(self) -> None:
        """There is more of something than was thought: whoever is first may have been waiting for just that."""
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
    """A session's process, as people are told."""
    return f"process {session.pid} on {session.host}" if session.host else f"process {session.pid}"
