"""Update one quota after an answer. Only its record changes, so that a store can do it in one step."""

from __future__ import annotations

from ....providers.signal import PARKED_FROM, Reading, Signal
from ..cost import DIMENSIONS, REQUESTS
from ..limits.base import LimitState, format_number
from ..limits.bucket import Bucket
from ..model_family import get_family
from ..records import Block, Grant, Quota
from ..states import Gate
from .adaptive_rate import AdaptiveRate
from .reported import ReportedLimit, infer_window

# Cooldown after a refusal without a delay; longer by this factor each time nothing was admitted between.
FIRST_COOLDOWN = 1.0
_LONGER, _LONGEST_COOLDOWN = 1.5, 600.0
# After a cooldown of this length one request goes first as a probe.
_PROBE_FROM = 60.0
# A stated limit is doubted after this many refusals within this many seconds of each other.
_STRIKES, _STRUCK_LATELY = 3, 600.0
_PATTERN = frozenset("*?[")
# Most limits that answers can add to a quota, against answers that name a new one each time.
_MOST_LEARNED = 128


def find_scope(grant: Grant, signal: Signal) -> str | None:
    """Return the model family that an answer concerns; None: the whole quota."""
    if grant.model is None or not signal.scoped:
        return None
    family = get_family(grant.model)
    return None if _PATTERN & set(family) else family  # it would match other models


def cool_down(quota: Quota, until: float, scope: str | None, why: str, now: float, *, probe: bool = False) -> None:
    """Let nothing start before *until*; with *probe*, or after a long cooldown, one request goes first then."""
    for state in quota.limits:
        state.usage.silent = 0  # a refused request has no usage to report
        if isinstance(state, AdaptiveRate) and scope in (None, state.scope):
            state.hold_until(until)
    if until > now:
        gate = Gate.COOLING if until - now <= PARKED_FROM else Gate.PARKED
        quota.block(scope, Block(gate, until, now, why, probe or until - now >= _PROBE_FROM))


# -- reported amounts -------------------------------------------------------------------------------------------------


def apply_readings(grant: Grant, signal: Signal, now: float) -> bool:
    """Apply the limits that an answer reports. Return True if one is used up, which explains a refusal."""
    used_up = False
    for reading in signal.readings:
        if reading.remaining is None or reading.dimension not in DIMENSIONS:
            continue
        if reading.limit is not None and reading.limit > 0:
            used_up |= _apply_reading(grant, signal, reading, reading.limit, reading.remaining, now)
        elif reading.remaining <= 0 and reading.resets_in is not None and reading.resets_in > 0:
            why = f"nothing left: {reading.source}"
            cool_down(grant.key.quota, now + reading.resets_in, find_scope(grant, signal), why, now)
            used_up = True
    return used_up


def _apply_reading(grant: Grant, signal: Signal, reading: Reading, limit: float, remaining: float, now: float) -> bool:
    quota = grant.key.quota
    per = reading.window or infer_window(limit, remaining, reading.resets_in)
    window = "" if reading.window is None else f" per {per:g}s"  # an inferred window may change
    for stated in _declared_limits(grant):
        # A stated limit stays in force even if the provider allows more. The provider's count includes other users.
        if isinstance(stated, Bucket) and stated.limit.dimension == reading.dimension and stated.limit.per == per:
            stated.drain(remaining, grant.granted_at)
    scope = find_scope(grant, signal)
    name = f"told {reading.dimension}{window} {scope or ''}".rstrip()
    reported = quota.learned.get(name)
    if not isinstance(reported, ReportedLimit):
        if len(quota.learned) >= _MOST_LEARNED:
            return remaining < 1
        reported = ReportedLimit(reading.dimension, scope, limit, per)
        reported.usage.set_aside = reported.dimension != REQUESTS  # until the cost of requests is known
        quota.learn(name, reported)
        quota.add_history(now, _lesson(reading, limit, per))
        others = sum(key.leases for key in quota.keys) - 1  # they may or may not be included in what remains
        since = float(others) if reported.dimension == REQUESTS else 0.0
    else:
        stamp = _stamp(grant, reported)
        if stamp is None:
            return remaining < 1  # the lease began before the limit was known
        since = reported.taken_since(stamp)
        if reported.limit.amount != limit:
            quota.add_history(now, _lesson(reading, limit, per))
    reported.apply_reading(limit, per, remaining, grant.granted_at, since)
    return remaining < 1 or reading.dimension in signal.dimensions


def _lesson(reading: Reading, limit: float, per: float) -> str:
    return f"limit of {format_number(limit)} {reading.dimension} in {per:g}s, told by {reading.source}"


def _declared_limits(grant: Grant) -> list[LimitState]:
    """Return the stated limits that apply to this lease."""
    return [state for state in grant.key.quota.limits_for(grant.model) if not state.learned]


