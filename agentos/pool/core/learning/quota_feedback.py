"""What one quota learns from an answer. Done to its record alone, so that a store can do it in one step."""

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

# A refusal that names no delay: at first this long; half as long again each time nothing was admitted between.
FIRST_COOLDOWN = 1.0
_LONGER, _LONGEST_REST = 1.5, 600.0
# After so long a rest one request goes first.
_PROBE_FROM = 60.0
# So many refusals, none of them longer ago than this, before a limit that somebody stated is doubted.
_STRIKES, _STRUCK_LATELY = 3, 600.0
_PATTERN = frozenset("*?[")
# A quota has so many limits at most, by what answers tell. One that names a new one each time is not to be believed.
_MOST_LEARNED = 128


def find_scope(grant: Grant, signal: Signal) -> str | None:
    """The model family an answer is about; None: the whole quota, since the lease or the provider named none."""
    if grant.model is None or not signal.scoped:
        return None
    family = get_family(grant.model)
    return None if _PATTERN & set(family) else family  # a name that would stand for others, too


def cool_down(quota: Quota, until: float, scope: str | None, why: str, now: float, *, probe: bool = False) -> None:
    """Let nothing start before *until*; with *probe*, or after a long rest, one request goes first then."""
    for state in quota.limits:
        state.usage.silent = 0  # a request that was refused has no usage to report
        if isinstance(state, AdaptiveRate) and scope in (None, state.scope):
            state.hold_until(until)
    if until > now:
        gate = Gate.COOLING if until - now <= PARKED_FROM else Gate.PARKED
        quota.block(scope, Block(gate, until, now, why, probe or until - now >= _PROBE_FROM))


# -- how much is left -------------------------------------------------------------------------------------------------


def apply_readings(grant: Grant, signal: Signal, now: float) -> bool:
    """Set the limits right by what an answer tells. Whether that explains a refusal: something is used up."""
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
    window = "" if reading.window is None else f" per {per:g}s"  # where that is a guess, it may change
    for stated in _declared_limits(grant):
        # What was stated is kept to, whatever the provider would allow. Of use by others it knows more than we do.
        if isinstance(stated, Bucket) and stated.limit.dimension == reading.dimension and stated.limit.per == per:
            stated.drain(remaining, grant.granted_at)
    scope = find_scope(grant, signal)
    name = f"told {reading.dimension}{window} {scope or ''}".rstrip()
    told = quota.learned.get(name)
    if not isinstance(told, ReportedLimit):
        if len(quota.learned) >= _MOST_LEARNED:
            return remaining < 1
        told = ReportedLimit(reading.dimension, scope, limit, per)
        told.usage.set_aside = told.dimension != REQUESTS  # until somebody says what requests cost
        quota.learn(name, told)
        quota.add_history(now, _lesson(reading, limit, per))
        others = sum(key.leases for key in quota.keys) - 1  # they may or may not be counted in what remains
        since = float(others) if told.dimension == REQUESTS else 0.0
    else:
        stamp = _stamp(grant, told)
        if stamp is None:
            return remaining < 1  # it began before the limit was known
        since = told.taken_since(stamp)
        if told.limit.amount != limit:
            quota.add_history(now, _lesson(reading, limit, per))
    told.apply_reading(limit, per, remaining, grant.granted_at, since)
    return remaining < 1 or reading.dimension in signal.dimensions


def _lesson(reading: Reading, limit: float, per: float) -> str:
    return f"limit of {format_number(limit)} {reading.dimension} in {per:g}s, told by {reading.source}"


def _declared_limits(grant: Grant) -> list[LimitState]:
    """The limits that somebody stated, and that this lease falls under."""
    return [state for state in grant.key.quota.limits_for(grant.model) if not state.learned]


def _stamp(grant: Grant, state: LimitState) -> tuple[float, float] | None:
    return next((draw[3] for draw in grant.draws if draw[0] is state), None)


# -- too many ---------------------------------------------------------------------------------------------------------


def apply_rate_limit(grant: Grant, signal: Signal, starts_a_second: float, now: float) -> None:
    """A call was refused. *starts_a_second* is how fast leases of this quota began of late."""
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
    """Whether a refusal that nothing explains is to be learned from as one of too many a minute."""
    quota = grant.key.quota
    if at_once and quota.concurrency is not None and quota.concurrency.known:
        return False
    tokens = any(dimension != DIMENSIONS[REQUESTS] for dimension in signal.dimensions)
    stated = [state for state in _declared_limits(grant) if (state.dimension != REQUESTS) == tokens]
    for state in stated:
        if isinstance(state, Bucket):
            state.drain(0.0, grant.granted_at)  # the provider counts more than we do
    if not stated:
        return True
    if grant.granted_at > quota.struck_at:  # else one of a burst that is known already
        quota.strikes = 1 if now - quota.struck_at > _STRUCK_LATELY else quota.strikes + 1
        quota.struck_at = now
    return quota.strikes >= _STRIKES


def _learn_rate(grant: Grant, scope: str | None, signal: Signal, starts_a_second: float, now: float) -> float | None:
    """Learn from a refusal how fast is too fast. How long to rest; None: nobody knows."""
    quota = grant.key.quota
    pace = quota.learned.get(_rate_name(scope))
    if not isinstance(pace, AdaptiveRate):
        get_adaptive_rate(quota, scope, starts_a_second, now, lag=now - grant.granted_at)
        quota.add_history(now, f"looking for the rate: refused ({signal.why})")
        return None
    stamp = _stamp(grant, pace)
    if stamp is None or not pace.on_refusal(stamp, grant.granted_at, now):
        return 0.0  # it began before the refusal we know of
    quota.add_history(now, f"{pace}: refused ({signal.why})")
    if pace.row == 0:
        return min(FIRST_COOLDOWN, 3.0 / pace.rate)
    return float(min(_LONGEST_REST, FIRST_COOLDOWN * _LONGER ** min(pace.row - 1, 20)))


def get_adaptive_rate(
    quota: Quota, scope: str | None, starts_a_second: float, now: float, lag: float = 0.0
) -> AdaptiveRate:
    """The pace of a quota; a new one, if none was known."""
    pace = quota.learned.get(_rate_name(scope))
    if not isinstance(pace, AdaptiveRate):
        pace = AdaptiveRate(scope, now, starts_a_second, lag)
        quota.learn(_rate_name(scope), pace)
    return pace


def _rate_name(scope: str | None) -> str:
    return f"pace {scope or ''}".rstrip()


def _nothing_admitted(quota: Quota) -> bool:
    """Whether calls were refused again and again, with none admitted between: then one should go first."""
    return any(isinstance(state, AdaptiveRate) and state.row for state in quota.learned.values())


def slow_down(grant: Grant, signal: Signal, starts_a_second: float, now: float) -> None:
    """Traffic grew too fast: half of what it was, once for each burst."""
    quota = grant.key.quota
    scope = find_scope(grant, signal)
    known = isinstance(quota.learned.get(_rate_name(scope)), AdaptiveRate)
    pace = get_adaptive_rate(quota, scope, starts_a_second, now)
    if pace.slow_down(_stamp(grant, pace), starts_a_second, now, known=known):
        quota.add_history(now, f"{pace}: traffic grew too fast ({signal.why})")
    cool_down(quota, now + (FIRST_COOLDOWN if signal.delay is None else signal.delay), scope, signal.why, now)
