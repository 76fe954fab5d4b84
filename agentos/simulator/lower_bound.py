"""Compute the least time in which any client can complete a number of calls.

The computation counts how many calls can have succeeded by the instant T. Each quota allows the least of what its
dimensions allow; the quotas add up; the client's own parallelism limits the total. The bound is the first T at which
that count reaches what is needed.

It is a true bound for any client, with two exceptions, where it is an expectation that luck may beat by a little: where
latencies vary and concurrency or parallelism binds (it then uses their mean, unless it is given the latencies
themselves), and where calls fail by chance.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .limiters import ROUNDING
from .plan import DAY, MINUTE, KeyPlan, ProviderPlan, QuotaPlan

# Horizon for everything that depends on time: a hundred thousand years.
_NEVER = 3e12
_PRECISION = 1e-12

_Dimension = tuple[str, Callable[[float], float]]


@dataclass(frozen=True, slots=True)
class Bound:
    """At least *seconds*, because of *binding*: ``"requests of quota acme"``, ``"parallelism"``, ``"latency"``.

    Infinite seconds: the calls can never all succeed, and *binding* says why.
    """

    seconds: float
    binding: str


def lower_bound(
    plan: ProviderPlan,
    calls: int,
    *,
    tokens_each: int = 0,
    parallel: int | None = None,
    latencies: Sequence[float] | None = None,
) -> Bound:
    """Return the least time in which *calls* calls of *tokens_each* tokens can succeed, with all limits full.

    *parallel* is the most calls that the client has in flight. *latencies* are the actual ones of the calls, at least
    as many as are needed: with them the bound is exact where it would be an expectation. Dead keys and spent quotas
    contribute nothing.
    """
    _require_whole("calls", calls, 0)
    _require_whole("tokens_each", tokens_each, 0)
    if parallel is not None:
        _require_whole("parallel", parallel, 1)
    if calls == 0:
        return Bound(0.0, "nothing to do")
    needed = math.ceil(calls / (1 - plan.failure_rate) - ROUNDING)
    pace = _Pace(plan, needed, latencies)
    quotas = [_QuotaCount(quota, _usable_keys(plan, quota), tokens_each, pace) for quota in plan.quotas]
    quotas = [quota for quota in quotas if quota.keys]
    if not quotas:
        return Bound(math.inf, "no usable key")
    overall = _overall(quotas, parallel, pace)

    def ended_by(instant: float) -> float:
        together = sum(quota.ended_by(instant) for quota in quotas)
        return min([together, *(count(instant) for _, count in overall)])

    if ended_by(_NEVER) < needed:
        return Bound(math.inf, _binding(quotas, overall, _NEVER, needed, pace))
    before = _last_instant_before(ended_by, needed)
    return Bound(before, _binding(quotas, overall, before, needed, pace))


class _Pace:
    """The rate at which calls can follow each other in one slot, and the earliest end of the first."""

    def __init__(self, plan: ProviderPlan, needed: int, latencies: Sequence[float] | None) -> None:
        self._sums: list[float] | None = None
        self._mean = plan.latency.mean
        self._varies = plan.latency.sigma > 0 and plan.latency.median > 0
        self.shortest = plan.latency.shortest
        if latencies is not None:
            if len(latencies) < needed:
                raise ValueError(f"latencies must have one for each of the {needed} calls needed, not {len(latencies)}")
            # Whichever calls are made, they take at least as long as the shortest ones.
            sorted_up = sorted(latencies)[:needed]
            self._sums = list(itertools.accumulate(sorted_up))
            self.shortest = sorted_up[0]

    def ended_by(self, places: float, instant: float) -> float:
        """Return how many calls can have ended by *instant* with at most *places* in flight."""
        if self._sums is not None:
            return bisect.bisect_right(self._sums, places * instant * (1 + 1e-9) + ROUNDING)
        if self._mean == 0:
            return math.inf
        if self._varies:
            return math.floor(places * instant / self._mean + ROUNDING)
        return places * math.floor(instant / self._mean + ROUNDING)


class _QuotaCount:
    """The number of calls of one quota that can have ended by an instant, and the dimension that binds."""

    def __init__(self, plan: QuotaPlan, keys: list[KeyPlan], tokens_each: int, pace: _Pace) -> None:
        self.name = plan.name
        self.keys = keys
        self.places = _places(plan, keys)
        started: list[_Dimension] = []
        if plan.rpm is not None:
            started.append(("requests", _started(plan, plan.rpm, plan.requests_at_once, 1)))
        if plan.tpm is not None and tokens_each > 0:
            started.append(("tokens", _started(plan, plan.tpm, plan.tokens_at_once, tokens_each)))
        if plan.daily_requests is not None:
            daily = plan.daily_requests
            started.append(("daily requests", lambda at: daily * (1 + math.floor((at + ROUNDING) / DAY))))
        if plan.money is not None:
            money = plan.money
            started.append(("money", lambda _: money))
        if all(key.dies_after is not None for key in keys):
            lives = sum(key.dies_after or 0 for key in keys)
            started.append(("life of the keys", lambda _: lives))
        # What started by T - latency has ended by T.
        self.dimensions = [(name, _later(count, pace.shortest)) for name, count in started]
        if self.places is not None:
            places = self.places
            self.dimensions.append(("concurrency", lambda at: pace.ended_by(places, at)))
        self.dimensions.append(("latency", _later(lambda _: math.inf, pace.shortest)))

    def ended_by(self, instant: float) -> float:
        return min(count(instant) for _, count in self.dimensions)

    def binding(self, instant: float) -> str:
        name, _ = min(self.dimensions, key=lambda each: each[1](instant))
        return name


def _usable_keys(plan: ProviderPlan, quota: QuotaPlan) -> list[KeyPlan]:
    if quota.spent or quota.money == 0:
        return []
    return [key for key in plan.keys if key.quota == quota.name and not key.dead and key.dies_after != 0]


def _places(plan: QuotaPlan, keys: list[KeyPlan]) -> int | None:
    """Return how many calls of the quota can be in flight at once; None: any number."""
    caps = [] if plan.concurrency is None else [plan.concurrency]
    if all(key.concurrency is not None for key in keys):
        caps.append(sum(key.concurrency or 0 for key in keys))
    return min(caps, default=None)


def _started(plan: QuotaPlan, per_minute: float, at_once: float, each: int) -> Callable[[float], float]:
    """Return how many calls that need *each* of a dimension can have started by an instant."""
    if each > at_once + ROUNDING:
        return lambda _: 0  # a call larger than the bucket is never admitted
    changes_at = _NEVER if plan.changes_at is None else plan.changes_at
    if plan.refill in ("fixed", "sliding"):
        return _in_windows(plan, changes_at / plan.window, at_once, each)
    rate, more = per_minute / MINUTE, plan.changes_to - 1
    return lambda at: math.floor((at_once + rate * (at + more * max(0.0, at - changes_at)) + ROUNDING) / each)


def _in_windows(plan: QuotaPlan, changes_in: float, amount: float, each: int) -> Callable[[float], float]:
    before, after = (math.floor((amount * factor + ROUNDING) / each) for factor in (1, plan.changes_to))
    # The window in which the limit changes admits the larger of the two amounts.
    last = math.ceil(changes_in - ROUNDING) if before > after else math.floor(changes_in + ROUNDING)

    def started(at: float) -> float:
        begun = 1 + math.floor((at + ROUNDING) / plan.window)
        early = min(begun, last)
        return early * before + (begun - early) * after

    return started


def _later(started: Callable[[float], float], latency: float) -> Callable[[float], float]:
    return lambda at: 0 if at < latency else started(at - latency)


def _overall(quotas: list[_QuotaCount], parallel: int | None, pace: _Pace) -> list[_Dimension]:
    """Return the limits over all quotas together."""
    found: list[_Dimension] = []
    if parallel is not None:
        found.append(("parallelism", lambda at: pace.ended_by(parallel, at)))
    # Each quota alone might get the shortest calls; together they cannot all have them.
    if len(quotas) > 1 and all(quota.places is not None for quota in quotas):
        places = sum(quota.places or 0 for quota in quotas)
        found.append(("concurrency", lambda at: pace.ended_by(places, at)))
    return found


def _last_instant_before(ended_by: Callable[[float], float], needed: int) -> float:
    """Return the end of the time in which fewer than *needed* can have ended, to a trillionth."""
    low, high = 0.0, 1.0
    if ended_by(0.0) >= needed:
        return 0.0
    while ended_by(high) < needed:
        low, high = high, high * 2
    while high - low > max(_PRECISION, high * _PRECISION):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if ended_by(middle) < needed:
            low = middle
        else:
            high = middle
    return low


def _binding(quotas: list[_QuotaCount], overall: list[_Dimension], instant: float, needed: int, pace: _Pace) -> str:
    if instant < pace.shortest:
        return "latency"
    if instant == 0:
        return "nothing"
    together = sum(quota.ended_by(instant) for quota in quotas)
    for name, count in overall:
        if count(instant) < min(needed, together):
            return name
    names = {quota.name: quota.binding(instant) for quota in quotas}
    if len(names) == 1 or len(set(names.values())) > 1:
        return ", ".join(f"{dimension} of quota {quota}" for quota, dimension in names.items())
    return f"{next(iter(names.values()))} of {len(names)} quotas"


def _require_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")
