"""Estimate the rate of a quota from refusals: of requests, or of tokens if those are what is limited."""

from __future__ import annotations

import math
from typing import Any

from ....providers.signal import Signal
from ..cost import DIMENSIONS, REQUESTS, TOKENS
from ..limits.base import LimitState
from ..limits.bucket import Bucket
from ..records import Grant, Quota
from .adaptive_rate import AdaptiveRate
from .reported import ReportedLimit
from .reset_evidence import BUCKET

# Cooldown after a refusal without a delay, at least while nothing is admitted.
FIRST_COOLDOWN = 1.0
# A search starts at a reported rate that is doubted, divided by this.
_DOUBTFUL = 8.0
# Share of its amount that a bucket must hold at once to lose nothing in short pauses.
_HOLDS_ENOUGH = 0.6
# Seconds of its rate that a bucket of tokens holds: providers have from a few to sixty.
_USUAL_BURST = 20.0
# The sum of a sequential test at which refusals are taken to be about tokens: 200 to 1.
_ABOUT_TOKENS = math.log(200.0)


def learn_rate(
    grant: Grant, scope: str | None, signal: Signal, known: list[LimitState], starts_a_second: float, now: float
) -> float | None:
    """Learn the rate from a refusal. Return how long to cool down; None: unknown."""
    quota = grant.key.quota
    tokens_each = _find_token_cost(grant, scope, signal)
    adaptive = quota.learned.get(_rate_name(scope, tokens_each))
    if not isinstance(adaptive, AdaptiveRate):
        adaptive = get_adaptive_rate(quota, scope, starts_a_second, now, now - grant.granted_at, tokens_each)
        if tokens_each is not None:
            adaptive.search_from(_guess_tokens_a_second(quota, tokens_each, now) / tokens_each / 2)
            adaptive.anchor_left = adaptive.find_left((grant.cost[TOKENS] or tokens_each) / tokens_each, signal.delay)
        rates = [_calls_a_second(state, adaptive.unit) for state in known if _is_sure(state)]
        if tokens_each is not None and isinstance(mistaken := quota.learned.get(_rate_name(scope)), AdaptiveRate):
            quota.unlearn([_rate_name(scope)])  # it was estimated from refusals that were about tokens
            adaptive.rate = max(adaptive.rate, mistaken.rate / 2)
        if rates:
            # One that holds little loses what flows in while calls are held back, as a window does.
            buckets = [state for state in known if isinstance(state, Bucket)]
            beside_bucket = any(state.largest >= _HOLDS_ENOUGH * state.limit.amount for state in buckets)
            adaptive.begin_at(min(rates), grant.granted_at, beside_bucket=beside_bucket)
            if tokens_each is None:
                adaptive.lower_to(*quota.doubt.measure(adaptive.rate))
            return min(FIRST_COOLDOWN, 3.0 / adaptive.rate)
        doubtful = [_calls_a_second(state, adaptive.unit) for state in known if state.limit.per != "day"]
        adaptive.rate = max(adaptive.rate, min(doubtful, default=0.0) / _DOUBTFUL)
        quota.add_history(now, f"looking for the rate: refused ({signal.why})")
        return None
    if any(_is_bucket(state) for state in known):
        adaptive.overflowed = False  # a known limit held the calls back: the provider's bucket was not full
    stamp = find_stamp(grant, adaptive)
    if stamp is None or not adaptive.on_refusal(stamp, grant.granted_at, now, signal.delay):
        mark_as_untaken(grant, adaptive)
        return 0.0  # it began before the known refusal
    mark_as_untaken(grant, adaptive)
    quota.add_history(now, f"{adaptive}: refused ({signal.why})")
    if adaptive.row == 0:
        return min(FIRST_COOLDOWN, (3.0 if adaptive.searching or adaptive.dimension else 1.0) / adaptive.rate)
    return max(FIRST_COOLDOWN, adaptive.cooldown(now))


def _is_bucket(state: LimitState) -> bool:
    """Return True for a limit that refills continuously: calls that it holds back leave nothing unused for long."""
    return isinstance(state, Bucket) or (isinstance(state, ReportedLimit) and state.shape == BUCKET)


