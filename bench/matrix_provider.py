"""The provider of the matrix: limiters, a second client, and answers in the style of a variant; and the least time."""

from __future__ import annotations

import datetime
import heapq
import itertools
import json
import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from matrix_variants import DAY, SLOTS, QuotaScene, Scene

from agentos.simulator.limiters import ROUNDING, Limiter, LimitLevel, build_limiter

REFUSAL_TIME = 0.02
JITTER = 0.05  # of the latency, up and down
TRAVEL = 0.002  # seconds until a call arrives, at most

Headers = tuple[tuple[str, str], ...]


class Answer(NamedTuple):
    status: int
    headers: Headers
    body: str | None
    seconds: float
    retry_in: float | None  # what a client reads that knows Retry-After alone


class SharedLimiter:
    """A limiter that a second client uses as well: a third of it, evenly, and before others."""

    def __init__(self, quota: QuotaScene, scene: Scene, number: int) -> None:
        variant = scene.variant
        self.limiter: Limiter = build_limiter(
            variant.algorithm,
            quota.amount,
            scene.window,
            capacity=quota.capacity,
            phase=quota.phase,
            count_rejections=variant.rejections == "counted",
        )
        self._chance = random.Random(f"{variant.name} other {number}")
        self._gap = 3 * scene.window / quota.amount
        self._next = self._chance.random() if variant.others == "third" else math.inf  # in gaps
        self._other_at = self._next * self._gap

    def advance(self, now: float) -> Limiter:
        """Let the second client take what is its own until *now*. It never makes a call that would be refused."""
        while self._other_at <= now:
            wait = self.limiter.wait(1.0, self._other_at)
            if wait > 0:
                self._other_at += wait
                continue
            self.limiter.take(1.0, self._other_at)
            self._next += 1.0
            self._other_at = max(self._other_at, (self._next + self._chance.uniform(0.0, 0.05)) * self._gap)
        return self.limiter


class MatrixProvider:
    def __init__(self, scene: Scene, seed: str = "") -> None:
        self.scene = scene
        self.admitted = self.refused = 0
        self._chance = random.Random(f"{scene.variant.name} provider {seed}")
        self._quotas = [SharedLimiter(quota, scene, number) for number, quota in enumerate(scene.quotas)]
        self._by_key = {key: number for number, quota in enumerate(scene.quotas) for key in quota.keys}
        self._stale: dict[int, tuple[float, float]] = {}  # by quota: when it was seen, and what was left
        self._style = _STYLES[scene.variant.headers]

    def travel(self) -> float:
        return self._chance.uniform(0.0, TRAVEL)

    def arrive(self, key: int, now: float) -> Answer:
        number = self._by_key[key]
        limiter = self._quotas[number].advance(now)
        admitted = limiter.admit(now)
        wait = None if admitted else limiter.retry_in(now)
        headers, body = self._style(self, number, limiter.level(now), wait, now)
        jitter = self._chance.uniform(1 - JITTER, 1 + JITTER)
        if admitted:
            self.admitted += 1
            return Answer(200, headers, None, self.scene.latency * jitter, None)
        self.refused += 1
        stated = next((float(value) for name, value in headers if name == "retry-after"), None)
        if self.scene.variant.headers == "gemini" and wait is not None:
            stated = float(math.ceil(wait))
        return Answer(429, headers, body, REFUSAL_TIME * jitter, stated)

    # -- styles -----------------------------------------------------------------------------------------------

    def none(self, _number: int, _level: LimitLevel, _wait: float | None, _now: float) -> tuple[Headers, str]:
        return (), _PLAIN

    def retry_after(self, _number: int, _level: LimitLevel, wait: float | None, _now: float) -> tuple[Headers, str]:
        return _retry_after(wait), _PLAIN

    def openai(self, _number: int, level: LimitLevel, wait: float | None, _now: float) -> tuple[Headers, str]:
        headers = _x_ratelimit(level.limit, level.remaining, level.full_in)
        if wait is not None and self.scene.polite:
            headers += (*_retry_after(wait), ("retry-after-ms", str(math.ceil(wait * 1000))))
        return headers, _OPENAI

    def anthropic(self, _number: int, level: LimitLevel, wait: float | None, now: float) -> tuple[Headers, str]:
        at = datetime.datetime.fromtimestamp(math.ceil(self.scene.wall + now + level.full_in), datetime.UTC)
        headers = (
            ("anthropic-ratelimit-requests-limit", _whole(level.limit)),
            ("anthropic-ratelimit-requests-remaining", _whole(level.remaining)),
            ("anthropic-ratelimit-requests-reset", at.strftime("%Y-%m-%dT%H:%M:%SZ")),
        )
        return headers + _retry_after(wait), _ANTHROPIC

    def gemini(self, _number: int, level: LimitLevel, wait: float | None, _now: float) -> tuple[Headers, str]:
        """Answer as Gemini does: nothing on success. Only a day that ends at midnight is called a day."""
        if wait is None:
            return (), ""
        scene = self.scene
        daily = scene.window == DAY and scene.variant.algorithm == "fixed"
        per = "PerDay" if daily else {1.0: "PerSecond", 60.0: "PerMinute"}.get(scene.window, "")
        violation = {
            "quotaMetric": "generativelanguage.googleapis.com/generate_content_requests",
            "quotaId": f"GenerateRequests{per}PerProjectPerModel",
            "quotaValue": _whole(level.limit),
        }
        details = [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{math.ceil(wait)}s"},
        ]
        error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded.", "details": details}
        return (), json.dumps({"error": error})

    def ietf(self, number: int, level: LimitLevel, wait: float | None, _now: float) -> tuple[Headers, str]:
        return self._ietf(number, level, 1.0) + _retry_after(wait), _PLAIN

    def wrong_window(self, number: int, level: LimitLevel, _wait: float | None, _now: float) -> tuple[Headers, str]:
        return self._ietf(number, level, self.scene.wrong_factor), _PLAIN

    def _ietf(self, number: int, level: LimitLevel, factor: float) -> Headers:
        """Return the policy as an operator writes it, whatever the limiter holds at once."""
        window = max(1, round(self.scene.window * factor))
        policy = f'"default";q={self.scene.quotas[number].amount};w={window}'
        state = f'"default";r={_whole(level.remaining)};t={math.ceil(level.full_in * factor - ROUNDING)}'
        return (("ratelimit-policy", policy), ("ratelimit", state))

    def stale_remaining(self, number: int, level: LimitLevel, _wait: float | None, now: float) -> tuple[Headers, str]:
        seen_at, remaining = self._stale.get(number, (-math.inf, 0.0))
        if now - seen_at > max(2.0, self.scene.window / 2):
            seen_at, remaining = self._stale[number] = now, level.remaining
        return _x_ratelimit(level.limit, remaining, level.full_in), _OPENAI

    def other_reset(self, _number: int, level: LimitLevel, _wait: float | None, now: float) -> tuple[Headers, str]:
        reset = self.scene.wrong_reset
        return _x_ratelimit(level.limit, level.remaining, -reset - now % -reset if reset < 0 else reset), _OPENAI


