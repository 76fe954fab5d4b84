"""Adaptive concurrency: infer how many leases at once a credential allows (``slots="auto"``).

The number grows quickly while calls succeed and the slots are used. A refusal alone says little: most are about a rate.
But if only those calls are refused that would be one more than were ever admitted at once, their number is the cause.
The first time that may be chance, and growth continues; the second time it is taken as the limit, and from then on one
more is tried only now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_SLOTS = 64

_USED_ENOUGH = 0.8  # share of the slots in use at the peak of a round; below it growth proves nothing
# Slots added for each success: fourfold growth per call time at first, then twofold.
_FASTER, _FASTER_BELOW = 3, 16
_PROBE_AFTER, _LONGEST_PATIENCE = 100, 1_600  # successful calls, once the limit is known
_NEAR = 1.25
_NOTHING = ("", 0)


class AdaptiveConcurrency:
    """The adaptive number of slots of each credential of one quota."""

    __slots__ = ("_in_flight", "clean", "known", "patience", "peak", "proven", "slots", "step", "suspected")

    def __init__(self) -> None:
        self._in_flight: dict[int, tuple[str, int]] = {}  # by token: the credential, and its leases including this one
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.slots = 1
        self.known = False  # the provider's limit was reached twice
        self.proven = 0  # the most that were admitted at once
        self.suspected = 0  # how many at once when one more than proven was refused
        self.patience = _PROBE_AFTER
        self.step = 1  # growth step once the limit is known
        self.clean = 0  # successful calls since the last change
        self.peak = 0  # the most at once since the last change

    def lease_started(self, token: int, name: str, at_once: int) -> None:
        """Note that a lease began, with the number of leases on its credential."""
        self._in_flight[token] = name, at_once
        if at_once > self.peak:
            self.peak = at_once

    def forget(self, token: int) -> None:
        """Drop a lease whose end proves nothing."""
        self._in_flight.pop(token, None)

    def lease_succeeded(self, token: int) -> bool:
        """Note that a lease ended without a refusal. Return True if it is time to grow."""
        _, at_once = self._in_flight.pop(token, _NOTHING)
        if at_once > self.proven:
            self.proven = at_once
        self.clean += 1
        if self.slots >= MAX_SLOTS or self.peak < _USED_ENOUGH * self.slots:
            return False
        return not self.known or self.clean >= self.patience

    def grow(self) -> None:
        """Allow more leases at once."""
        more = self.step if self.known else _FASTER if self.slots < _FASTER_BELOW else 1
        self.slots = min(MAX_SLOTS, self.slots + more)
        if self.known:
            self.step *= 2
        self.clean = 0
        self.peak = 0 if self.known else self.peak

    def on_refusal(self, token: int) -> bool:
        """Note a refusal. Return True if its cause is too many calls at once, not too many a minute."""
        name, at_once = self._in_flight.pop(token, _NOTHING)
        for later, (its_name, its_number) in self._in_flight.items():
            if later > token and its_name == name:
                # The provider did not count the refused call.
                self._in_flight[later] = name, its_number - 1
        if at_once <= max(1, self.proven):
            return False
        if at_once <= self.slots:  # else it began before the last reduction
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
