"""What a step of any store has to do with the line: who is called when something comes free, and what waiting means.

The rules of whose turn it is are in ``_core.turns``. Here they are applied to the sessions that a step has at hand; how
sessions and leases are kept is each store's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from ..pool.core.fair_queue import PASSED, Session, to_call, wanted_text
from ..pool.core.limits.base import FOREVER
from ..pool.protocols import StoreView
from ..pool.store_protocol import Bid, Granted, Reserved


class LineStep(ABC):
    """One step, as far as the line is concerned."""

    me: Session
    others: list[Session]

    def __init__(self, now: float, sessions: list[Session], served: float, view: StoreView) -> None:
        self.now = now
        self.sessions = sessions  # those of others, and of this process
        self.served = served  # where those who wait are
        self.me_changed = False
        self.notes: list[str] = []  # what people should be told when it is done
        self.rests_on_who_waits = False
        self.rests_on_the_front = False  # on that nobody gets in line before somebody who waits
        self.rests_on_sessions: list[Session] = []
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
    def lease(self, bid: Bid, reserved: Reserved) -> Granted:
        """Begin a lease. Its token is larger than that of every lease before it."""

    @abstractmethod
    def _end_session(self, session: Session) -> set[int]:
        """Remove a session and its leases. Returns the credentials that have a free slot by that."""

    @abstractmethod
    def _was_called(self, session: Session) -> None:
        """Keep ``called_at`` of somebody else's session, and wake its process when the step is done."""

    # -- what a step rests on, where another may come between what it reads and what it writes ------------------

    def rest_on_who_waits(self) -> None:
        """What is decided holds as long as nobody begins to wait, or to wait for something else."""
        self.rests_on_who_waits = True

    def rest_on_who_is_before(self, session: Session) -> None:
        """What is decided holds as long as nobody gets in line before that one."""
        if session.waiting_since is None:
            self.rests_on_who_waits = True  # every one of them is before it
        else:
            self.rests_on_the_front = True

    def rest_on(self, sessions: Iterable[Session]) -> None:
        """What is decided holds as long as these are as they are."""
        self.rests_on_sessions.extend(sessions)

    # -- sessions ---------------------------------------------------------------------------------------------

    def i_am(self, me: Session) -> None:
        """Say which of the sessions is this process's."""
        self.me = me
        self.others = [session for session in self.sessions if session is not me]

    def holder_of(self, token: int) -> str:
        """The session that a lease of this process belongs to."""
        return self.former.get(token, self.me.id)

    def expire(self, session: Session) -> None:
        """End a session that was not renewed, and its leases."""
        self.sessions.remove(session)
        self.others.remove(session)
        freed = self._end_session(session)
        if freed and (session.pid, session.host) != (self.me.pid, self.me.host):
            self.notes.append(
                f"{process_of(session)} has not been heard of for too long; what it had leased is free again"
            )
        for credential in freed:
            self._call_next(credential)

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
        me.wanted = None if wanted is None else wanted_text(wanted)
        me.idle_until, me.claim = idle_until, claim
        me.called_at = PASSED if passed else None
        self.me_changed = True
        if passed:
            self._call_one()

    def wait_no_more(self) -> None:
        """Nobody in this process waits. If it was called, others may want what it was called for."""
        me = self.me
        if me.waiting_since is not None:
            called = me.called_at is not None
            me.waiting_since = me.called_at = me.claim = me.idle_until = None
            self.me_changed = True
            if called:
                self._call_one()

    # -- calling ----------------------------------------------------------------------------------------------

    def call(self, session: Session) -> float:
        """Tell a process that it is its turn, unless it was told. Returns when it was."""
        if session.may_be_called():
            session.called_at = self.now
            self._was_called(session)
        return session.called_at or self.now

    def _call_next(self, credential: int) -> None:
        """That credential has a free slot."""
        first = to_call(self.sessions, credential, self.now)
        if first is None:
            self.rest_on_who_waits()
            return
        self.rest_on_who_is_before(first)
        if first.id != self.me.id:  # we are awake
            self.call(first)

    def _call_one(self) -> None:
        """Somebody else may want what we were called for."""
        waiting = [
            session
            for session in self.others
            if session.waiting_since is not None
            and session.called_at is None
            and (session.idle_until is None or session.idle_until <= self.now)
        ]
        self._call_first_of(waiting)

    def _call_first(self) -> None:
        """There is more of something than was thought: whoever is first may have been waiting for just that."""
        self._call_first_of(
            [session for session in self.others if session.waiting_since is not None and session.may_be_called()]
        )

    def _call_first_of(self, waiting: Sequence[Session]) -> None:
        if waiting:
            first = min(waiting, key=Session.order)
            self.rest_on_who_is_before(first)
            self.call(first)
        else:
            self.rest_on_who_waits()

    def _call_all(self) -> None:
        self.rest_on_who_waits()
        for session in self.others:
            if session.waiting_since is not None:
                self.call(session)


def process_of(session: Session) -> str:
    """A session's process, as people are told."""
    return f"process {session.pid} on {session.host}" if session.host else f"process {session.pid}"
