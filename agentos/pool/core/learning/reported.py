"""A limit that the provider reports in its answers: its size, how much is left, and when it is renewed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ....util.durations import format_rough_duration
from ...limit import Limit
from ..cost import REQUESTS
from ..limits.allowance import Allowance
from ..limits.base import FOREVER, ROUNDING
from ..limits.bucket import heaviest
from .common_evidence import CommonEvidence
from .hypothesis import REPORTED, Hypothesis
from .limit_probe import LimitProbe
from .recent_starts import RecentStarts
from .reported_record import pack_reported, unpack_reported
from .reset_evidence import BUCKET, SLIDING, TRAVEL, WINDOW, ResetEvidence

USUAL_WINDOW = 60.0

# Kept unused of a bucket: calls do not reach the provider at the intervals at which they start.
_BEHIND, _MOST_BEHIND = 0.02, 1.0  # seconds of its refill; but at most this many requests
# Seconds after its announced end at which a window is taken to be renewed, if that is exact or rounded.
_LATE, _LATE_ROUNDED = 0.01, 0.05
_MEASURABLE = 0.1  # of its window must have passed for what was admitted to measure a rate
_DOUBLES_EVERY = 0.03  # seconds at the beginning of a window in which twice as many calls start
_RENEWED = 0.5  # share of the limit that is left at the beginning of a window, at least
_NEW = 0.9  # share of the window that is left then, at least
_TOGETHER = 0.05  # seconds: calls that start within them may arrive in any order

# Trust: a limit is obeyed while it is above the least, renewed as announced when it is sure, and no longer tried when
# it has the most.
_AT_FIRST, _LEAST, _SURE, _MOST = 1.0, -1.0, 2.0, 3.0
_UNEXPECTED, _UNEXPECTED_SHARE = 3.0, 0.3  # requests left, and share of the limit, that rounding does not explain
_COUNTED_ALIKE = 2.0  # times the rate in tokens that may seem admitted in a short time, and still be the limit's
_MOST_SLIDING, _RENEWS = 2.0, 0.25  # evidence that a window slides, at most; what each renewal of all of it takes away
_PRECISE = 0.1  # share of its window by which a reset may be rounded and tell so
_ENDS_KNOWN = 0.5  # the same, for the end of a window to be known: of one second, whole seconds say nothing
_SHORT = 4.0  # times as much as is left was expected: the bucket holds less, or refills more slowly


# Of a draw: ``empty_at`` before it, its place, and its group: when that began, its first place, what was in use then.
Stamp = tuple[float, float, float, float, float]


class ReportedLimit(Hypothesis):
    """What is left by the last answer, less what was started since, plus what is renewed since.

    An answer describes the moment at which its call arrived. So each draw keeps what was taken until then (its place),
    and of a window what was in use then. How the limit is renewed is learned from the answers (``ResetEvidence``).

    While it is not *obeyed*, it allows everything: a stated limit is lower.
    """

    __slots__ = (
        *("_group", "_suspected", "_void", "allowance", "common", "empty_at", "evidence", "fill_time", "heard_at"),
        *("heard_taken", "hint", "least_rate", "mark", "mentioned_at", "obeyed", "per", "probe", "remaining"),
        *("renewed_at", "renews", "seconds_each", "slides", "starts", "taken", "total", "trust", "usable"),
    )

    source = REPORTED

    def __init__(
        self, dimension: str, scope: str | None, amount: float, per: float = USUAL_WINDOW, prior: str = BUCKET
    ) -> None:
        super().__init__(_limit(dimension, scope, amount, per), -FOREVER)
        self.evidence = ResetEvidence(prior)
        self.hint: float | None = None  # the window according to the answer's words or the dialect
        self.least_rate = 0.0  # that was admitted since the last refusal
        self.obeyed = True
        self.mentioned_at = -FOREVER  # when an answer last reported it
        self.taken = 0.0  # all that was started
        self.heard_at = -FOREVER  # start of the newest call whose answer was applied
        self.heard_taken = 0.0  # the place of that call
        # Of a bucket: when it was or will be empty.
        self.empty_at = -FOREVER
        # Of a window: what was left at that call, when it is renewed, the recent starts, and how many may be in use.
        self.remaining = amount
        self.renewed_at = -FOREVER
        self.starts = RecentStarts()
        self.allowance = amount
        self.usable = Allowance(amount, per)  # of a window that begins anew: others may use the rest
        self.mark = 0.0  # taken when the last burst of refusals began
        self.trust = _AT_FIRST
        self.renews = False  # all of it, at the end of its window
        self.slides = 0.0  # above zero: only the oldest calls leave the window, one after the other
        self._suspected = (FOREVER, FOREVER)  # end of a window after which a call was refused, and when that started
        self.total = FOREVER  # in this window: the least of what was left and what had been taken together
        self.probe = LimitProbe()
        self.common = CommonEvidence()
        self._group = (-FOREVER, 0.0, 0.0)  # of calls that started together: when, its first place, what was in use
        self._void = 0.0  # of these, what was refused
        self._measure(amount, per)

    def _measure(self, amount: float, per: float) -> None:
        if (amount, per) != (self.limit.amount, self.limit.per):
            self.usable = self.usable if amount == self.limit.amount else Allowance(amount, per)
            self.usable.per = per
            self.limit = _limit(self.limit.dimension, self.scope, amount, per)
        self.per = per
        self.seconds_each = per / amount
        self.fill_time = self._held() * self.seconds_each
        self.heaviest = heaviest(amount, per, self.seconds_each)

    @property
    def shape(self) -> str:
        return self.evidence.shape

    @property
    def believed(self) -> bool:
        """True unless its numbers contradict each other, or what was admitted and refused."""
        return self.trust > _LEAST and not self.evidence.is_unbelievable

    @property
    def is_sure(self) -> bool:
        """True if this limit or others of its provider proved true: renewed as announced, or when calls tried."""
        return self.trust >= _SURE or (self.trust >= _AT_FIRST and self.common.reports_are_true)

    @property
    def believed_rate(self) -> float:
        return 1.0 / self.seconds_each

    @property
    def capacity(self) -> float:
        # The end of one window and the beginning of the next may fall together.
        return self._held() if self.shape == BUCKET else 2.0 * self.limit.amount

    def _held(self) -> float:
        """Return what there is at once at most: a bucket may hold less than the limit."""
        return self.limit.amount - (self.evidence.spare if self.shape == BUCKET else 0.0)

    # -- LimitState -------------------------------------------------------------------------------------------

    def share_evidence(self, common: CommonEvidence) -> None:
        self.common = common

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        if not self.obeyed:
            return now
        at = self._find_ready(min(need + extra, self._held()), now)
        if at <= now + ROUNDING:
            return now
        return max(now, min(at, self._probe_at())) if self._may_probe() and self.probe.is_worth_it(at) else at

    def _find_ready(self, need: float, now: float) -> float:
        if self.shape == BUCKET:
            return max(self.empty_at, now - self.fill_time) + need * self.seconds_each
        return self._window_ready_at(need, now)

    def _may_probe(self) -> bool:
        """Return True if a call may try if the limit is true."""
        return self.trust < _MOST and self.dimension == REQUESTS

    def _probe_at(self) -> float:
        """Return when a call may try: not as soon after nothing is left as calls of other keys that were refused."""
        return max(self.probe.at, self.common.probe_at(self.probe.blocked_at))

    def _window_ready_at(self, need: float, now: float) -> float:
        at = now
        ends_known = self.shape == WINDOW and self.evidence.precision < _ENDS_KNOWN * self.per
        if ends_known and now < self.renewed_at:
            if need <= self.remaining - (self.taken - self.heard_taken) and self._fits(need):
                return now
            at = self.renewed_at
        if ends_known and self.renews and self.is_sure:
            return self._renewed_ready_at(need, at)
        self._forget(now)
        over = self.starts.used + need - self.allowance
        if over <= 0:
            return at
        kept_for = self._kept_for()
        starts = self.starts.entries
        last = starts[-1][0] if starts else -FOREVER
        # Nothing was started since the window ended, or it has left: one finds out.
        all_left = max(at, self.renewed_at if last < self.renewed_at - ROUNDING else last + kept_for)
        for started, amount in starts:
            over -= amount
            if over <= 0:
                return min(all_left, max(at, started + kept_for))
        return all_left

    def _kept_for(self) -> float:
        """Return how long a start counts: calls do not reach the provider at the intervals at which they start."""
        return self.per + min(_LATE_ROUNDED, self.per / 20)

    def _renewed_ready_at(self, need: float, at: float) -> float:
        """Return when *need* fits into a window whose beginning is known: all of it is there at once."""
        windows = max(0.0, (at - self.renewed_at) // self.per)
        used = self._used_since(began_at := self.renewed_at + windows * self.per)
        if used + need > max(self.usable.value, min(need, self.limit.amount)):
            return began_at + self.per + _LATE
        # One goes first, then twice as many each time: if the window has not ended yet, not all of them are refused.
        return max(at, began_at + min(_DOUBLES_EVERY, self.per / 40) * math.log2(max(1.0, used + need)))

    def _fits(self, need: float) -> bool:
        """Return False if more would start in a window than it allows, whatever the answers say is left."""
        if not (self.renews and self.is_sure) or self.starts.merges:
            return True  # calls of the last window would count too
        allowed = max(self.usable.value, min(need, self.limit.amount))
        return self._used_since(self.renewed_at - self._kept_for()) + need <= allowed

    def _used_since(self, at: float) -> float:
        return sum(amount for started, amount in self.starts.entries if started >= at - ROUNDING)

    def _forget(self, now: float) -> None:
        self.starts.forget_until(now - self._kept_for())

    def take(self, need: float, now: float) -> Stamp:
        before = self.empty_at
        self.taken += need
        if self.probe.blocked_at < FOREVER:
            early = self._find_ready(min(need, self._held()), now) - now
            tries = self._may_probe() and now + ROUNDING >= self._probe_at()
            self.probe.on_start(early, self.taken, self.evidence.precision, now, tries=tries)
            if self.probe.place == self.taken:
                self.common.probe_started(now)
        if now - self._group[0] > _TOGETHER:
            self._forget(now)
            self._group, self._void = (now, self.taken, self.starts.used + need), 0.0
        self.empty_at = max(before, now - self.fill_time) + need * self.seconds_each
        if self.shape != BUCKET:
            self._note_start(need, now)
            self.usable.on_take(now)
        if self.left(now) < 1.0:
            self.probe.note_blocked(now)
        return before, self.taken, *self._group

    def _note_start(self, need: float, now: float) -> None:
        self._forget(now)
        self.starts.add(need, now)

    def undo(self, stamp: Stamp, need: float) -> None:
        self.empty_at = stamp[0]
        self.taken -= need
        self._drop(need)
        if stamp[1] == self.probe.place:
            self.probe.on_undo()
            self.common.probe_ended()

    def _drop(self, amount: float) -> None:
        """Take *amount* out of the recent starts."""
        if self.shape != BUCKET:  # which has none
            self.starts.drop(amount)

    def correct(self, stamp: Stamp, by: float, now: float) -> Stamp:
        # Reports since the call began include its true cost. And ``taken`` keeps the amount as taken, or later draws
        # would seem to have taken another amount.
        if stamp[1] > self.heard_taken:
            self.empty_at = max(self.empty_at, now - self.fill_time) + by * self.seconds_each
            self.remaining -= by
        if by < 0:
            self._drop(-by)
        elif self.shape != BUCKET:
            self._note_start(by, now)
        return stamp

    def left(self, now: float) -> float:
        if self.shape == BUCKET:
            return min(self._held(), (now - self.empty_at) / self.seconds_each)
        if self.shape == WINDOW and now < self.renewed_at:
            return self.remaining - (self.taken - self.heard_taken)
        if self._find_ready(1.0, now) <= now:
            return max(1.0, self.allowance - self.starts.used)
        return min(0.0, self.allowance - self.starts.used)

    def certainty(self, now: float) -> str:
        if self.heard_at == -FOREVER:
            return "no answer yet"
        return f"last answer {format_rough_duration(max(0.0, now - self.heard_at))} ago"

    # -- answers ----------------------------------------------------------------------------------------------

    def apply_reading(
        self,
        amount: float,
        remaining: float,
        resets_in: float | None,
        hint: float | None,
        started_at: float,
        stamp: Stamp | None,
        in_flight: float = 0.0,
        *,
        exact: bool | None = None,
        refused: bool = False,
        now: float | None = None,
    ) -> None:
        """Apply what an answer reports: so much was left after the call that started then. Ignore older answers.

        *stamp* is that of its draw. None: it began before the limit was known, as did so many others *in_flight*.
        *now*: when it arrives, if that is later than the start.
        """
        together, place, used = (started_at, self.taken - in_flight, 1.0 + in_flight) if stamp is None else stamp[2:]
        if refused and self.shape == WINDOW and started_at >= self.renewed_at:
            self._suspected = (self.renewed_at, started_at)
        elif self._suspected[0] <= started_at < self._suspected[1] and not self._is_new(amount, remaining, resets_in):
            # A call before the refused ones was admitted, and little was left.
            self.slides, self.renews = min(_MOST_SLIDING, self.slides + 1.0), False
        if together < self.heard_at:
            return
        if together == self.heard_at and remaining <= self.remaining:
            if resets_in is not None and resets_in > 0:
                self._set_renewal(started_at, resets_in)
            return
        if amount != self.limit.amount:
            self.evidence.forget()
            self.least_rate = 0.0
        remaining = min(remaining, amount)
        if refused and self.shape == WINDOW and amount == self.limit.amount and started_at < self.renewed_at:
            remaining = min(remaining, max(0.0, self.remaining - (place - self.heard_taken)))  # more is contradicted
        self._compare(amount, remaining, resets_in, together, place, used, refused)
        self.heard_at, self.heard_taken, self.hint = together, place, hint
        if resets_in is not None and resets_in > 0:
            exact = not float(resets_in).is_integer() if exact is None else exact
            own = used if stamp is None and self.dimension == REQUESTS else FOREVER
            if refused and own < FOREVER:
                own = amount / (hint or USUAL_WINDOW) * resets_in  # earlier answers were not reported: as is usual
            self.evidence.add(amount, amount - remaining, resets_in, started_at, exact=exact, own=own, hint=hint)
            if self.shape == WINDOW:
                self.evidence.note_longest(self.common.note_reset((self.dimension, hint), resets_in))
        self._measure(amount, self._find_per(amount))
        self.confirmed += 1
        level = self.level_at_answer(remaining, resets_in)
        if self.dimension == 0:
            level -= min(_MOST_BEHIND, amount / 10, _BEHIND * self.believed_rate)
        later = self.taken - place - (self._void if together == self._group[0] else 0.0)
        self.empty_at = started_at - (level - later) * self.seconds_each
        self.remaining = remaining
        if resets_in is not None:
            self._set_renewal(started_at, resets_in)
        self.allowance = min(amount, remaining + used)
        now = started_at if now is None else now
        if self.left(now) <= -1.0:  # by the calls in flight, of which some may be refused
            self.probe.note_blocked(now)

    def _set_renewal(self, started_at: float, resets_in: float) -> None:
        """Set when the window ends: the answers in it agree on that, but for rounding and the time a call travels."""
        precision = self.evidence.precision
        late = min(_LATE if precision < 1.0 else _LATE_ROUNDED, self.per / 20)
        renewed_at = started_at + resets_in + late
        if started_at < self.renewed_at and abs(renewed_at - self.renewed_at) <= 1.1 * precision + TRAVEL:
            # A call arrives after its start, so that its window seems to end early; rounding up does the opposite.
            renewed_at = (max if precision < 1.0 else min)(renewed_at, self.renewed_at)
        self.renewed_at = renewed_at

    def _compare(
        self,
        amount: float,
        remaining: float,
        resets_in: float | None,
        at: float,
        place: float,
        used: float,
        refused: bool,
    ) -> None:
        """Compare what an answer reports with what was expected, and trust the limit more or less."""
        if not self.confirmed or amount != self.limit.amount or at == self.heard_at:
            return
        unexpected = max(_UNEXPECTED, _UNEXPECTED_SHARE * amount)
        if self.shape == BUCKET:
            refill = (at - self.heard_at) / self.seconds_each
            expected = min(self._held(), self.remaining + refill) - (place - self.heard_taken)
            if remaining > expected + unexpected:
                self.trust -= 0.5
            elif self.dimension == REQUESTS and expected - (self.taken - place) > _SHORT * (remaining + _UNEXPECTED):
                flowed_in = max(1.0, remaining + 1.0 - self.remaining + place - self.heard_taken)
                held = max(remaining, self.remaining) + place - self.heard_taken + 1.0
                self.evidence.note_shortfall(flowed_in / (at - self.heard_at), amount - held)
            elif refill > _UNEXPECTED and expected >= 1.0:
                self.trust = min(_MOST, self.trust + 0.2)
        elif self.shape == SLIDING:
            self.trust -= remaining + used > amount + unexpected
        elif at < self.renewed_at - 1.1 * self.evidence.precision - TRAVEL:
            # Nothing is renewed before the end of a window: what is left and what was taken never grow together.
            total = self.remaining + self.heard_taken
            self.trust -= 0.5 * (total > self.total + unexpected)
            self.total = min(self.total, total)
        elif at >= self.renewed_at or remaining + place > self.total + unexpected:
            self.total = FOREVER
            if self._is_new(amount, remaining, resets_in):
                if self.evidence.precision < _PRECISE * self.per:  # else all calls of a burst seem to leave at once
                    self.slides = max(0.0, self.slides - _RENEWS)
                self.renews = not self.slides
                self.trust = min(_MOST, self.trust + (remaining >= _RENEWED * amount))
            elif refused:
                # The window ends later than announced; or it slides, so that only the oldest calls leave it.
                late = resets_in is not None and resets_in > max(2 * TRAVEL, 0.05 * self.per)
                self.renews = False
                self.trust -= 1.0 if late else 0.3

    def _is_new(self, amount: float, remaining: float, resets_in: float | None) -> bool:
        """Return True if a window has begun: much is left, or it ends so late that others have used it already."""
        least = _NEW * self.per + self.evidence.precision  # it may be rounded up
        return remaining >= _RENEWED * amount or (resets_in is not None and resets_in >= least)

    def find_part_left(self, limit: float | None, resets_in: float) -> float:
        """Return what is left according to a reported bucket that is full then; out of range if it is another one."""
        told = self.believed and self.shape == BUCKET and limit == self.limit.amount
        return self._held() - resets_in * self.believed_rate if told else -1.0

    def level_at_answer(self, remaining: float, resets_in: float | None) -> float:
        """Return what was left with its fraction, which the reset of a bucket tells: ``remaining`` is rounded down."""
        if self.shape != BUCKET or resets_in is None or resets_in <= 0 or self.evidence.precision >= 1.0:
            return remaining
        return min(max(remaining, self._held() - resets_in * self.believed_rate), remaining + 1.0)

    def _find_per(self, amount: float) -> float:
        per = self.evidence.find_window(amount, self.hint) or self.hint or USUAL_WINDOW
        return min(per, amount / self.least_rate) if self.least_rate else per

    def yield_to_evidence(self, now: float) -> None:
        elapsed = now - self.since
        if brief := elapsed < _MEASURABLE * self.per:
            # In so short a time only what a bucket holds can be wrong, which was concluded and not reported.
            excess = self.admitted - self.capacity - self.believed_rate * elapsed
            self.evidence.spare = max(0.0, self.evidence.spare - excess)
            self._measure(self.limit.amount, self.per)
            if not self.is_refuted(now):
                return
        rate = (self.admitted - self.capacity) / elapsed if elapsed > 0 else FOREVER
        # How many tokens a call takes, providers count in ways of their own: a few more refute nothing.
        if brief and (self.dimension == REQUESTS or rate > _COUNTED_ALIKE * self.believed_rate):
            self.trust, self.obeyed = _LEAST, False  # its amount is wrong
            return
        self.trust -= self.dimension == REQUESTS
        self.least_rate = max(self.believed_rate, rate)
        self._measure(self.limit.amount, self.limit.amount / self.least_rate)

    def is_probe(self, place: float) -> bool:
        """Return True if that call started although nothing seemed to be left, to try if that is true."""
        return self.obeyed and place == self.probe.place

    def on_admitted(self, amount: float, started_at: float, now: float, _place: float = -2.0) -> bool:
        if _place == self.probe.place:
            self.trust -= 2.0
            self.common.probe_ended(self.probe.waited, admitted=True)
        return super().on_admitted(amount, started_at, now)

    def on_refusal(self, amount: float, place: float, now: float, *, surprising: bool) -> None:
        """Note that a call was refused: it used nothing, and the limit may be lower than what was admitted before.

        *surprising*: much seemed to be left.
        """
        if place == self.probe.place:
            self.trust = min(_MOST, self.trust + 0.5)
            self.common.probe_ended(self.probe.waited)
        elif surprising and place > self.heard_taken:
            self.trust -= 1.0
        if place > self.heard_taken:  # else what the answers say is left includes it
            self.give_back(amount)
        if place >= self._group[1] and self.dimension == REQUESTS:
            self._void += amount
        self._drop(amount)
        if self.renews and self.renewed_at - now > (1.0 - _NEW) * self.per:  # else the last window has not ended yet
            used = self._used_since(self.renewed_at - (2.0 - _NEW) * self.per)
            self.usable.lower(used, now, burst_known=place <= self.mark)
        self.mark = self.mark if place <= self.mark else self.taken
        self.least_rate = 0.0
        self.begin_count(now)

    def give_back(self, amount: float) -> None:
        """Note that a call took nothing that was taken to be in flight since the last answer."""
        self.empty_at -= amount * self.seconds_each
        self.remaining += amount

    def drain(self, at: float, stamp: Stamp | None, left: float = 0.0) -> None:
        """Note that only a part of a call was *left* at a refused one that started then."""
        # Calls that started together arrive in any order: those of the same burst were admitted before this one.
        burst = stamp is not None and stamp[2] == self._group[0] and self.dimension == REQUESTS
        place = self.taken if stamp is None or burst else stamp[1]
        self.empty_at = max(self.empty_at, at + (self.taken - place - left) * self.seconds_each)
        if at >= self.heard_at:
            self.remaining = min(self.remaining, max(0.0, place - self.heard_taken))
            self.allowance = min(self.allowance, self.starts.used)

    # -- storage ----------------------------------------------------------------------------------------------

    def pack(self) -> dict[str, Any]:
        return pack_reported(self)

    def unpack(self, packed: Mapping[str, Any]) -> None:
        _, _, _, amount, per = packed["learned"]
        if "evidence" in packed:  # first, for it tells what a bucket holds
            self.evidence.unpack(packed["evidence"], packed.get("anchor"))
        self._measure(amount, per)
        unpack_reported(self, packed)

    def reset(self) -> None:
        self.empty_at = self.renewed_at = -FOREVER
        self.starts = RecentStarts()


def _limit(dimension: str, scope: str | None, amount: float, per: float) -> Limit:
    return Limit(dimension, amount, per=per, burst=max(1.0, amount), model=scope)
