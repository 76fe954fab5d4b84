"""Adaptive concurrency: infer how many leases at once a credential allows (``slots="auto"``).

The number grows quickly while calls succeed and the slots are used. A refusal alone says little: most are about a rate.
But if only those calls are refused that would be one more than were ever admitted at once, their number is the cause.
The first time that may be chance, and growth continues; the second time it is taken as the limit, and from then on one
more is tried only now and then.

Where answers take long, a refusal of the rate looks the same: none of the calls ends meanwhile. But a rate refills
while the number stays: one call more is tried again, later each time, and only several refusals in a row are believed.
A call that is in flight for much longer than refusals take counts as admitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_SLOTS = 64

_USED_ENOUGH = 0.8  # share of the slots in use at the peak of a round; below it growth proves nothing
# Slots added for each success: fourfold growth per call time at first, then twofold.
_FASTER, _FASTER_BELOW = 3, 16
# At most so many at once, or this share of all calls admitted so far if that is more: when an unknown limit is reached,
# all that are in flight are refused. The share is larger where answers take long, by this much per second.
CAUTIOUS, _CAUTIOUS_SHARE, _BOLDER = 16, 0.06, 0.2
_PROBE_AFTER, _LONGEST_PATIENCE = 100, 1_600  # successful calls, once the limit is known
# Of an answer's time per slot, the least time between two starts; seconds, at most and at least.
_APART, _MOST_APART, _LEAST_APART = 0.4, 0.005, 0.002
_NEAR = 1.25
_NOTHING = ("", 0, 0.0)
_LATELY = 0.2  # weight of the last answer in the latency
_LONG = 1.0  # seconds of latency: from here on rate and number are told apart by trying again
# Refusals of one more call that are believed then, if they last for so much of the latency.
_STRIKES, _SPAN = 4, 0.5
_SURVIVED, _SURVIVED_AT_LEAST = 5.0, 0.2  # times the delay of a refusal, and seconds, after which a call is admitted
_ROUNDS = 0.02  # share of the patience per slot, where answers take long
_SPARE = 1.25  # slots for a rate: answers do not take equally long


class AdaptiveConcurrency:
    """The adaptive number of slots of each credential of one quota."""

    __slots__ = (
        "_first_at",
        "_in_flight",
        "_part",
        "_strikes",
        "_struck_at",
        "clean",
        "known",
        "latency",
        "patience",
        "peak",
        "proven",
        "slots",
        "started_at",
        "step",
        "succeeded",
        "suspected",
    )

    def __init__(self) -> None:
        # By token: the credential, its leases including this one, and the start.
        self._in_flight: dict[int, tuple[str, int, float]] = {}
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
        self.succeeded = 0  # calls in all
        self._part = 0.0  # of a slot per key by which to grow
        self.started_at = -math.inf  # the last lease
        self.latency = 0.0  # seconds that an answer takes, lately
        self._strikes = 0  # refusals of one more call than proven, one after the other
        self._struck_at = 0.0
        self._first_at = 0.0  # the first of them

    def note_latency(self, seconds: float) -> None:
        """Note how long a successful call took."""
        self.latency = seconds if not self.latency else self.latency + _LATELY * (seconds - self.latency)

    def widen_to(self, width: float) -> bool:
        """Allow as many at once as the known limits of a credential do. Return True if that is more."""
        needed = min(MAX_SLOTS, math.ceil(_SPARE * width) + 1)
        if self.known or needed <= self.slots:
            return False
        self.slots = needed
        self.clean = self.peak = 0
        return True

    def lease_started(self, token: int, name: str, at_once: int, at: float = 0.0) -> None:
        """Note that a lease began, with the number of leases on its credential."""
        self._in_flight[token] = name, at_once, at
        self.started_at = max(self.started_at, at)
        if at_once > self.peak:
            self.peak = at_once

    def forget(self, token: int) -> None:
        """Drop a lease whose end proves nothing."""
        self._in_flight.pop(token, None)

    def lease_succeeded(self, token: int, keys: int = 1) -> bool:
        """Note that a lease ended without a refusal. Return True if it is time to grow; *keys* share the quota."""
        _, at_once, _ = self._in_flight.pop(token, _NOTHING)
        if at_once > self.proven:
            self.proven = at_once
        self.clean += 1
        self.succeeded += 1
        if self._is_enough(keys) or self.slots >= MAX_SLOTS or self.peak < _USED_ENOUGH * self.slots:
            return False
        patience = self.patience * min(1.0, _ROUNDS * self.slots) if self.latency >= _LONG else self.patience
        return not self.known or self.clean >= patience

    def _is_enough(self, keys: int) -> bool:
        """Return True if more at once would be too many refusals, should a limit be reached now."""
        return self.latency > 0 and self.slots * keys >= max(CAUTIOUS, self._share() * self.succeeded)

    @property
    def is_crowded(self) -> bool:
        """True if more calls are under way than may be refused when an unknown limit is reached."""
        return len(self._in_flight) >= max(CAUTIOUS, self._share() * self.succeeded)

    def paced_at(self, keys: int) -> float:
        """Return when the next call may start, so that slots freed together do not fill together.

        All calls that start while a refusal is on its way are refused as well. *keys* share the quota.
        """
        apart = min(_MOST_APART, _APART * self.latency / (self.slots * keys))
        return -math.inf if self.known or apart < _LEAST_APART else self.started_at + apart

    def _share(self) -> float:
        return max(_CAUTIOUS_SHARE, _BOLDER * self.latency)

    def grow(self, keys: int = 1) -> None:
        """Allow more leases at once: so many on all *keys* together."""
        more = self.step if self.known else _FASTER if self.slots < _FASTER_BELOW else 1
        self._part += more / keys
        more = int(self._part + 1e-9)
        if not more:
            return
        self._part -= more
        self.slots = min(MAX_SLOTS, self.slots + more)
        if self.known:
            self.step *= 2
        self.clean = 0
        self.peak = 0 if self.known else self.peak

    def on_refusal(self, token: int, now: float = 0.0) -> bool:
        """Note a refusal. Return True if its cause is too many calls at once, not too many a minute."""
        name, at_once, started_at = self._in_flight.pop(token, _NOTHING)
        for later, (its_name, its_number, its_start) in self._in_flight.items():
            if later > token and its_name == name:
                # The provider did not count the refused call.
                self._in_flight[later] = name, its_number - 1, its_start
        self._prove_survivors(find_survival(started_at, now))
        if at_once <= max(1, self.proven):
            return False
        if self.latency >= _LONG and not self.known and not self._is_believed(at_once, started_at, now):
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

    def _prove_survivors(self, before: float) -> None:
        """Count calls as admitted that began before then and are still in flight."""
        for _, at_once, started_at in self._in_flight.values():
            if started_at < before and at_once > self.proven:
                self.proven = at_once

    def _is_believed(self, at_once: int, started_at: float, now: float) -> bool:
        """Return True if one more call was refused so often that the rate does not explain it."""
        if started_at <= self._struck_at:
            return False  # its burst is known
        near = self.suspected > self.proven and at_once <= _NEAR * self.suspected
        self._strikes = self._strikes + 1 if near else 1
        if self._strikes == 1:
            self._first_at = now
        self._struck_at, self.suspected = now, at_once
        return self._strikes >= _STRIKES and now - self._first_at >= _SPAN * self.latency

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


def find_survival(started_at: float, now: float) -> float:
    """Return before when a call in flight must have begun to count as admitted, if one that began then is refused."""
    return now - max(_SURVIVED_AT_LEAST, _SURVIVED * (now - started_at))
