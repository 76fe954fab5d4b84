"""A call that tries if a reported limit is true while nothing seems to be left of it: nothing else would show that."""

from __future__ import annotations

from ..limits.base import FOREVER, ROUNDING

# Seconds without anything left until one call tries; then this many times as long.
_FIRST_AFTER, _LATER = 1.0, 4.0
_WORTH_IT = 8.0  # seconds that nothing is left, at least
_EARLY = 0.5  # of the time since nothing is left: a call that starts so much too early proves something


class LimitProbe:
    """Since when nothing is left, when one call tries, and which one that was."""

    __slots__ = ("blocked_at", "place", "step", "waited")

    def __init__(self) -> None:
        self.blocked_at = FOREVER  # since when nothing is left
        self.step = _FIRST_AFTER
        self.place = -1.0  # of the call that tries
        self.waited = 0.0  # seconds that nothing was left when it started

    @property
    def at(self) -> float:
        """When the next call may try."""
        return self.blocked_at + self.step

    def is_worth_it(self, ready_at: float) -> bool:
        """Return True if it takes long until something is left."""
        return ready_at - self.blocked_at >= _WORTH_IT

    def note_blocked(self, at: float) -> None:
        """Note that nothing is left."""
        self.blocked_at = min(self.blocked_at, at)

    def on_start(self, early: float, place: float, precision: float, now: float, *, tries: bool) -> None:
        """Note a call that starts so much too early, by the limit. *tries*: a call may try it now."""
        if early <= ROUNDING:
            self.blocked_at, self.step = FOREVER, _FIRST_AFTER
        elif tries:
            self.step = _LATER * max(self.step, now - self.blocked_at)
            if early > max(precision, _EARLY * (now - self.blocked_at)):
                self.place, self.waited = place, now - self.blocked_at

    def on_undo(self) -> None:
        """Note that the call that was to try did not start: another one does."""
        self.place, self.step = -1.0, self.step / _LATER
