"""How many leases at once a credential bears, found out: ``slots="auto"``.

Grows quickly while all goes well and the slots are really used. Refusals tell little by themselves: most are of a rate.
But where calls are only ever refused that would have been one more than were ever admitted at once, it is their number
that is too much. The first time that may be chance, and the width goes on growing; the second time it is believed,
and from then on one more is tried only now and then, and more if that goes well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_SLOTS = 64

_USED_ENOUGH = 0.8  # of the slots, at the busiest moment of a round: else more would tell nothing
# Slots more for each call that goes well: at first four times as many in the time of one call, then twice as many.
_FASTER, _FASTER_BELOW = 3, 16
_PROBE_AFTER, _LONGEST_PATIENCE = 100, 1_600  # calls that went well, once the width is known
_NEAR = 1.25
_NOTHING = ("", 0)


class AdaptiveConcurrency:
    """The slots of each credential of one quota that was not told how many it has."""

    __slots__ = ("_in_flight", "clean", "known", "patience", "peak", "proven", "slots", "step", "suspected")

    def __init__(self) -> None:
        self._in_flight: dict[int, tuple[str, int]] = {}  # by token: the credential, and how many it had with this one
        self.reset()

    def reset(self) -> None:
        """Know nothing."""
        self.slots = 1
        self.known = False  # the provider's own cap was met twice
        self.proven = 0  # the most that were admitted at once
        self.suspected = 0  # how many at once when one was refused that was more than proven
        self.patience = _PROBE_AFTER
        self.step = 1  # by which to grow, once the width is known
        self.clean = 0  # calls that went well since the width was changed
        self.peak = 0  # the most at once since then

    def lease_started(self, token: int, name: str, at_once: int) -> None:
        """A lease began; with it there are so many on the credential of that name."""
        self._in_flight[token] = name, at_once
        if at_once > self.peak:
            self.peak = at_once

    def forget(self, token: int) -> None:
        """A lease ended in a way that tells nothing."""
        self._in_flight.pop(token, None)

    def lease_succeeded(self, token: int) -> bool:
        """A lease ended and nothing was refused; whether it is time to grow."""
        _, at_once = self._in_flight.pop(token, _NOTHING)
        if at_once > self.proven:
            self.proven = at_once
        self.clean += 1
        if self.slots >= MAX_SLOTS or self.peak < _USED_ENOUGH * self.slots:
            return False
        return not self.known or self.clean >= self.patience

    def grow(self) -> None:
        """More at once, from now on."""
        more = self.step if self.known else _FASTER if self.slots < _FASTER_BELOW else 1
        self.slots = min(MAX_SLOTS, self.slots + more)
        if self.known:
            self.step *= 2
        self.clean = 0
        self.peak = 0 if self.known else self.peak

    def on_refusal(self, token: int) -> bool:
        """A call was refused; whether that is because there were too many at once, rather than too many a minute."""
        name, at_once = self._in_flight.pop(token, _NOTHING)
        for later, (its_name, its_number) in self._in_flight.items():
            if later > token and its_name == name:
                # The refused one was never there, as far as the provider is concerned.
                self._in_flight[later] = name, its_number - 1
        if at_once <= max(1, self.proven):
            return False
        if at_once <= self.slots:  # else it began before the last cut
            near = self.suspected > 0 and at_once <= _NEAR * self.suspected
            self.patience = min(_LONGEST_PATIENCE, self.patience * 2) if self.known and near else _PROBE_AFTER
            self.known = self.known or near
            self.suspected = at_once
            self.slots = max(1, at_once - 1)
            self.step = 1
            self.clean = self.peak = 0
        return True

    def pack(self) -> dict[str, Any]:
        return {
            "slots": self.slots,
            "known": self.known,
            "proven": self.proven,
            "suspected": self.suspected,
            "step": self.step,
            "patience": self.patience,
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        if packed["slots"] != self.slots:
            self.clean = self.peak = 0
        self.slots = packed["slots"]
        self.known = packed["known"]
        self.proven = packed["proven"]
        self.suspected = packed["suspected"]
        self.step = packed["step"]
        self.patience = packed["patience"]
