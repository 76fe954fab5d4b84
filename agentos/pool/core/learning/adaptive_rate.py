"""Adaptive rate: infer how much per second a quota allows from what was admitted between two refusals.

Providers refill continuously, so that at a refusal nothing is left. All that was admitted since the refusal before has
flowed in meanwhile: that amount in that time is the rate. So:

- *searching*, after the first refusal: start slowly and double every second until the next one. What is not used
  meanwhile is not lost, since it stays in the provider's bucket. Of tokens, start at half of what the calls admitted
  until then make likely, and double every two seconds.

- *holding*, from then on: keep to the measured rate, slightly behind what must have flowed in, and speed up the
  longer nothing is refused: first hardly, then more and more. This finds a limit that has grown, and the next refusal
  measures again.

Refusals of calls that were in flight when the first refusal arrived count as one: one reduction per burst.

A limit on tokens is the same with another unit: inside, one is the cost of a usual call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from ..limits.base import FOREVER, ROUNDING
from .adaptive_rate_record import pack_rate, unpack_rate
from .hypothesis import ESTIMATED, Hypothesis

_SLOWEST = 0.25  # requests per second at which the search starts
# Or the recent start rate divided by this, if that is more; by the second where refusals arrive late.
_BEGIN_AT, _BEGIN_LATE_AT, _LATE = 8.0, 16.0, 0.5
_DOUBLES_EVERY = 1.0  # seconds, while searching; longer if refusals arrive late, or if one flows in less often
_TOKENS_DOUBLE_EVERY = 2.0  # the same of tokens, whose search begins nearer to the limit
_LAGS = 2.0  # number of lags that pass before the rate rises noticeably
# After a refusal, stay behind the inflow by this many seconds of it, but by so many requests at least and at most. They
# stay in the provider's bucket, and others may then use a little more for a while without a refusal.
_BEHIND, _LEAST_BEHIND, _MOST_BEHIND = 0.1, 1.0, 2.0
_CERTAIN = 2.0  # times what may have been left at two refusals must be admitted between them to measure
_PRIOR = 2.0  # admitted calls that a stated or reported rate counts for, though it was doubted
_ENOUGH = 4.0  # admitted between refusals: from here on the measured rate counts
_LEANING = 0.02  # speed-up after *plateau* requests without a refusal; it grows with the square
# Admitted calls: a rate that was measured with fewer is less sure, and leans more. Of tokens a refusal tells more.
_FEW, _FEW_OF_TOKENS = 40.0, 15.0
_SHORTEST_PLATEAU, _PLATEAU, _LONGEST_PLATEAU = 8.0, 50.0, 400.0
_SURE = 3.0  # times the admitted calls that the rate was measured with: the longest plateau
_MOST_LEANING = 1.5
_UNUSED_FOR = 5.0  # seconds without a request that end the search
# A measurement that differs by less than this share and so many requests confirms the rate; if it differs by so many
# times the square root of what was admitted, the limit has changed, and earlier measurements count no more.
_AS_BEFORE, _EDGES, _CHANGED = 0.04, 2.0, 2.0
_FADING = 0.6  # of earlier measurements, with each new one
_STARVED, _LONGEST_COOLDOWN = 1.5, 10_800.0  # share of the time without an admitted call to wait on; seconds
# From an hour or so many measured refills on, starvation is taken for a window of a day.
_HOUR, _DAY, _CERTAIN_REFILLS = 3_600.0, 86_400.0, 5.0
_AT_ONCE, _AT_ONCE_AFTER = 3.0, 2.0  # requests, at least; and after a cooldown
_SURPRISE = 0.02  # share of the expected by which more must be admitted to tell a window from a bucket
_HELD_BACK = 1.15  # times what was measured is the least rate if calls were held back
_IDLE = 0.25  # share of the time without enough requests from which on a measurement is only a bound
_BURST = 60.0  # seconds: what is unused for longer is lost, as with most providers
_LN2 = math.log(2.0)


class AdaptiveRate(Hypothesis):
    """The learned number of requests per second; or of tokens, in calls that cost *tokens_each*."""

    __slots__ = (
        "anchor_at",
        "anchor_left",
        "anchor_taken",
        "at",
        "base",
        "beside_bucket",
        "found",
        "found_in",
        "idle",
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
        "unit",
        "unpressed",
        "woke_at",
    )

    source = ESTIMATED
    counts_starts = True

    def __init__(
        self,
        scope: str | None,
        now: float,
        starts_a_second: float = 0.0,
        lag: float = 0.0,
        tokens_each: float | None = None,
    ) -> None:
        super().__init__(Limit("requests" if tokens_each is None else "tokens", 1.0, model=scope), now)
        self.unit = 1.0 if tokens_each is None else tokens_each
        self.rate = max(_SLOWEST, starts_a_second / (_BEGIN_AT if lag < _LATE else _BEGIN_LATE_AT))
        self.searching_since: float | None = now
        self.beside_bucket = False  # one is stated: it refills continuously, and no faster than stated
        self.found = self.found_in = 0.0  # admitted while searching, and the time that took
        self.lag = lag  # seconds until a refusal arrives
        self.base = self.rate  # as measured last, before any leaning
        self.level = 0.0  # requests that can start at the instant *at*
        self.at = now
        self.woke_at = now  # when something was admitted again after several refusals in a row
        self.taken = 0.0  # all requests that were started
        self.took_at = now  # the last start
        self.resting_until = now  # the end of the cooldown
        self.overflowed = False  # since the anchor some inflow may have been lost for lack of requests
        self.anchor_at = now  # start of the last refused call: nothing was left then
        self.anchor_taken = 0.0
        self.anchor_left = 0.0  # what was left then
        self.refused = 0.0  # requests refused since the anchor
        self.mark = 0.0  # requests started when that refusal arrived
        self.pressed = 0.0  # requests started since that had to wait for the rate
        self.idle = 0.0  # seconds since the anchor in which more could have started
        self.unpressed = 0.0  # requests started since the anchor that waited for something else
        self.plateau = _PLATEAU
        self.row = 0  # consecutive refusals with nothing admitted between
        self._update_limit()

    def begin_at(self, rate: float, at: float, *, beside_bucket: bool = False) -> None:
        """Begin with a rate that was stated or reported, and from a call that was refused although it was kept."""
        self.rate, self.beside_bucket = rate, beside_bucket
        self.searching_since = None
        self.found, self.found_in = _PRIOR, _PRIOR / rate
        self.level, self.at = -self._behind(), at
        self._anchor(at, self.taken)
        self._update_limit()

    def lower_to(self, admitted: float, elapsed: float) -> None:
        """Take what was admitted between the refusals that made the rate doubtful as its first measurement."""
        if elapsed > 0 and admitted >= _ENOUGH and admitted / elapsed < self.rate:
            self.found, self.found_in = admitted, elapsed
            self.rate = self.base = admitted / elapsed
            self._update_limit()

    def search_from(self, rate: float) -> None:
        """Search from that rate on, in usual calls a second."""
        self.rate = self.base = rate
        self._update_limit()

    def begin_unrefused(self, rate: float) -> None:
        """Search from that rate on, although nothing was refused: the first refusal then measures nothing."""
        self.rate = max(self.rate, rate)
        self.overflowed = True

    @property
    def believed_rate(self) -> float:
        return self._leaned()

    @property
    def capacity(self) -> float:
        return FOREVER if self.searching else self._most()

    def yield_to_evidence(self, now: float) -> None:
        self._advance(now)
        # What it holds at once grows with the rate.
        admitted = self.admitted / (max(0.0, now - self.since) + self.capacity / self._leaned())
        self.rate, self.pressed = max(admitted, self._leaned()), 0.0
        self._update_limit()

    # -- the rate ---------------------------------------------------------------------------------------------

    def _leaned(self) -> float:
        plateau = max(self.plateau, _LAGS * self.lag * self.rate)
        few = _FEW_OF_TOKENS if self.dimension else _FEW
        leaning = _LEANING * max(1.0, few / self.found) if self.found else _LEANING
        return float(self.rate * min(_MOST_LEANING, 1.0 + leaning * (self.pressed / plateau) ** 2))

    def _behind(self) -> float:
        return max(_LEAST_BEHIND, min(_MOST_BEHIND, _BEHIND * self.rate))

    def _doubles_every(self) -> float:
        refill = self.found_in / self.found if self.found else 0.0
        shortest = _TOKENS_DOUBLE_EVERY if self.dimension else _DOUBLES_EVERY
        return max(shortest, _LAGS * self.lag, refill)

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
        short = min((need + extra) / self.unit, self._most()) - self.level
        if short <= 0:
            return now
        if self.searching_since is None:
            at = self.at + short / self._leaned()
        else:
            goal = self._doubled(self.at) + short * _LN2 / (self.rate * self._doubles_every())
            at = self.searching_since + self._doubles_every() * math.log2(goal)
        return at if at > now + ROUNDING else now

    def take(self, need: float, now: float) -> tuple[float, float]:
        need /= self.unit
        self._advance(now)
        rested = self.took_at < self.resting_until
        if self.level < need + 1.0:
            self._on_full_use(need)
        else:
            self.unpressed += 0.0 if rested else need
            if self.searching_since is not None and self.taken:
                # It goes on from here: the rate was not what held the calls back.
                self.searching_since += max(0.0, now - max(self.took_at, self.resting_until, self.searching_since))
            spare = (self.level - need - _AT_ONCE_AFTER) / self.rate
            self.idle += max(0.0, min(spare, now - max(self.took_at, self.resting_until)))
        if self.level >= self._most() and self._is_unused(now):
            self.overflowed = True
        self.took_at = now
        self.level -= need
        self.taken += need
        return need, self.taken

    def _is_unused(self, now: float) -> bool:
        """Return True if so little was requested that the provider's bucket may have overflowed."""
        return now > max(self.took_at, self.resting_until) + _UNUSED_FOR

    def _on_full_use(self, need: float) -> None:
        """Raise the rate a little, since the limit is fully used; a large rise becomes the new rate."""
        self.pressed += need
        if not self.searching and self._leaned() >= self.rate * _MOST_LEANING:
            self.rate, self.pressed = self._leaned(), 0.0
            self._update_limit()

    def undo(self, stamp: tuple[float, float], need: float) -> None:
        need /= self.unit
        self.level += need
        self.taken -= need
        self.pressed = max(0.0, self.pressed - need)

    def correct(self, stamp: tuple[float, float], by: float, now: float) -> tuple[float, float]:
        amount, place = stamp
        by /= self.unit
        self.level -= by
        if place > self.anchor_taken:
            self.refused -= (
                by  # what is not used was not admitted; ``taken`` only grows, or places would not be in order
            )
        return amount + by, place

    def left(self, now: float) -> float:
        return min(self._most(), self.level + self._flowed(now)) * self.unit

    def on_admitted(self, amount: float, started_at: float, now: float, _place: float = 0.0) -> bool:
        return super().on_admitted(amount / self.unit, started_at, now)

    def certainty(self, now: float) -> str:
        if self.searching:
            return "still searching"
        return f"{self.taken - self.anchor_taken - self.refused:,.0f} calls since the last refusal"

    # -- answers ----------------------------------------------------------------------------------------------

    def on_refusal(self, stamp: tuple[float, float], started_at: float, now: float, delay: float | None = None) -> bool:
        """Learn from the refusal of a call that started then. Return False if its burst is already known.

        *delay*: until the call would have been admitted, if the answer says so.
        """
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
        if self.row and admitted >= 0.5:
            self.woke_at = self.resting_until
        left = self.find_left(amount, delay)
        self.level, self.at = -self._behind() - (self.taken - place), started_at
        if delay is not None:
            self.level += left
        if admitted < 0.5 or elapsed <= 0:
            # Nothing has flowed in since, or a window has yet to begin: that does not measure a rate.
            self.row += 1
            self.refused += amount
        elif admitted < _CERTAIN * (left + self.anchor_left):
            self.row = 0
            if not self.searching:
                self.rate = min(self.rate, (admitted + amount) / elapsed)  # no more than that has flowed in
            self.refused += amount  # how much was left is too uncertain: measure until the next refusal
        else:
            self.row = 0
            self._measure(max(0.5, admitted + left - self.anchor_left), elapsed)
            self._anchor(started_at, place, left)
        self.pressed = 0.0
        if self.searching_since is not None:
            self.searching_since = now
        self.begin_count(now)
        self._advance(now)
        self._update_limit()
        return True

    def find_left(self, amount: float, delay: float | None) -> float:
        """Return what was left when *amount* was refused: almost nothing of requests, but less than it of tokens."""
        if not self.dimension:
            return 0.0
        return amount / 2 if delay is None else max(0.0, amount - self.rate * delay)

    def cooldown(self, now: float) -> float:
        """Return how long to wait after refusals with nothing admitted between: in proportion to the time until now.

        What admits nothing for an hour is a window of a day, which ends a day after its first call at the latest.
        """
        starved = now - self.anchor_at
        refill = self.found_in / self.found if self.found else 0.0
        wait = min(_LONGEST_COOLDOWN, max(refill, _STARVED * starved))
        ends_in = self.woke_at + _DAY - now
        if starved < max(_HOUR, _CERTAIN_REFILLS * refill) or ends_in <= 0:
            return wait
        if self.searching_since is None or self.found:
            self.searching_since = now
            self.rate, self.found, self.found_in = max(_SLOWEST, self.rate), 0.0, 0.0
        return min(wait, ends_in)

    def restart(self, at: float) -> None:
        """Search anew from then on: a long window has ended, and the rate of the one before tells nothing."""
        self.rate = max(_SLOWEST, self.rate)
        self.searching_since = at
        self.found = self.found_in = 0.0
        self.level, self.at = 0.0, at
        self.mark, self.row = self.taken, 0
        self._anchor(at, self.taken)
        self._update_limit()

    def on_probed(self, now: float) -> None:
        """Go on after a call that the others waited for: not much at once, and the time since it began tells little."""
        self.idle += max(0.0, now - max(self.took_at, self.resting_until))
        self.hold_until(now)

    def hold_until(self, until: float) -> None:
        """Let nothing start before then, and not much at once then: windows refuse that, and buckets keep the rest."""
        self.resting_until = max(self.resting_until, until)
        if self.searching_since is not None and until > self.at:
            # It goes on then: nothing is learned meanwhile, but something flows in, and one call can start.
            self.searching_since = max(self.searching_since, until - self._doubles_every())
            self.level = max(self.level, 1.0 - self._flowed(until))
        self.level -= max(0.0, self.level + self._flowed(until) - _AT_ONCE_AFTER)

    def _anchor(self, at: float, taken: float, left: float = 0.0) -> None:
        self.anchor_at, self.anchor_taken, self.anchor_left = at, taken, left
        self.refused = self.pressed = self.unpressed = self.idle = 0.0
        self.base = self.rate
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
            found = self.found / self.found_in
            held_back = self.idle > _IDLE * elapsed and found < self.rate
            self.rate = math.sqrt(found * self.rate) if held_back else found
            if self.found >= _ENOUGH:
                self.searching_since = None
                self.plateau = max(_SHORTEST_PLATEAU, min(_PLATEAU, self.found))
            else:
                self.rate /= 2
            return
        expected, pace, known = self.base * elapsed, self._leaned(), self.found >= _ENOUGH
        difference = abs(admitted - expected)
        if difference > _EDGES + _CHANGED * math.sqrt(max(admitted, expected)):
            self.found = self.found_in = 0.0
        self.found = _FADING * self.found + admitted
        self.found_in = _FADING * self.found_in + elapsed
        measured = self.found / self.found_in
        if measured < self.rate and (self.unpressed > admitted / 2 or self.idle > _IDLE * elapsed):
            # Slots or another limit held the calls back, and a provider that holds little at once lost some of its
            # inflow: the rate is between.
            self.rate = min(self.rate, max(math.sqrt(measured * self.rate), _HELD_BACK * measured))
            self.found = self.rate * self.found_in
        elif known and not self.beside_bucket and admitted - expected > _EDGES + _SURPRISE * expected:
            # A bucket admits what flows in, whatever the pace. This limit admits more at a higher pace: it is a window,
            # which loses what is not used, or it has grown.
            self.rate = max(measured, math.sqrt(admitted / elapsed * pace))
            self.found = self.rate * self.found_in
            self.plateau = 2 * _SHORTEST_PLATEAU
            return
        else:
            self.rate = measured
        # The more were admitted, the better the rate is known and the longer it stays.
        sure = max(_SHORTEST_PLATEAU, min(_PLATEAU, admitted))
        confirmed = difference <= _EDGES + _AS_BEFORE * expected
        # Beside a stated bucket there is less to be found: at most what others stop using.
        rarely = 2.0 if self.beside_bucket else 1.0
        longest = max(sure, min(rarely * _LONGEST_PLATEAU, rarely * _SURE * self.found))
        self.plateau = min(longest, max(sure, self.plateau * 2 * rarely)) if confirmed else sure

    def slow_down(self, stamp: tuple[float, float] | None, speed: float, now: float, *, known: bool) -> bool:
        """Halve the rate because traffic grew too fast. Return False if that was done for this burst.

        *speed* is the recent number of starts per second; *known*: this rate was already in use.
        """
        if known and (stamp is None or stamp[1] <= self.mark):
            return False
        self._advance(now)
        current = max(self.rate, self._leaned()) if known and self.searching_since is None else speed
        self.rate = max(_SLOWEST, current / 2) if not known else min(self.rate, max(_SLOWEST, current / 2))
        self.searching_since = None
        self.level = min(self.level, 0.0)
        self.mark = self.taken
        self._anchor(now, self.taken)
        self.plateau = _LONGEST_PLATEAU
        self._update_limit()
        return True

    def __str__(self) -> str:
        a_minute = f"{self.rate * self.unit * 60:.3g} {self.limit.dimension} a minute"
        return f"{a_minute}{', still looking' if self.searching else ''}"

    def _update_limit(self) -> None:
        """Update the limit that reports show."""
        dimension, a_minute = self.limit.dimension, self.rate * self.unit * 60.0
        if a_minute >= 1.0:
            self.limit = Limit(dimension, a_minute, model=self.scope)
        else:
            self.limit = Limit(dimension, 1.0, per=60.0 / a_minute, model=self.scope)

    @property
    def searching(self) -> bool:
        return self.searching_since is not None

    # -- storage ----------------------------------------------------------------------------------------------

    def pack(self) -> dict[str, Any]:
        return pack_rate(self)

    def unpack(self, packed: Mapping[str, Any]) -> None:
        unpack_rate(self, packed)
        self._update_limit()

    def reset(self) -> None:
        self.level = max(self.level, 0.0)
