"""Forecast how long a number of requests takes, what limits them most, and what would help.

A fluid model: by an instant t each quota has admitted what it had left plus what flowed in, bounded by its slots. The
requests are done at the first t at which that is enough. It is fast for a million requests; a run in virtual time
(``agentos.simulator``) agrees within a few per cent.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from .cost import DIMENSIONS
from .learning.adaptive_concurrency import MAX_SLOTS
from .learning.adaptive_rate import AdaptiveRate
from .learning.reported import ReportedLimit
from .limits.base import FOREVER, LimitState, format_number
from .limits.calendar import CalendarWindow, next_reset
from .records import Key, LeaseRequest, Quota
from .reservations import declared_amount

_FURTHEST = 400 * 86_400.0  # longer forecasts are infinite
_SMALLEST_GAIN = 0.02  # share of the time


@dataclass(frozen=True, slots=True)
class Improvement:
    """A change that would shorten the run, and how long it would take then."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CapacityForecast:
    """The completion time, the bottleneck and improvements. ``seconds`` is infinite if no key can serve."""

    seconds: float
    binding: str
    moves: tuple[Improvement, ...] = ()


@dataclass(frozen=True, slots=True)
class _Flow:
    """One limit as a flow of requests: an amount at once, then a rate per second."""

    what: str
    dimension: str
    at_once: float
    a_second: float
    most_at_once: float
    days: tuple[float, ...] = ()  # or renewed at these instants, in seconds from now
    a_day: float = 0.0

    def by(self, t: float, opens_in: float) -> float:
        at_once = min(self.most_at_once, self.at_once + self.a_second * opens_in)
        fresh = bisect.bisect_right(self.days, t)
        return at_once + self.a_second * max(0.0, t - opens_in) + self.a_day * fresh

    def times(self, factor: float) -> _Flow:
        return replace(
            self,
            at_once=self.at_once * factor,
            a_second=self.a_second * factor,
            most_at_once=self.most_at_once * factor,
            a_day=self.a_day * factor,
        )


@dataclass(frozen=True, slots=True)
class _Supply:
    """One quota: its limits, its slots, and when it opens."""

    name: str
    keys: int
    slots: int
    opens_in: float
    flows: tuple[_Flow, ...]
    duration: float

    def by(self, t: float) -> tuple[float, str]:
        """Return how many requests are admitted by then, and the bottleneck."""
        if t < self.opens_in:
            return 0.0, f"quota {self.name} is closed"
        most = FOREVER if self.duration <= 0 else self.slots * ((t - self.opens_in) / self.duration + 1.0)
        what = f"{self.slots} slot{'' if self.slots == 1 else 's'} of {_keys(self.keys)}"
        for flow in self.flows:
            through = flow.by(t, self.opens_in)
            if through < most:
                most, what = through, flow.what
        return most, what


@dataclass(frozen=True, slots=True)
class CapacitySurvey:
    """The state of the quotas that could serve, at one instant: the input of a forecast."""

    supplies: tuple[_Supply, ...]
    overestimates: tuple[tuple[str, float, float], ...]  # dimension, reserved, used on average
    duration: float


def collect_capacity(
    keys: Collection[Key], request: LeaseRequest, *, duration: float, now: float, wall: float
) -> CapacitySurvey:
    """Collect the capacity for requests like *request* of *duration* seconds each. *wall* is the wall-clock time."""
    supplies = tuple(_supplies(keys, request, duration, now, wall))
    return CapacitySurvey(supplies, tuple(_overestimates(keys, request)), duration)


def forecast_completion(found: CapacitySurvey, count: int, parallel: int | None) -> CapacityForecast:
    """Forecast when *count* requests are done with at most *parallel* at a time."""
    supplies, duration = list(found.supplies), found.duration
    if count <= 0:
        return CapacityForecast(0.0, "nothing to do")
    if not supplies:
        return CapacityForecast(FOREVER, "no credential can serve")
    seconds = _through(supplies, count, duration, parallel)
    if seconds == FOREVER:
        return CapacityForecast(FOREVER, _binding(supplies, _FURTHEST, parallel, duration))
    binding = _binding(supplies, seconds, parallel, duration)
    variants = _variants(supplies, found.overestimates, parallel, seconds)
    return CapacityForecast(seconds, binding, tuple(_improvements(supplies, variants, count, seconds)))


def _supplies(keys: Iterable[Key], request: LeaseRequest, duration: float, now: float, wall: float) -> list[_Supply]:
    usable: dict[Quota, list[Key]] = {}
    for key in keys:
        if key.could_serve(request.labels, request.model):
            usable.setdefault(key.quota, []).append(key)
    found = []
    for quota, its_keys in usable.items():
        slots = sum(MAX_SLOTS if key.auto and not _known(quota) else key.slots for key in its_keys)
        opens_in = max(0.0, quota.closed_for(request.model) - now)
        flows = tuple(
            flow
            for state in quota.limits_for(request.model)
            if (flow := _flow(quota, state, request, now, wall)) is not None
        )
        found.append(_Supply(quota.name, len(its_keys), slots, opens_in, flows, duration))
    return found


