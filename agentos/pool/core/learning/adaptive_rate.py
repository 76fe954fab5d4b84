"""Adaptive rate: infer how many requests per second a quota allows from what was admitted between two refusals.

Providers refill continuously, so that at a refusal nothing is left. All that was admitted since the refusal before has
flowed in meanwhile: that amount in that time is the rate. So:

- *searching*, after the first refusal: start slowly and double every second until the next one. What is not used
  meanwhile is not lost, since it stays in the provider's bucket.

- *holding*, from then on: keep to the measured rate, slightly behind what must have flowed in, and speed up the
  longer nothing is refused: first hardly, then more and more. This finds a limit that has grown, and the next refusal
  measures again.

Refusals of calls that were in flight when the first refusal arrived count as one: one reduction per burst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from ..limits.base import FOREVER, ROUNDING, LimitState

_SLOWEST = 0.25  # requests per second at which the search starts
_BEGIN_AT = 16.0  # or the recent start rate divided by this, if that is more
_DOUBLES_EVERY = 1.0  # seconds, while searching; longer if refusals arrive late
_LAGS = 2.0  # number of lags that pass before the rate rises noticeably
# After a refusal, stay behind the inflow by this many seconds of it, but by this many requests at most.
_BEHIND, _MOST_BEHIND = 0.1, 2.0
_ENOUGH = 4.0  # admitted between refusals: from here on the measured rate counts
_LEANING = 0.02  # speed-up after *plateau* requests without a refusal; it grows with the square
_SHORTEST_PLATEAU, _PLATEAU, _LONGEST_PLATEAU = 8.0, 50.0, 400.0
_MOST_LEANING = 1.5
_UNUSED_FOR = 5.0  # seconds without a request that end the search
_AS_BEFORE = 0.04  # a new measurement that differs by less confirms the rate
_AT_ONCE = 3.0  # requests, at least
_BURST = 60.0  # seconds: what is unused for longer is lost, as with most providers
_LN2 = math.log(2.0)


class AdaptiveRate(LimitState):
    """The learned number of requests per second."""

    __slots__ = (
        "anchor_at",
        "anchor_taken",
        "at",
        "found",
        "found_in",
        "lag",
        "level",
        "mark",
        "overflowed",
        "plateau",
        "pressed",
        "rate",
        "refused",
        "resting_until",
        "row",
        "searching_since",
        "taken",
        "took_at",
    )

    learned = True

    def __init__(self, scope: str | None, now: float, starts_a_second: float = 0.0, lag: float = 0.0) -> None:
        super().__init__(Limit("requests", 1.0, model=scope))
        self.largest = FOREVER
        self.rate = max(_SLOWEST, starts_a_second / _BEGIN_AT)
        self.searching_since: float | None = now
        self.found = self.found_in = 0.0  # admitted while searching, and the time that took
        self.lag = lag  # seconds until a refusal arrives
        self.level = 0.0  # requests that can start at the instant *at*
        self.at = now
        self.taken = 0.0  # all requests that were started
        self.took_at = now  # the last start
        self.resting_until = now  # the end of the cooldown
        self.overflowed = False  # since the anchor some inflow may have been lost for lack of requests
        self.anchor_at = now  # start of the last refused call: nothing was left then
        self.anchor_taken = 0.0
        self.refused = 0.0  # requests refused since the anchor
        self.mark = 0.0  # requests started when that refusal arrived
        self.pressed = 0.0  # requests started since that had to wait for the rate
        self.plateau = _PLATEAU
        self.row = 0  # consecutive refusals with nothing admitted between
        self._update_limit()

    # -- the rate ---------------------------------------------------------------------------------------------

    def _leaned(self) -> float:
        plateau = max(self.plateau, _LAGS * self.lag * self.rate)
        return float(self.rate * min(_MOST_LEANING, 1.0 + _LEANING * (self.pressed / plateau) ** 2))

    def _doubles_every(self) -> float:
        return max(_DOUBLES_EVERY, _LAGS * self.lag)

    def _flowed(self, until: float) -> float:
        """Return what flows in from *at* until then."""
        if until <= self.at:
            return 0.0
        if self.searching_since is None:
            return (until - self.at) * self._leaned()
        start = self._doubled(self.at)
        return self.rate * self._doubles_every() / _LN2 * (self._doubled(until) - start)

    def _doubled(self, at: float) -> float:
        assert self.searching_since is not None  # noqa: S101 - for the type checker
        return float(2.0 ** min(40.0, max(-40.0, (at - self.searching_since) / self._doubles_every())))

    def _most(self) -> float:
        # While searching the inflow is unknown: do not release at once what a pause seems to have saved.
        return _AT_ONCE if self.searching_since is not None else max(_AT_ONCE, self.rate * _BURST)

    def _advance(self, now: float) -> None:
        if now > self.at:
            self.level = min(self._most(), self.level + self._flowed(now))
            self.at = now

    # -- LimitState -------------------------------------------------------------------------------------------

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        short = min(need + extra, self._most()) - self.level
        if short <= 0:
            return now
        if self.searching_since is None:
            at = self.at + short / self._leaned()
        else:
            goal = self._doubled(self.at) + short * _LN2 / (self.rate * self._doubles_every())
            at = self.searching_since + self._doubles_every() * math.log2(goal)
        return at if at > now + ROUNDING else now

    def take(self, need: float, now: float) -> tuple[float, float]:
        self._advance(now)
        if self.level < need + 1.0:
            self._on_full_use(need)
        elif self.level >= self._most() and self._is_unused(now):
            self.overflowed = True
        self.took_at = now
        self.level -= need
        self.taken += need
        return need, self.taken

    def _is_unused(self, now: float) -> bool:
        """Return True if so little was requested that the provider's bucket may have overflowed."""
        return not self.searching or now > max(self.took_at, self.resting_until) + _UNUSED_FOR

    def _on_full_use(self, need: float) -> None:
        """Raise the rate a little, since the limit is fully used; a large rise becomes the new rate."""
        self.pressed += need
        if not self.searching and self._leaned() >= self.rate * _MOST_LEANING:
            self.rate, self.pressed = self._leaned(), 0.0
            self._update_limit()

    def undo(self, stamp: tuple[float, float], need: float) -> None:
        self.level += need
        self.taken -= need
        self.pressed = max(0.0, self.pressed - need)

    def correct(self, stamp: tuple[float, float], by: float, now: float) -> tuple[float, float]:
        self.level -= by
        self.taken += by
        return stamp

    def left(self, now: float) -> float:
        return min(self._most(), self.level + self._flowed(now))

    # -- answers ----------------------------------------------------------------------------------------------

    def on_refusal(self, stamp: tuple[float, float], started_at: float, now: float) -> bool:
        """Learn from the refusal of a call that started then. Return False if its burst is already known."""
        amount, place = stamp
        self._advance(now)
        self.level += amount
        self.lag = max(self.lag / 2, now - started_at)
        if place <= self.mark:
            if place > self.anchor_taken:
                self.refused += amount
            return False
        admitted = place - amount - self.anchor_taken - self.refused
        elapsed = started_at - self.anchor_at
        self.mark = self.taken
        behind = min(_MOST_BEHIND, _BEHIND * max(1.0, self.rate))
        self.level, self.at = -behind - (self.taken - place), started_at
        if admitted < 0.5 or elapsed <= 0:
            # Nothing has flowed in since, or a window has yet to begin: that does not measure a rate.
            self.row += 1
            self.refused += amount
        else:
            self.row = 0
            self._measure(admitted, elapsed)
            self._anchor(started_at, place)
        self.pressed = 0.0
        if self.searching_since is not None:
            self.searching_since = now
        self._advance(now)
        self._update_limit()
        return True

    def hold_until(self, until: float) -> None:
        """Let nothing start before then."""
        self.resting_until = max(self.resting_until, until)

    def _anchor(self, at: float, taken: float) -> None:
        self.anchor_at, self.anchor_taken = at, taken
        self.refused = self.pressed = 0.0
        self.overflowed = False

    def _measure(self, admitted: float, elapsed: float) -> None:
        measured = admitted / elapsed
        if self.overflowed:
            self.rate = max(self.rate, measured)  # at least that; how much more is unknown
            return
        if self.searching_since is not None:
            # Few were admitted between any two refusals, but all of them together are enough.
            self.found += admitted
            self.found_in += elapsed
            self.rate = self.found / self.found_in
            if self.found >= _ENOUGH:
                self.searching_since = None
                self.plateau = max(_SHORTEST_PLATEAU, min(_PLATEAU, 2 * self.found))
            else:
                self.rate /= 2
            return
        confirmed = abs(measured - self.rate) <= _AS_BEFORE * self.rate
        weight = admitted / (admitted + 2.0)
        self.rate += weight * (measured - self.rate)
        # The more were admitted, the better the rate is known and the longer it stays.
        sure = max(_SHORTEST_PLATEAU, min(_PLATEAU, admitted))
        self.plateau = min(_LONGEST_PLATEAU, self.plateau * 3) if confirmed else sure

    def slow_down(self, stamp: tuple[float, float] | None, speed: float, now: float, *, known: bool) -> bool:
        """Halve the rate because traffic grew too fast. Return False if that was done for this burst.

        *speed* is the recent number of starts per second; *known*: this rate was already in use.
        """
        if known and (stamp is None or stamp[1] <= self.mark):
            return False
        self._advance(now)
        current = self._leaned() if known and self.searching_since is None else speed
        self.rate = max(_SLOWEST, current / 2) if not known else min(self.rate, max(_SLOWEST, current / 2))
        self.searching_since = None
        self.level = min(self.level, 0.0)
        self.mark = self.taken
        self._anchor(now, self.taken)
        self.plateau = _LONGEST_PLATEAU
        self._update_limit()
        return True

    def __str__(self) -> str:
        return f"{self.rate * 60:.3g} requests a minute{', still looking' if self.searching else ''}"

    def _update_limit(self) -> None:
        """Update the limit that reports show."""
        a_minute = self.rate * 60.0
        if a_minute >= 1.0:
            self.limit = Limit("requests", a_minute, model=self.scope)
        else:
            self.limit = Limit("requests", 1.0, per=1.0 / self.rate, model=self.scope)

    @property
    def searching(self) -> bool:
        return self.searching_since is not None

    # -- storage ----------------------------------------------------------------------------------------------

    def pack(self) -> dict[str, Any]:
        return {
            "learned": ["pace", self.scope],
            "anchor_at": self.anchor_at,
            "anchor_taken": self.anchor_taken,
            "at": self.at,
            "found": self.found,
            "found_in": self.found_in,
            "lag": self.lag,
            "level": self.level,
            "mark": self.mark,
            "overflowed": self.overflowed,
            "plateau": self.plateau,
            "pressed": self.pressed,
            "rate": self.rate,
            "refused": self.refused,
            "resting_until": self.resting_until,
            "row": self.row,
            "searching_since": self.searching_since,
            "taken": self.taken,
            "took_at": self.took_at,
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        self.anchor_at = packed["anchor_at"]
        self.anchor_taken = packed["anchor_taken"]
        self.at = packed["at"]
        self.found = packed["found"]
        self.found_in = packed["found_in"]
        self.lag = packed["lag"]
        self.level = packed["level"]
        self.mark = packed["mark"]
        self.overflowed = packed["overflowed"]
        self.plateau = packed["plateau"]
        self.pressed = packed["pressed"]
        self.rate = packed["rate"]
        self.refused = packed["refused"]
        self.resting_until = packed["resting_until"]
        self.row = packed["row"]
        self.searching_since = packed["searching_since"]
        self.taken = packed["taken"]
        self.took_at = packed["took_at"]
        self._update_limit()

    def reset(self) -> None:
        self.level = max(self.level, 0.0)
