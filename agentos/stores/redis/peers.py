"""Who else is there, as far as it matters: whose time has run out, and when to look next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ...pool.core.fair_queue import StoreSession
from ...pool.core.limits.base import FOREVER
from .clock_offset import ClockOffset

if TYPE_CHECKING:
    from .step import RedisStep

_SOON: Final = 0.005


class PeerSessions:
    """The sessions of others that have run out, and when the next will.

    Whoever has just come does not believe at once what the store's clock says of others: it may have been set, and
    those who would notice renew themselves only now and then. After *patience* seconds they would have. The same goes
    for one that was away for so long that its own session has run out.
    """

    def __init__(self, patience: Callable[[], float]) -> None:
        self.run_out: list[str] = []
        self.next_check_at = FOREVER
        self._patience = patience
        self._me = ""
        self._left: dict[str, float] = {}  # how long those have that run out next
        self._believes_from = FOREVER

    def on_join(self, me: str, now: float) -> None:
        """Our session begins."""
        self._believes_from = now + self._patience()
        self._me = me
        if self.run_out and self.is_newcomer(now):  # it is what we thought while we were away
            self.run_out = []
            self.next_check_at = self._believes_from

    def continue_as(self, me: str) -> None:
        """Our session is continued under another name."""
        self._me = me

    def is_newcomer(self, now: float) -> bool:
        """Whether we have not been there for long enough, or not at all."""
        return now < self._believes_from

    def update(self, expiry: Sequence[tuple[str, float]], store_now: float, now: float, border: ClockOffset) -> None:
        """The first sessions to run out, and when, in the store's time."""
        self.run_out = []
        self.next_check_at = FOREVER
        self._left.clear()
        for session, ends_at in expiry:
            if session == self._me:
                continue
            if ends_at > store_now:
                # A clock of ours that is a little fast must not make us ask again and again.
                self._left[session] = ends_at - store_now
                self.next_check_at = min(self.next_check_at, max(border.to_local(ends_at), now + _SOON))
            elif now >= self._believes_from:
                self.run_out.append(session)
                self.next_check_at = now
            else:
                self.next_check_at = min(self.next_check_at, self._believes_from)

    def find_expiring_too_late(
        self, others: Iterable[StoreSession], tolerance: float, now: float
    ) -> list[StoreSession]:
        """Those that run out later than they could, had the clock never been set back."""
        if self.is_newcomer(now):
            return []
        left = self._left
        return [other for other in others if other.id in left and left.pop(other.id) > other.ttl + 2 * tolerance]

    def expire_gone(self, step: RedisStep) -> None:
        """End the sessions that have run out, in *step*."""
        for name in self.run_out:
            session = next((other for other in step.others if other.id == name), None)
            if session is not None:
                step.expire(session)
            else:
                step.ended.append(name)  # nothing else is left of it

    def remove(self, sessions: Iterable[str]) -> None:
        """These are gone."""
        if self.run_out:
            gone = set(sessions)
            self.run_out = [session for session in self.run_out if session not in gone]


def any_renewed_after(instant: float, ends_at: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Whether one of the *others* was renewed later than at that instant: by when it ends, and its time to live."""
    return any(ends_at.get(session, 0.0) - ttl > instant for session, ttl in others.items())
