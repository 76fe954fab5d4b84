"""The usable part of a window: less than its amount, if calls were refused before it was used up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .base import pack_instant, unpack_instant

_JITTER = 0.97  # of the amount in use: a refusal then is one at the edge
_STEP = 0.02  # of the amount, by which it is raised when it is tried again
_ALIKE, _ALIKE_AT_LEAST = 0.1, 0.6  # a refusal within this share, or so many requests, of the last one confirms it
_LONGEST_PATIENCE = 64  # windows
_PROVEN_AFTER = 2.0  # windows in which the value was not refused
_SAME_WINDOW = 0.9  # of a window after a refusal
_WORTH_A_REFUSAL = 300.0  # calls until the same is tried again
_TRIED_FOR = 2.0  # windows until even more is tried
_NOISE = 0.5  # later refusals lower the value by this share of the difference: others do not always use the same


class Allowance:
    """The usable part of *amount* per window.

    Others may use the rest, or the amount is too high. After some windows without a refusal a little more is tried,
    later each time that the same is found.
    """

    __slots__ = (
        "_again",
        "_amount",
        "_before",
        "_earlier",
        "_found",
        "_lowered_at",
        "_patience",
        "_proven_at",
        "_retry_at",
        "_share",
        "_step",
        "per",
        "value",
    )

    def __init__(self, amount: float, per: float) -> None:
        self._amount = amount
        self.per = per
        self.reset()

    def reset(self) -> None:
        self.value = self._amount
        self._before = self._amount  # the value before the last burst of refusals
        self._share = 1.0  # of the difference to what was found then, by which the value is lowered
        self._found = 0.0  # in use at the last refusal that lowered the value; 0: there was none
        self._earlier = (0.0, 1)  # what the burst of refusals before that found, and the patience then
        self._patience = 1
        self._retry_at = float("inf")
        self._proven_at = -float("inf")  # from then on a refusal of what was admitted before is jitter
        self._lowered_at = -float("inf")  # the burst of refusals that lowered it last
        self._step = 1.0  # number of steps by which it is raised next
        self._again = False  # the last burst followed that one within a window

    def lower(self, used: float, now: float, *, burst_known: bool = False) -> bool:
        """Note a refusal that left so much in use. Return False if that is the edge of the allowance.

        *burst_known*: the call was in flight with one whose refusal is known. Each tells more of what was admitted.
        """
        if not burst_known:
            self._before = self.value
            self._again = now < self._lowered_at + _SAME_WINDOW * self.per
        if self._again:
            return True  # the call that was refused before may count at the provider: this tells nothing
        before, found = self._before, max(1.0, used)
        if self._is_edge(found, before, now):
            self._proven_at = now + self._patience * self.per
            return False
        if found < before:
            if not burst_known:
                self._earlier = self._found, self._patience
                self._patience, self._share = 1, _NOISE if self._found else 1.0
            earlier, patience = self._earlier
            if abs(found - earlier) <= max(_ALIKE_AT_LEAST, _ALIKE * found):
                self._patience = min(_LONGEST_PATIENCE, 2 * patience)
            likely = before - self._share * (before - found)
            # What two bursts of refusals agree on, is not noise.
            self.value = min(self.value, likely if self._share == 1.0 else min(likely, max(found, earlier)))
            self._found, self._step = found, 1.0
            self._retry_at, self._proven_at = now + self._windows_until_retry() * self.per, now
            self._lowered_at = self._lowered_at if burst_known else now
        return True

    def _is_edge(self, found: float, before: float, now: float) -> bool:
        """Return True if a value was refused that was admitted before: once in a while that is jitter."""
        if now < self._proven_at:
            return False
        return found >= _JITTER * before if before == self._amount else found + 1.0 >= _JITTER * math.floor(before)

    @property
    def is_confirmed(self) -> bool:
        """True if two bursts of refusals found the same, in different windows."""
        return self._patience > 1

    def confirm(self, now: float) -> None:
        """Note that another limit of the provider has the same usable part: it is not tried again soon."""
        if self._patience == 1:
            self._patience = 2
            self._retry_at = now + self._windows_until_retry() * self.per

    def _windows_until_retry(self) -> float:
        return self._patience if self._patience == 1 else max(self._patience, _WORTH_A_REFUSAL / self.value)

    def on_take(self, now: float) -> None:
        """Try a little more if it is time, and twice as much each time that it is admitted."""
        if now >= self._retry_at:
            self.value = min(self._amount, self.value + self._step * max(1.0, _STEP * self._amount))
            self._proven_at = now + _PROVEN_AFTER * self.per
            self._step *= 2.0
            self._retry_at = float("inf") if self.value == self._amount else now + _TRIED_FOR * self.per

    def pack(self, name: str = "allowance") -> dict[str, Any]:
        """Return what a window adds to its record; *name* is that of the field with its numbers."""
        # None is all of the amount, which may be another one in the next process.
        value, before = (None if each == self._amount else each for each in (self.value, self._before))
        retry_at = None if self._retry_at == float("inf") else self._retry_at
        step = [] if self._step == 1.0 else [self._step]
        return {
            name: [value, before, self._share, self._found, self._patience, self._again, *self._earlier, *step],
            "retry_at": retry_at,
            "lowered_at": pack_instant(self._lowered_at),
            "proven_at": pack_instant(self._proven_at),
        }

    def unpack(self, packed: Mapping[str, Any], name: str = "allowance") -> None:
        """Load what a window's record has; those of earlier versions have nothing."""
        self.reset()
        if name in packed:
            value, before, self._share, self._found, self._patience, *again = packed[name]
            self._again = bool(again and again[0])
            self._earlier = (again[1], again[2]) if len(again) > 2 else (self._found, self._patience)
            self._step = again[3] if len(again) > 3 else 1.0
            self.value = self._amount if value is None else min(self._amount, value)
            self._before = self._amount if before is None else min(self._amount, before)
        if packed.get("retry_at") is not None:
            self._retry_at = packed["retry_at"]
        self._lowered_at = unpack_instant(packed.get("lowered_at"))
        self._proven_at = unpack_instant(packed.get("proven_at"))