_STYLES = {
    "none": MatrixProvider.none,
    "retry-after": MatrixProvider.retry_after,
    "openai": MatrixProvider.openai,
    "anthropic": MatrixProvider.anthropic,
    "gemini": MatrixProvider.gemini,
    "ietf": MatrixProvider.ietf,
    "wrong-window": MatrixProvider.wrong_window,
    "stale-remaining": MatrixProvider.stale_remaining,
    "other-reset": MatrixProvider.other_reset,
}
# The host's dialect, for those who know the address.
HOSTS = {"openai": "openai", "stale-remaining": "openai", "other-reset": "openai", "anthropic": "anthropic"}

_PLAIN = '{"message": "Too many requests"}'
_OPENAI = (
    '{"error": {"message": "Rate limit reached for requests", "type": "requests", "param": null, '
    '"code": "rate_limit_exceeded"}}'
)
_ANTHROPIC = '{"type": "error", "error": {"type": "rate_limit_error", "message": "Too many requests"}}'


def _retry_after(wait: float | None) -> Headers:
    return () if wait is None else (("retry-after", str(max(1, math.ceil(wait - ROUNDING)))),)


def _x_ratelimit(limit: float, remaining: float, reset: float) -> Headers:
    return (
        ("x-ratelimit-limit-requests", _whole(limit)),
        ("x-ratelimit-remaining-requests", _whole(remaining)),
        ("x-ratelimit-reset-requests", go_duration(reset)),
    )


def _whole(number: float) -> str:
    return str(math.floor(number + ROUNDING))


def go_duration(seconds: float) -> str:
    """Return seconds as Go prints a duration, in whole milliseconds: 120ms, 1.5s, 6m0s."""
    milliseconds = math.ceil(seconds * 1000 - ROUNDING)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s" if rest < 1e5 else f"{rest / 1000:.3f}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


# -- the bound --------------------------------------------------------------------------------------------------------


def least_time(scene: Scene) -> float:
    """Return when a client has all its answers that knows all: it calls as soon as limiter and slots permit."""
    ends = heapq.merge(*(_ends(scene, number) for number in range(len(scene.quotas))))
    return next(end for count, end in enumerate(ends, 1) if count == scene.calls)


def calls_until(scene: Scene, instant: float) -> int:
    """Return how many answers that client could have until then."""
    return sum(
        sum(1 for _ in itertools.takewhile(lambda end: end <= instant, _ends(scene, number)))
        for number in range(len(scene.quotas))
    )


def _ends(scene: Scene, number: int) -> Iterator[float]:
    """Yield when the calls of one quota end, in order."""
    quota = scene.quotas[number]
    shared = SharedLimiter(quota, scene, number)
    slots = [0.0] * (SLOTS * len(quota.keys))  # when each is free
    now = 0.0
    while True:
        now = max(now, slots[0])
        limiter = shared.advance(now)
        wait = limiter.wait(1.0, now)
        if wait > 0:
            now += wait
            continue
        limiter.take(1.0, now)
        heapq.heapreplace(slots, now + scene.latency)
        yield now + scene.latency