def _known(quota: Quota) -> bool:
    return quota.concurrency is not None and quota.concurrency.known


def _flow(quota: Quota, state: LimitState, request: LeaseRequest, now: float, wall: float) -> _Flow | None:
    amount = declared_amount(state, request) or state.usage.mean  # what is reserved beyond that is given back
    if not amount:
        return None
    limit = state.limit
    learned = ", learned" if state.learned else ""
    per = "a day" if limit.per == "day" else "a minute" if limit.per == 60 else f"in {limit.per:g}s"
    what = f"{format_number(limit.amount)} {DIMENSIONS[state.dimension]} {per} of quota {quota.name}{learned}"
    left = max(0.0, state.left(now)) / amount
    if isinstance(state, CalendarWindow):
        first = next_reset(limit, wall) - wall
        days = tuple(first + 86_400.0 * day for day in range(400))
        return _Flow(what, limit.dimension, left, 0.0, left, days, limit.amount / amount)
    assert limit.per != "day"  # noqa: S101 - for the type checker
    rate = limit.amount / float(limit.per)
    largest = limit.amount if isinstance(state, (ReportedLimit, AdaptiveRate)) else limit.largest
    return _Flow(what, limit.dimension, left, rate / amount, max(left, largest / amount))


def _through(supplies: list[_Supply], count: float, duration: float, parallel: int | None) -> float:
    """Return the first instant at which that many have started and ended."""

    def started(t: float) -> float:
        by_quotas = sum(supply.by(t)[0] for supply in supplies)
        if parallel is None or duration <= 0:
            return by_quotas
        return min(by_quotas, parallel * (t / duration + 1.0))

    if started(_FURTHEST) < count:
        return FOREVER
    low, high = 0.0, 1.0
    while started(high) < count:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if started(middle) >= count else (middle, high)
    return high + duration


def _binding(supplies: list[_Supply], seconds: float, parallel: int | None, duration: float) -> str:
    """Return what limits the most requests."""
    t = max(0.0, seconds - duration)
    held: dict[str, float] = {}
    total = 0.0
    for supply in supplies:
        through, what = supply.by(t)
        total += through
        held[what] = held.get(what, 0.0) + through
    if parallel is not None and duration > 0 and parallel * (t / duration + 1.0) <= total:
        return f"parallelism of {parallel}"
    first = max(held, key=lambda what: held[what])
    others = len(held) - 1
    return first + (f", and {others} more like it" if others else "")


Variant = tuple[str, list[_Supply], int | None]  # the change, then the supplies and the parallelism


def _improvements(
    supplies: list[_Supply], variants: Iterable[Variant], count: int, seconds: float
) -> Iterable[Improvement]:
    duration = supplies[0].duration
    for what, changed, parallel in variants:
        then = _through(changed, count, duration, parallel)
        if then < seconds * (1 - _SMALLEST_GAIN):
            yield Improvement(what, then)


def _variants(
    supplies: list[_Supply],
    overestimates: Iterable[tuple[str, float, float]],
    parallel: int | None,
    seconds: float,
) -> Iterable[Variant]:
    best = max(supplies, key=lambda supply: supply.by(seconds)[0])
    own = replace(best, opens_in=0.0, name="another")
    yield f"another credential in a quota of its own, like {best.name}", [*supplies, own], parallel
    if parallel is not None:
        yield f"parallelism of {parallel * 2}", supplies, parallel * 2
    yield "twice the slots", [replace(supply, slots=supply.slots * 2) for supply in supplies], parallel
    for closed in supplies:
        if closed.opens_in > 0:
            opened = [replace(supply, opens_in=0.0) if supply is closed else supply for supply in supplies]
            yield f"quota {closed.name}, if it were open now", opened, parallel
    for dimension, reserved, used in overestimates:
        factor = reserved / used
        what = f"a cost of {format_number(used)} {dimension}: {factor:.1f} times what is used is reserved"
        yield what, [_with_less(supply, dimension, factor) for supply in supplies], parallel


def _with_less(supply: _Supply, dimension: str, factor: float) -> _Supply:
    """Return the same quota if each request took that many times less of one dimension."""
    flows = tuple(flow.times(factor) if flow.dimension == dimension else flow for flow in supply.flows)
    return replace(supply, flows=flows)


def _overestimates(keys: Iterable[Key], request: LeaseRequest) -> Iterable[tuple[str, float, float]]:
    """Return dimensions of which more is reserved than was recently used: reserved, and used on average."""
    seen: dict[int, list[float]] = {}
    for key in keys:
        for state in key.quota.limits_for(request.model):
            mean = state.usage.mean
            if mean:
                seen.setdefault(state.dimension, []).append(mean)
    for dimension, means in seen.items():
        reserved = request.cost[dimension]
        used = sum(means) / len(means)
        if reserved is not None and reserved > used * (1 + _SMALLEST_GAIN):
            yield DIMENSIONS[dimension], reserved, used


def _keys(count: int) -> str:
    return "one credential" if count == 1 else f"{count} credentials"
