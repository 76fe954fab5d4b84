"""A provider that a pool calls in virtual time: a limiter, a latency, and headers as real providers write them."""

from __future__ import annotations

import datetime
import heapq
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentos.pool.core import invariants
from agentos.pool.core.learning.adaptive_pool import AdaptivePool
from agentos.pool.core.limits.base import FOREVER
from agentos.pool.core.records import PLAIN, Grant
from agentos.providers import classify
from agentos.simulator.limiters import ROUNDING, Limiter, LimitLevel

WALL = 1_800_000_000.0
TRAVEL = 0.002  # seconds until a call arrives, at most
REFUSAL_TIME = 0.02

Headers = dict[str, str]
# What the headers state: of the level, the seconds until a refused call would be admitted (or None), and now.
Style = Callable[[LimitLevel, float | None, float], Headers]


def _whole(number: float) -> str:
    return str(math.floor(number + ROUNDING))


def silent(_level: LimitLevel, _wait: float | None, _now: float) -> Headers:
    return {}


def retry_after(_level: LimitLevel, wait: float | None, _now: float) -> Headers:
    return {} if wait is None else {"retry-after": str(max(1, math.ceil(wait - ROUNDING)))}


def durations(level: LimitLevel, _wait: float | None, _now: float) -> Headers:
    """As OpenAI writes them: milliseconds."""
    return {
        "x-ratelimit-limit-requests": _whole(level.limit),
        "x-ratelimit-remaining-requests": _whole(level.remaining),
        "x-ratelimit-reset-requests": f"{math.ceil(level.full_in * 1000 - ROUNDING)}ms",
    }


def ietf(level: LimitLevel, wait: float | None, now: float) -> Headers:
    """As the IETF fields without a window: whole seconds, rounded up."""
    state = f"limit={_whole(level.limit)}, remaining={_whole(level.remaining)}, reset={math.ceil(level.full_in)}"
    return {"ratelimit": state} | retry_after(level, wait, now)


def dates(level: LimitLevel, wait: float | None, now: float) -> Headers:
    """As Anthropic writes them: instants in whole seconds."""
    at = datetime.datetime.fromtimestamp(math.ceil(WALL + now + level.full_in), datetime.UTC)
    return {
        "anthropic-ratelimit-requests-limit": _whole(level.limit),
        "anthropic-ratelimit-requests-remaining": _whole(level.remaining),
        "anthropic-ratelimit-requests-reset": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    } | retry_after(level, wait, now)


@dataclass
class Drive:
    """What happened: when calls started, and which were admitted and refused."""

    started: list[float] = field(default_factory=list)
    admitted: list[float] = field(default_factory=list)  # when they arrived
    refused: list[float] = field(default_factory=list)
    widest: int = 0  # the most calls at once
    now: float = 0.0

    def admitted_between(self, begin: float, end: float) -> int:
        return sum(begin <= at < end for at in self.admitted)


def drive(
    pool: AdaptivePool,
    limiter: Limiter | Mapping[str, Limiter],
    *,
    until: float,
    style: Style = silent,
    latency: float = 0.05,
    provider: str | None = None,
    other_gap: float = math.inf,
    calls: int = 1_000_000,
) -> Drive:
    """Call as often as the pool allows until that instant; another client takes one every *other_gap* seconds.

    Keys share the *limiter*, or each has its own, by name.
    """
    limiters = limiter if isinstance(limiter, Mapping) else dict.fromkeys(pool.keys, limiter)
    seen, chance = Drive(), random.Random(1)
    agenda: list[tuple[float, int, Grant, int, Headers]] = []
    number, in_flight, others_at = 0, 0, other_gap / 2
    now = 0.0
    while True:
        while calls and (grant := pool.acquire(PLAIN, None, now)) is not None:
            number, in_flight, calls = number + 1, in_flight + 1, calls - 1
            assert invariants.r7_no_limit_survives_the_calls_against_it(grant.key.quota, now) is None
            seen.started.append(now)
            seen.widest = max(seen.widest, in_flight)
            heapq.heappush(agenda, (now + chance.uniform(0.0, TRAVEL), number, grant, 0, {}))
        ready = pool.earliest_start(PLAIN, now) if calls else FOREVER
        following = min(ready, agenda[0][0] if agenda else FOREVER)
        if following > until:
            seen.now = now
            return seen
        now = max(now, following)
        if not agenda or agenda[0][0] > now:
            continue
        _, place, grant, status, headers = heapq.heappop(agenda)
        if status:
            signal = classify(status, headers, None, now=WALL + now, provider=provider)
            pool.report(grant, signal, now)
            pool.release(grant, now)
            in_flight -= 1
            continue
        while others_at <= now:
            for each in {id(each): each for each in limiters.values()}.values():
                each.take(1.0, others_at)  # it comes first
            others_at += other_gap
        own = limiters[grant.key.name]
        admitted = own.admit(now)
        (seen.admitted if admitted else seen.refused).append(now)
        headers = style(own.level(now), None if admitted else own.retry_in(now), now)
        took = latency * chance.uniform(0.95, 1.05) if admitted else REFUSAL_TIME
        heapq.heappush(agenda, (now + took, place, grant, 200 if admitted else 429, headers))
