"""A limit on every interval of *per* seconds (sliding window log)."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from ...limit import Limit
from ..learning.common_evidence import CommonEvidence
from .allowance import Allowance
from .base import FOREVER, LimitState
from .spread import AT_ONCE, find_spacing

_GUARD, _LEAST_GUARD, _MOST_GUARD = 0.01, 0.01, 0.05  # seconds; shares of the window
_LONG_GUARD = 1e-4  # of the window, if that is more: others wait for the same instant
_LONGER, _SHORTER = 1.5, 0.999  # the guard after each refusal at the edge, and after each admitted call
_SOON = 0.1  # of the window
_PATIENCE = 0.0005  # share of the window to wait after a refusal: others that wait take what comes free
_REFILLS = 3.0  # after a refusal, until one call tries if the limit refills continuously
_DOUBLES_EVERY = 1.5  # times the delay of a refusal, after which twice as many calls start
# So many such delays lie between calls once one was refused, but together no more than this share of the window.
_ONE_BY_ONE, _SPREAD = 1.2, 0.25
# Calls that were refused, of those that fit only if refused calls do not count: then they do. One admitted weighs more.
_COUNTED, _FREE = 2, -4
_ALIKE = 0.6  # requests by which the usable parts of two limits may differ and confirm each other


class SlidingWindow(LimitState):
    """At most the amount in any interval of *per* seconds: each start is kept that long.

    A refusal although the amount was kept says that less can be used. What exactly, one call finds out soon after it:
    if that is admitted, the provider's limit refills continuously, and holds less at once than a window's amount.

    Some providers count refused calls as well. That shows in calls which would fit but for the refused ones.
    """

    __slots__ = (
        "_echoes",
        "_mark",
        "_probe",
        "_takes",
        "allowance",
        "common",
        "full_until",
        "guard",
        "is_window",
        "lag",
        "per",
        "probe_at",
        "refused",
        "spacing",
        "starts",
        "used",
    )

    overflows = True

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        assert limit.per != "day"  # noqa: S101 - for the type checker
        self.per = float(limit.per)
        self.spacing = find_spacing(limit)
        self.used = 0.0
        self.starts: deque[list[float]] = deque()  # [instant, amount], oldest first
        self.refused: deque[list[float]] = deque()  # the same of calls that were refused
        self._echoes = 0  # calls refused that would fit but for the refused ones, less those admitted
        # Seconds that each start counts longer: calls do not reach the provider at the intervals at which they start.
        self.guard = self._first_guard()
        self.allowance = Allowance(limit.amount, self.per)
        self.common = CommonEvidence()
        self.full_until = -FOREVER  # at the provider, after a refusal
        self.lag = 0.0  # seconds until a refusal arrives
        self.is_window: bool | None = None  # at the provider; None: unknown
        self.probe_at = FOREVER  # when one call finds out
        self._probe = 0  # the number of that call
        self._takes = 0  # the number of the newest start
        self._mark = 0  # of the newest start when the last burst of refusals began

    def share_evidence(self, common: CommonEvidence) -> None:
        self.common = common

    def _first_guard(self) -> float:
        return max(_LONG_GUARD * self.per, min(_GUARD, _LEAST_GUARD * self.per))

    def _forget(self, now: float) -> None:
        starts = self.starts
        while starts and starts[0][0] + self.per + self.guard <= now:
            self.used -= starts.popleft()[1]
        if not starts:
            self.used = 0.0  # so that rounding errors do not accumulate
        while self.refused and self.refused[0][0] + self.per + self.guard <= now:
            self.refused.popleft()

    @property
    def counts_refused(self) -> bool:
        """True if refused calls count at the provider."""
        return self._echoes >= _COUNTED or (self._echoes >= 0 and self.common.counts_refused(self))

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        self._forget(now)
        need += extra
        over = self.used + need - max(self.allowance.value, min(need, self.largest))
        counted: Iterable[list[float]] = self.starts
        if self.refused and self.counts_refused:
            over += sum(amount for _, amount in self.refused)
            counted = heapq.merge(self.starts, self.refused)
        if over <= 0:
            return max(now, self._ramp(), self._paced())
        at = now + self.per + self.guard
        for started, amount in counted:
            over -= amount
            if over <= 0:
                at = max(started + self.per + self.guard, self._ramp(), self._paced())
                break
        return at if at < self.probe_at else max(now, self.probe_at)

    def _ramp(self) -> float:
        """Return when the next call may start after a refusal: one goes first, then twice as many each time."""
        return self.full_until + _DOUBLES_EVERY * self.lag * math.log2(max(1, self._takes - self._mark + 1))

    def _paced(self) -> float:
        """Return when the next call may start, so that not many are under way when the window is full.

        Once a call was refused, each waits if the one before is, too; in a long window they do from the beginning.
        """
        if not self.starts or self.dimension:
            return -FOREVER
        apart = min(_ONE_BY_ONE * self.lag, _SPREAD * self.per / self.limit.amount)
        if self.used >= AT_ONCE:
            apart = max(apart, self.spacing)
        return self.starts[-1][0] + apart

    def take(self, need: float, now: float) -> tuple[int, bool]:
        self._forget(now)
        used = self.used
        # It would not fit if refused calls counted.
        echo = bool(self.refused) and used + need + sum(each for _, each in self.refused) > self.allowance.value
        self._takes += 1
        if now >= self.probe_at:
            if now < self.probe_at + _SOON * self.per:  # else a new window may have begun, and it would tell nothing
                self._probe = self._takes
            self.probe_at = FOREVER
        if self._takes == self._mark + 1:
            self.full_until = max(self.full_until, now)  # the first one after a refusal
        self.allowance.on_take(now)
        self.starts.append([now, need])
        self.used = used + need
        return self._takes, echo

    @property
    def overflows_at(self) -> float:
        # Calls at even intervals use all of each window, and none needs many at once.
        return self.starts[-1][0] + self.per / self.limit.amount if self.starts else -FOREVER

    @property
    def taken(self) -> float:
        """How often something was taken."""
        return float(self._takes)

    def undo(self, stamp: tuple[int, bool], need: float) -> None:
        at, _ = self.starts.pop()
        self.used -= need
        self._takes -= 1
        if stamp[0] == self._probe:  # another call finds out
            self._probe, self.probe_at = 0, at

    def correct(self, stamp: tuple[int, bool], by: float, now: float) -> tuple[int, float]:
        self._forget(now)
        self._change(stamp[0], by)
        return stamp

    def _change(self, number: int, by: float) -> None:
        place = number - self._takes - 1  # from the newest, which is -1
        if 0 < -place <= len(self.starts):
            self.starts[place][1] += by
            self.used += by

    # -- answers ----------------------------------------------------------------------------------------------

    def refuse(self, stamp: tuple[int, bool] | None, need: float, now: float, lag: float = 0.0) -> None:
        """Note that a call was refused: it took nothing, and the provider's window was full. *lag*: after so long."""
        if stamp is None:
            return
        number, echo = stamp
        self._forget(now)
        alone = not self.refused
        if -len(self.starts) <= number - self._takes - 1:
            self.refused.append([self.starts[number - self._takes - 1][0], need])
        self._change(number, -need)
        if number == self._probe:
            self.is_window = True
            self.common.note_window(True)
            return
        burst_known = number <= self._mark
        if not burst_known:
            self._echoes += echo
            if echo:
                self.common.note_echoes(self, self._echoes)
            self._mark, self.lag = self._takes, lag
        if self.is_window is None and self.common.has_windows:
            self.is_window = True
        lowered = self.is_window is not False and self._lower(now, burst_known, alone)
        if not burst_known and not lowered:
            self.guard = min(_MOST_GUARD * self.per, _LONGER * self.guard)
        if lowered and self.is_window is None:
            if self.allowance.is_confirmed:
                self.is_window = True  # what flows in would not be the same each time
            else:
                self._try_soon(now)
        if self.is_window is not False and self.starts:
            leaves = self.starts[0][0] + self.per + self.guard
            self.full_until = max(self.full_until, leaves, now + _PATIENCE * self.per)

    def _lower(self, now: float, burst_known: bool, alone: bool) -> bool:
        """Note that no more could be used than is in use now. Return False if that is the edge of the limit.

        *alone*: no other call was refused in this window, which might count.
        """
        if not self.allowance.lower(self.used, now, burst_known=burst_known):
            return False
        if alone and not burst_known:
            share, slack = max(1.0, self.used) / self.limit.amount, _ALIKE / self.limit.amount
            if self.common.confirms_share(self, share, slack):
                self.allowance.confirm(now)
        return True

    def _try_soon(self, now: float) -> None:
        """Let one call find out how the limit refills, unless calls leave the window by then: it would tell nothing."""
        at = now + _REFILLS * self.per / self.limit.amount
        self.probe_at = FOREVER if self.starts and self.starts[0][0] + self.per <= at else at

    def admit(self, stamp: tuple[int, bool]) -> None:
        """Note that a call was admitted."""
        self.guard = max(self._first_guard(), _SHORTER * self.guard)
        if stamp[1]:
            self._echoes = max(_FREE, self._echoes - 2)
            self.common.note_echoes(self, self._echoes)
        if stamp[0] == self._probe and self.is_window is None:
            self.is_window, self.full_until = False, -FOREVER
            self.common.note_window(False)
            self.allowance.reset()

    def left(self, now: float) -> float:
        self._forget(now)
        return self.allowance.value - self.used

    def pack(self) -> dict[str, Any]:
        return {
            "starts": list(self.starts),
            "refused_starts": list(self.refused),
            "echoes": self._echoes,
            "takes": self._takes,
            "guard": self.guard,
            "lag": self.lag,
            **self.allowance.pack(),
            "is_window": self.is_window,
            "probe": self._probe,
            "mark": self._mark,
            "probe_at": None if self.probe_at == FOREVER else self.probe_at,
            "full_until": None if self.full_until == -FOREVER else self.full_until,
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        self.starts = deque([float(at), float(amount)] for at, amount in packed["starts"])
        self.used = sum(amount for _, amount in self.starts)
        self.refused = deque([float(at), float(amount)] for at, amount in packed.get("refused_starts", ()))
        self._echoes = packed.get("echoes", 0)
        self._takes = packed["takes"]
        self.guard = packed.get("guard", self._first_guard())
        self.lag = packed.get("lag", 0.0)
        self.allowance.unpack(packed)
        self.is_window = packed.get("is_window")
        self._probe = packed.get("probe", 0)
        self._mark = packed.get("mark", 0)
        probe_at = packed.get("probe_at")
        self.probe_at = FOREVER if probe_at is None else probe_at
        full_until = packed.get("full_until")
        self.full_until = -FOREVER if full_until is None else full_until

    def reset(self) -> None:
        self.starts.clear()
        self.refused.clear()
        self._echoes, self.used = 0, 0.0
        self.guard = self._first_guard()
        self.allowance.reset()
        self.is_window, self.probe_at, self._probe, self.full_until = None, FOREVER, 0, -FOREVER