def _stamp(grant: Grant, state: LimitState) -> tuple[float, float] | None:
    return next((draw[3] for draw in grant.draws if draw[0] is state), None)


# -- refusals ---------------------------------------------------------------------------------------------------------


def apply_rate_limit(grant: Grant, signal: Signal, starts_a_second: float, now: float) -> None:
    """Learn from a refused call. *starts_a_second* is the recent start rate of this quota."""
    quota = grant.key.quota
    scope = find_scope(grant, signal)
    explained = apply_readings(grant, signal, now)
    at_once = _too_many_at_once(grant, signal, now)
    delay = signal.delay
    if not explained and _is_the_rate(grant, signal, at_once, now):
        found = _learn_rate(grant, scope, signal, starts_a_second, now)
        delay = found if delay is None else delay
    if delay is None:
        delay = 0.0 if explained or at_once else FIRST_COOLDOWN
    cool_down(quota, now + delay, scope, signal.why, now, probe=_nothing_admitted(quota))


def _too_many_at_once(grant: Grant, signal: Signal, now: float) -> bool:
    quota = grant.key.quota
    if not grant.key.auto or quota.concurrency is None:
        return False
    before = quota.concurrency.slots
    found = quota.concurrency.on_refusal(grant.token)
    if quota.concurrency.slots != before:
        quota.add_history(now, f"slots {quota.concurrency.slots}: more at once were refused ({signal.why})")
    return found


def _is_the_rate(grant: Grant, signal: Signal, at_once: bool, now: float) -> bool:
    """Return True if an unexplained refusal is to be attributed to the request rate."""
    quota = grant.key.quota
    if at_once and quota.concurrency is not None and quota.concurrency.known:
        return False
    tokens = any(dimension != DIMENSIONS[REQUESTS] for dimension in signal.dimensions)
    stated = [state for state in _declared_limits(grant) if (state.dimension != REQUESTS) == tokens]
    for state in stated:
        if isinstance(state, Bucket):
            state.drain(0.0, grant.granted_at)  # the provider counts more than this pool does
    if not stated:
        return True
    if grant.granted_at > quota.struck_at:  # else its burst is already known
        quota.strikes = 1 if now - quota.struck_at > _STRUCK_LATELY else quota.strikes + 1
        quota.struck_at = now
    return quota.strikes >= _STRIKES


def _learn_rate(grant: Grant, scope: str | None, signal: Signal, starts_a_second: float, now: float) -> float | None:
    """Learn the rate from a refusal. Return how long to cool down; None: unknown."""
    quota = grant.key.quota
    adaptive = quota.learned.get(_rate_name(scope))
    if not isinstance(adaptive, AdaptiveRate):
        get_adaptive_rate(quota, scope, starts_a_second, now, lag=now - grant.granted_at)
        quota.add_history(now, f"looking for the rate: refused ({signal.why})")
        return None
    stamp = _stamp(grant, adaptive)
    if stamp is None or not adaptive.on_refusal(stamp, grant.granted_at, now):
        return 0.0  # it began before the known refusal
    quota.add_history(now, f"{adaptive}: refused ({signal.why})")
    if adaptive.row == 0:
        return min(FIRST_COOLDOWN, 3.0 / adaptive.rate)
    return float(min(_LONGEST_COOLDOWN, FIRST_COOLDOWN * _LONGER ** min(adaptive.row - 1, 20)))


def get_adaptive_rate(
    quota: Quota, scope: str | None, starts_a_second: float, now: float, lag: float = 0.0
) -> AdaptiveRate:
    """Return the adaptive rate of a quota; create it if there is none."""
    adaptive = quota.learned.get(_rate_name(scope))
    if not isinstance(adaptive, AdaptiveRate):
        adaptive = AdaptiveRate(scope, now, starts_a_second, lag)
        quota.learn(_rate_name(scope), adaptive)
    return adaptive


def _rate_name(scope: str | None) -> str:
    return f"pace {scope or ''}".rstrip()


def _nothing_admitted(quota: Quota) -> bool:
    """Return True if calls were refused repeatedly with none admitted between: one should then go first."""
    return any(isinstance(state, AdaptiveRate) and state.row for state in quota.learned.values())


def slow_down(grant: Grant, signal: Signal, starts_a_second: float, now: float) -> None:
    """Halve the rate once per burst, because traffic grew too fast."""
    quota = grant.key.quota
    scope = find_scope(grant, signal)
    known = isinstance(quota.learned.get(_rate_name(scope)), AdaptiveRate)
    adaptive = get_adaptive_rate(quota, scope, starts_a_second, now)
    if adaptive.slow_down(_stamp(grant, adaptive), starts_a_second, now, known=known):
        quota.add_history(now, f"{adaptive}: traffic grew too fast ({signal.why})")
    cool_down(quota, now + (FIRST_COOLDOWN if signal.delay is None else signal.delay), scope, signal.why, now)