def _guess_tokens_a_second(quota: Quota, tokens_each: float, now: float) -> float:
    """Return the rate of a bucket of the usual size that was full and is empty after the calls of the last minute."""
    in_flight = sum(key.leases for key in quota.keys) - 1
    admitted, elapsed = tokens_each * max(1, in_flight), 0.0
    if quota.recent_tokens is not None and quota.recent_tokens.entries:
        admitted += quota.recent_tokens.used
        elapsed = max(0.0, now - quota.recent_tokens.entries[0][0])
    return admitted / (elapsed + _USUAL_BURST)


def _is_sure(state: LimitState) -> bool:
    """Return True for a stated rate, or a reported one that has proved true."""
    return state.limit.per != "day" and not (isinstance(state, ReportedLimit) and not state.is_sure)


def _find_token_cost(grant: Grant, scope: str | None, signal: Signal) -> float | None:
    """Return the tokens of a usual call, if a refusal is about tokens and that is known; None: it counts requests.

    Where the answer does not say which, the sizes of refused calls tell. A limit on requests refuses any call, one on
    tokens a call of twice the size twice as often: the logarithm of its size by the mean is what a refusal counts in a
    sequential test. The sum never falls far below zero, since another limit may bind later; at zero itself, chance
    would reach the other end in a night of refusals.
    """
    quota = grant.key.quota
    mean = None if quota.costs is None else quota.costs.mean
    if mean is None or DIMENSIONS[REQUESTS] in signal.dimensions:
        return None
    if not signal.dimensions and not isinstance(quota.learned.get(_rate_name(scope, mean)), AdaptiveRate):
        cost = grant.cost[TOKENS]
        if cost:
            quota.token_suspicion = max(-_ABOUT_TOKENS, quota.token_suspicion + math.log(cost / mean))
        if quota.token_suspicion < _ABOUT_TOKENS:
            return None
    return mean


def _calls_a_second(state: LimitState, tokens_each: float) -> float:
    """Return a stated or reported rate in usual calls."""
    rate = state.limit.amount / float(state.limit.per)
    return rate if state.dimension == REQUESTS else rate / tokens_each


def get_adaptive_rate(
    quota: Quota,
    scope: str | None,
    starts_a_second: float,
    now: float,
    lag: float = 0.0,
    tokens_each: float | None = None,
) -> AdaptiveRate:
    """Return the adaptive rate of a quota, of tokens if their usual number is given; create it if there is none."""
    name = _rate_name(scope, tokens_each)
    adaptive = quota.learned.get(name)
    if not isinstance(adaptive, AdaptiveRate):
        adaptive = AdaptiveRate(scope, now, starts_a_second, lag, tokens_each)
        if quota.costs is not None and tokens_each is not None:
            adaptive.usage.unpack(quota.costs.pack())
        quota.learn(name, adaptive)
    return adaptive


def find_rates(quota: Quota, scope: str | None) -> list[AdaptiveRate]:
    """Return the adaptive rates of a quota, of requests and of tokens."""
    found = (quota.learned.get(name) for name in (_rate_name(scope), _rate_name(scope, 1.0)))
    return [each for each in found if isinstance(each, AdaptiveRate)]


def _rate_name(scope: str | None, tokens_each: float | None = None) -> str:
    return f"pace {'' if tokens_each is None else 'of tokens '}{scope or ''}".rstrip()


def admits_nothing(quota: Quota, delay: float) -> bool:
    """Return True if calls were refused repeatedly with none admitted between: one should then go first."""
    if quota.concurrency is not None and quota.concurrency.latency > delay:
        return False  # its answer would take longer than the cooldown, and not many start at once in any case
    return any(isinstance(state, AdaptiveRate) and state.row for state in quota.learned.values())


def has_rate(quota: Quota, scope: str | None) -> bool:
    """Return True if a rate of requests is estimated."""
    return isinstance(quota.learned.get(_rate_name(scope)), AdaptiveRate)


def find_stamp(grant: Grant, state: LimitState) -> Any:
    """Return the stamp of what a lease took from a limit; None if it took nothing."""
    return next((draw[3] for draw in grant.draws if draw[0] is state), None)


def mark_as_untaken(grant: Grant, state: LimitState) -> None:
    """Note that what was taken was given back, so that reported usage does not give it back again."""
    for place, (drawn, _, guessed, stamp) in enumerate(grant.draws):
        if drawn is state:
            grant.draws[place] = (state, 0.0, guessed, stamp)  # type: ignore[index]  # not empty, so it is a list
