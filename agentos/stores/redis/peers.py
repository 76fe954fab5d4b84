"""PeerSessions: the sessions of other processes that have expired, and when the next one expires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ...pool.core.limits.base import FOREVER
from ..process_fairness import StoreSession
from .clock_offset import ClockOffset

if TYPE_CHECKING:
    from .step import RedisStep

_SOON: Final = 0.005


class PeerSessions:
    """The expired sessions of other processes, and when to check next.

    A process that has just joined does not trust the store's clock about others at once: the clock may have been set,
    and the processes that would notice renew themselves only at intervals. After *patience* seconds they have noticed.
    The same holds for a process that was suspended until its own session expired.
    """

    def __init__(self, patience: Callable[[], float]) -> None:
        self.expired: list[str] = []
        self.next_check_at = FOREVER
        self._patience = patience
        self._me = ""
        self._left: dict[str, float] = {}  # session -> seconds until it expires, for the next ones
        self._trusts_clock_from = FOREVER

    def on_join(self, me: str, now: float) -> None:
        """Start the time of distrust for our new session."""
        self._trusts_clock_from = now + self._patience()
        self._me = me
        if self.expired and self.is_newcomer(now):  # found before we joined again
            self.expired = []
            self.next_check_at = self._trusts_clock_from

    def continue_as(self, me: str) -> None:
        """Note that our session continues under another id."""
        self._me = me

    def is_newcomer(self, now: float) -> bool:
        """Return whether our session is too young to trust the store's clock about others."""
        return now < self._trusts_clock_from

    def update(
        self, expiry: Sequence[tuple[str, float]], store_now: float, now: float, clock_offset: ClockOffset
    ) -> None:
        """Take the next sessions to expire, and when, in the store's time."""
        self.expired = []
        self.next_check_at = FOREVER
        self._left.clear()
        for session, ends_at in expiry:
            if session == self._me:
                continue
            if ends_at > store_now:
                # A fast local clock must not cause repeated requests.
                self._left[session] = ends_at - store_now
                self.next_check_at = min(self.next_check_at, max(clock_offset.to_local(ends_at), now + _SOON))
            elif now >= self._trusts_clock_from:
                self.expired.append(session)
                self.next_check_at = now
            else:
                self.next_check_at = min(self.next_check_at, self._trusts_clock_from)

    def find_expiring_too_late(
        self, others: Iterable[StoreSession], tolerance: float, now: float
    ) -> list[StoreSession]:
        """Return the sessions that expire later than possible, because the server's clock was set back."""
        if self.is_newcomer(now):
            return []
        left = self._left
        return [other for other in others if other.id in left and left.pop(other.id) > other.ttl + 2 * tolerance]

    def expire_gone(self, step: RedisStep) -> None:
        """End the expired sessions in *step*."""
        for name in self.expired:
            session = next((other for other in step.others if other.id == name), None)
            if session is not None:
                step.expire(session)
            else:
                step.ended.append(name)  # it has no record any more

    def remove(self, sessions: Iterable[str]) -> None:
        """Forget sessions that have been ended."""
        if self.expired:
            gone = set(sessions)
            self.expired = [session for session in self.expired if session not in gone]


def any_renewed_after(instant: float, ends_at: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Return whether one of *others* (session -> TTL) was renewed after *instant*, judging by when it expires."""
    return any(ends_at.get(session, 0.0) - ttl > instant for session, ttl in others.items())
