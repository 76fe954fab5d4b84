"""Decide when a run says that the network does not answer. Pure: instants come in, decisions go out."""

from __future__ import annotations

from typing import Final

FOREVER: Final = float("inf")

_IN_A_ROW: Final = 3
_SAID_AFTER: Final = 10.0  # seconds after the first unanswered attempt, even if no other has ended by then


class NetworkWatch:
    """The attempts without an answer since the last one that had one.

    ``since`` is when the first of them ended (epoch seconds), ``why`` the error of the last. It is said once for each
    such streak: after three attempts, or ten seconds after the first.
    """

    __slots__ = ("_count", "_first_at", "said", "since", "why")

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.since: float | None = None
        self.why = ""
        self.said = False
        self._count = 0
        self._first_at = FOREVER

    @property
    def due_at(self) -> float:
        """The instant from which on it is to be said; FOREVER if there is nothing to say, or it has been said."""
        if self.since is None or self.said:
            return FOREVER
        return self._first_at if self._count >= _IN_A_ROW else self._first_at + _SAID_AFTER

    def on_unanswered(self, why: str, now: float, wall: float) -> None:
        """Note an attempt that ended without an answer, by the run's clock and the wall clock."""
        if self.since is None:
            self.since, self._first_at = wall, now
        self.why = why
        self._count += 1

    def on_answer(self) -> bool:
        """Note an answer. Return whether it had been said that there was none."""
        said = self.said
        self._reset()
        return said
