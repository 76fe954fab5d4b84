"""The meaning of ``reset`` in reported limits, found from the numbers of several answers.

A provider that reports ``limit``, ``remaining`` and ``reset`` does one of three things:

- *bucket*: the limit refills continuously, and reset is the time until it is full: used / rate; a bucket may hold
  less than the limit, which the change from one answer to the next tells;
- *window*: the limit is renewed at an instant, and reset is the time until then, whatever is used;
- *sliding*: each call counts for the same time, and reset is that time: it never changes.

Each answer is compared with what each of them predicts. Contradictions are counted, old ones count less, and the one
with the fewest is believed. Only where the numbers cannot decide, a dialect's table does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BUCKET, WINDOW, SLIDING = "bucket", "window", "sliding"

# Lengths that providers use, in seconds. They decide only among values that the numbers allow.
_USUAL = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 300.0, 600.0, 900.0, 3_600.0, 10_800.0, 18_000.0, 86_400.0)

_FADING = 0.9  # of earlier contradictions, per answer
_UNBELIEVABLE = 3.0  # contradictions of the best explanation, faded: about every third answer
_BETTER_BY = 0.5  # contradictions by which another explanation must be better
_TOLERANCE = 1.03
_ROUNDED_UP = 1.001  # times the precision: an instant is a sum of floats
_SPARE = 0.1  # of what is used, by which a bucket must hold less than the limit
_OTHERS = 3.0  # requests by which more must be used than this process did
_CLEAR = 5.0  # times the precision by which two resets must differ to tell the rate
TRAVEL = 0.15  # seconds that a call may take to arrive


class ResetEvidence:
    """The evidence for each meaning, and the rates and windows that agree with it."""

    __slots__ = (
        "_against",
        "_exact",
        "_high",
        "_last",
        "_last_used",
        "_longest",
        "_low",
        "_windows",
        "anchor",
        "shape",
        "spare",
    )

    def __init__(self, prior: str) -> None:
        self.shape = prior
        self.forget()

    def forget(self) -> None:
        """Begin anew, for a limit of another size."""
        self._against = [0.0, 0.0, 0.0]  # contradictions of bucket, window, sliding
        self._exact = False  # resets have fractions of a second
        self._low, self._high = 0.0, float("inf")  # the rate per second, if it is a bucket
        self._longest = 0.0  # the longest reset
        self._last = self._last_used = 0.0  # reset and used amount of the answer before
        self.spare = 0.0  # part of the limit that a bucket never holds
        self.anchor: float | None = None  # when the window ends, by the first answer in it
        self._windows = 0  # that have begun

    @property
    def precision(self) -> float:
        """The seconds by which a reset may be rounded up."""
        return 0.002 if self._exact else 1.0

    @property
    def is_unbelievable(self) -> bool:
        """True if no meaning explains the answers: the numbers are wrong, or of another limit."""
        return min(self._against) > _UNBELIEVABLE

    def add(
        self,
        amount: float,
        used: float,
        resets_in: float,
        started_at: float,
        *,
        exact: bool,
        own: float = float("inf"),
        hint: float | None = None,
    ) -> None:
        """Weigh one answer: so much of *amount* was used after a call that began then, and so long is left.

        *own*: what this process may have used of it; *hint*: the window according to the answer's words or the dialect.
        """
        if exact:
            self._exact = True
        if not self._last and used > own + _OTHERS and not self._is_usual(amount, used, resets_in, hint):
            self.spare = used - own  # others would have used it in no time
        elif used < self.spare:
            self.spare, self._low, self._high = used, 0.0, float("inf")
        self._against = [_FADING * each for each in self._against]
        if used > 0:
            self._weigh_bucket(amount, used, resets_in, hint)
        self._weigh_window(resets_in, started_at)
        if self._last and abs(resets_in - self._last) > 1.1 * self.precision + TRAVEL:
            self._against[2] += 1.0
        self._last, self._last_used = resets_in, used
        self._longest = max(self._longest, resets_in)
        best = min(range(3), key=lambda place: (self._against[place], place == 2))
        current = _SHAPES.index(self.shape)
        if self._against[best] + _BETTER_BY < self._against[current]:
            self.shape = _SHAPES[best]

    def _is_usual(self, amount: float, used: float, resets_in: float, hint: float | None) -> bool:
        """Return True if *amount* is renewed in a usual time, should all that is used be there again at the reset."""
        low, high = self._bound_rate(used, resets_in)
        lengths = _USUAL if hint is None else (hint,)
        return any(low <= amount / length * _TOLERANCE and amount / length <= high * _TOLERANCE for length in lengths)

    def note_shortfall(self, rate: float, spare: float) -> None:
        """Note that at most *rate* flowed in between two answers, though much more was believed to.

        If the resets say otherwise, that is because the bucket holds less than the limit, by at least *spare*.
        """
        self._high = min(self._high, rate)
        if self._low > self._high:
            self._low, self.spare = 0.0, max(self.spare, spare)

    def note_longest(self, resets_in: float) -> None:
        """Note a reset that another key was told: its window is of the same length."""
        self._longest = max(self._longest, resets_in)

    def _weigh_bucket(self, amount: float, used: float, resets_in: float, hint: float | None) -> None:
        low, high = self._bound_rate(used - self.spare, resets_in)
        if amount > high * _TOLERANCE * max(_USUAL[-1], hint or 0.0):
            self._against[0] += 1.0  # it would take days to refill
        if low <= self._high * _TOLERANCE and high * _TOLERANCE >= self._low:
            self._low, self._high = max(self._low, low), min(self._high, high)
            return
        spare = self._find_spare(used, resets_in)
        if spare is not None and abs(spare - self.spare) > _SPARE * used:
            self.spare = spare
            low, high = self._bound_rate(used - spare, resets_in)
        else:
            self._against[0] += 1.0
        self._low, self._high = low, high

    def _bound_rate(self, used: float, resets_in: float) -> tuple[float, float]:
        """Return the least and the highest rate at which *used* is there again at the reset."""
        if used <= 0:
            return 0.0, float("inf")
        # ``remaining`` is rounded down, so that up to one less is used; but the call itself is used for sure.
        used = max(used, 1.0)
        low = max(min(1.0, used), used - 1.0) / (resets_in + 0.1 * self.precision)
        high = used / (resets_in - self.precision) if resets_in > 2 * _ROUNDED_UP * self.precision else float("inf")
        return low, high

    def _find_spare(self, used: float, resets_in: float) -> float | None:
        """Return how much less a bucket holds than the limit, from this answer and the last; None: they do not tell."""
        longer = resets_in - self._last
        if not self._last or abs(longer) < _CLEAR * self.precision:
            return None
        rate = (used - self._last_used) / longer
        spare = used - rate * resets_in
        return spare if rate > 0 and 0.0 <= spare < used else None

    def _weigh_window(self, resets_in: float, started_at: float) -> None:
        ends_at = started_at + resets_in
        if self.anchor is None or started_at >= self.anchor - self.precision:
            self.anchor = ends_at
            self._windows += 1
            return
        moved = ends_at - self.anchor
        if abs(moved) > 1.1 * self.precision + TRAVEL + 0.01 * resets_in:
            self._against[1] += 1.0
            self.anchor = ends_at

    def find_window(self, amount: float, hint: float | None) -> float | None:
        """Return the seconds in which *amount* is renewed; None: the answers do not tell yet."""
        if not self._longest:
            return None
        if self.shape == BUCKET:
            return self._find_bucket_window(amount, hint)
        if self.shape == WINDOW and hint is not None and hint >= self._longest - self.precision and self._windows < 3:
            return hint
        likely = (length for length in (hint, *_USUAL) if length is not None)
        rounded = 1.15 * self._longest if self._windows < 3 else self._longest + self.precision
        shortest = self._longest - _ROUNDED_UP * self.precision
        return next((length for length in likely if shortest < length <= rounded), self._longest)

    def _find_bucket_window(self, amount: float, hint: float | None) -> float | None:
        if self._high == float("inf") and not self._low:
            return None
        shortest, longest = amount / self._high / _TOLERANCE, amount / max(self._low, 1e-12) * _TOLERANCE
        for length in (hint, *_USUAL):
            if length is not None and shortest <= length <= longest:
                return length
        if hint is not None and longest < _USUAL[0]:
            return hint  # the limit is that of its window, of which the bucket holds only a part
        low = max(self._low, self._high / 4) if self._high < float("inf") else self._low
        return amount / ((low * self._high) ** 0.5 if self._high < float("inf") else low)

    def pack(self) -> list[Any]:
        """Return the evidence as plain data, but for ``anchor``: a store must know which of its values are instants."""
        high = None if self._high == float("inf") else self._high
        last = [self._last, self._last_used]
        return [self.shape, self._against, self._exact, self._low, high, self._longest, last, self._windows, self.spare]

    def unpack(self, packed: Sequence[Any], anchor: float | None) -> None:
        self.shape, against, self._exact, self._low, high, self._longest, last, self._windows, self.spare = packed
        self._last, self._last_used = last
        self._against, self.anchor = list(against), anchor
        self._high = float("inf") if high is None else high


_SHAPES = (BUCKET, WINDOW, SLIDING)
