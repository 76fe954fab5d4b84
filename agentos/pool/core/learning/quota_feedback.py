"""Update one quota after an answer. Only its record changes, so that a store can do it in one step."""

from __future__ import annotations

import math

from ....providers.signal import PARKED_FROM, Event, Reading, Signal
from ..cost import DIMENSIONS, REQUESTS
from ..limits.base import LimitState, format_number
from ..limits.bucket import Bucket
from ..limits.calendar import CalendarWindow
from ..limits.sliding import SlidingWindow
from ..model_family import get_family
from ..records import Block, Grant, LeaseRequest, Quota
from ..reservations import estimate_amount
from ..states import Gate
from .adaptive_rate import AdaptiveRate
from .hypothesis import Hypothesis
from .rate_feedback import (
    FIRST_COOLDOWN,
    admits_nothing,
    find_rates,
    find_stamp,
    get_adaptive_rate,
    has_rate,
    learn_rate,
    mark_as_untaken,
)
from .reported import USUAL_WINDOW, ReportedLimit
from .reset_evidence import BUCKET, WINDOW

# Admitted since the last refusal, if a long refusal means that a window is used up, not that it refills slowly.
_WHOLE_WINDOW = 8.0
# Calls that would flow in until a long refusal ends, at most, if it is for lack of the next one.
_REFILLS = 3.0
# After a cooldown of this length one request goes first as a probe.
_PROBE_FROM = 60.0
# A stated rate that differs by less from the reported one is the same.
_AS_FAST = 0.97
# What must be left of a known limit, at least and as a share, if its rate does not explain a refusal.
_ROOM, _ROOMY = 2.0, 0.2
# A delay that is only rounded up is not waited for, but not twice within this many times its length.
_ROUNDED_EVERY = 2.0
# After this many refusals in a row, wait as long again as this share of the time since the last admitted call.
_SEVERAL, _LONGER_BY, _LONGEST_STARVING = 4, 0.12, 3_600.0
# Seconds after which a reported limit is forgotten that other answers do not report; or its window, if that is longer.
_MENTIONED_LATELY = 60.0
# A stated limit and a reported one are the same limit if their amounts differ by this factor at most.
_SAME_LIMIT = 1.5
_DAY = 86_400.0
# Whose limits refill continuously, until their answers say otherwise.
_BUCKET_PROVIDERS = frozenset({"openai", "anthropic", "azure"})
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
    if signal.readings and signal.event is Event.OK:
        _forget_unmentioned(grant.key.quota, find_scope(grant, signal), now)
    return used_up


def _forget_unmentioned(quota: Quota, scope: str | None, now: float) -> None:
    """Forget limits that answers do not report any more, for example one that a single refusal named."""
    gone = [
        name
        for name, state in quota.learned.items()
        if isinstance(state, ReportedLimit)
        and state.scope == scope
        and now - state.mentioned_at > max(_MENTIONED_LATELY, state.per)
    ]
    if gone:
        quota.unlearn(gone)


def _apply_reading(grant: Grant, signal: Signal, reading: Reading, limit: float, remaining: float, now: float) -> bool:
    quota = grant.key.quota
    used_up = remaining < 1 or reading.dimension in signal.dimensions
    resets_in = reading.resets_in
    if reading.dated and resets_in is not None:
        resets_in += now - grant.granted_at - reading.overdue
    outdated = reading.dated and (resets_in is None or resets_in <= 0 or not (reading.resets_in or reading.overdue))
    reported = _find_reported(grant, signal, reading, limit, now, create=not outdated)
    if reported is None:
        return used_up
    reported.mentioned_at = now
    if outdated:
        return used_up
    stamp, refused = find_stamp(grant, reported), signal.event is not Event.OK
    if stamp is None and reported.confirmed:
        if refused and reported.dimension == REQUESTS:
            reported.give_back(1.0)
        return used_up  # the lease began before the limit was known
    if reported.confirmed and reported.limit.amount != limit:
        quota.add_history(now, f"limit of {format_number(limit)} {reading.dimension}, told by {reading.source}")
    others = sum(key.leases for key in quota.keys) - 1  # they may or may not be included in what remains
    in_flight = float(others) if reported.dimension == REQUESTS else 0.0
    # Dates have whole seconds.
    exact = False if reading.dated else None
    window = reading.window
    if window is None or reading.assumed:
        window = _find_stated_window(grant, reported.dimension, limit) or window
    reported.apply_reading(
        limit, remaining, resets_in, window, grant.granted_at, stamp, in_flight, exact=exact, refused=refused, now=now
    )
    _compare_with_stated(grant, reported, now)
    return used_up and reported.believed


def _find_stated_window(grant: Grant, dimension: int, amount: float) -> float | None:
    """Return the seconds of a stated limit of about that amount: its user knows better than a dialect's table."""
    for state in _declared_limits(grant):
        if state.dimension == dimension and amount <= _SAME_LIMIT * state.limit.amount <= _SAME_LIMIT**2 * amount:
            return _DAY if state.limit.per == "day" else float(state.limit.per)
    return None


def _find_reported(
    grant: Grant, signal: Signal, reading: Reading, limit: float, now: float, *, create: bool
) -> ReportedLimit | None:
    """Return the hypothesis that a reading is about; *create* it if there is none. None: there are too many."""
    quota, scope = grant.key.quota, find_scope(grant, signal)
    window = "" if reading.window is None else f" per {reading.window:g}s"
    name = f"told {reading.dimension}{window} {scope or ''}".rstrip()
    reported = quota.learned.get(name)
    if isinstance(reported, ReportedLimit):
        return reported
    if not create or len(quota.learned) >= _MOST_LEARNED:
        return None
    buckets = [state.limit for state in _declared_limits(grant) if isinstance(state, Bucket)]
    stated = any(limit in (bucket.amount, bucket.largest) for bucket in buckets)  # some report what it holds at once
    prior = BUCKET if stated or reading.resets_in is None or signal.provider in _BUCKET_PROVIDERS else WINDOW
    reported = ReportedLimit(reading.dimension, scope, limit, reading.window or USUAL_WINDOW, prior)
    reported.begin_count(now)
    reported.usage.set_aside = reported.dimension != REQUESTS  # until the cost of requests is known
    quota.learn(name, reported)
    quota.add_history(now, f"limit of {format_number(limit)} {reading.dimension}, told by {reading.source}")
    return reported


def _compare_with_stated(grant: Grant, reported: ReportedLimit, now: float) -> None:
    """Obey a reported limit if it is lower than the stated one; else it tells only how full that is at the provider."""
    if reported.believed:
        reported.obeyed = True
    else:
        _stop_obeying(grant.key.quota, reported, now)
    for stated in _declared_limits(grant):
        if stated.dimension != reported.dimension:
            continue
        if isinstance(stated, SlidingWindow) and _is_same_window(stated, reported):
            reported.obeyed = False  # the stated one counts the same, and its end is not rounded
        if not isinstance(stated, Bucket):
            continue
        as_fast = reported.believed_rate >= _AS_FAST / stated.seconds_each
        if as_fast and reported.shape == BUCKET and reported.limit.amount >= _AS_FAST * stated.largest:
            reported.obeyed = False
        elif reported.shape != BUCKET and reported.obeyed:
            continue  # it stands beside the stated limit, and is the better count
        if as_fast and reported.believed_rate * _AS_FAST <= 1.0 / stated.seconds_each and reported.believed:
            stated.follow(reported.left(now), now)


def _is_same_window(stated: SlidingWindow, reported: ReportedLimit) -> bool:
    """Return True if a reported window allows as much as a stated one, and nobody else uses it."""
    as_much = reported.limit.amount >= _AS_FAST * stated.limit.amount and reported.per <= stated.per
    if not as_much or reported.shape == BUCKET or stated.allowance.value < stated.limit.amount:
        return False
    began_at = (reported.renewed_at if reported.shape == WINDOW else reported.heard_at) - reported.per
    began_at -= reported.evidence.precision  # a reset may be rounded up
    own = sum(amount for at, amount in reported.starts.entries if at >= began_at)
    own -= reported.taken - reported.heard_taken  # by calls after the one that was answered
    return reported.limit.amount - reported.remaining <= own


def _stop_obeying(quota: Quota, reported: ReportedLimit, now: float) -> None:
    """Let a limit go that is not believed. If no other is known, an estimate starts at its rate: not all at once."""
    reported.obeyed = False
    if reported.dimension == REQUESTS and not any(
        state.obeyed and state.dimension == REQUESTS and state.scope in (None, reported.scope) for state in quota.limits
    ):
        get_adaptive_rate(quota, reported.scope, 0.0, now).begin_unrefused(reported.believed_rate)


def count_admitted(grant: Grant, now: float, *, timed: bool = True) -> None:
    """Count an admitted call as evidence; a hypothesis that it refutes is raised. *timed*: note how long it took."""
    quota = grant.key.quota
    if grant.granted_at > quota.refused_at:
        quota.refusals = 0
    quota.admitted_at = max(quota.admitted_at, grant.granted_at)
    probed = quota.probation and quota.find_probed_scopes(grant.model, grant.granted_at)
    for state, amount, _, stamp in grant.draws:
        if probed and isinstance(state, AdaptiveRate):
            state.on_probed(now)
        if isinstance(state, SlidingWindow):
            state.admit(stamp)
        elif isinstance(state, Bucket):
            if timed:
                state.note_latency(now - grant.granted_at)
        elif state.dimension != REQUESTS:
            continue  # how many tokens were admitted is known when they are settled
        elif isinstance(state, Hypothesis) and state.on_admitted(amount, grant.granted_at, now, stamp[1]):
            grant.key.quota.add_history(now, f"{_describe(state)}: more was admitted than it allowed")
        if isinstance(state, ReportedLimit) and not state.believed:
            _stop_obeying(quota, state, now)


def _describe(state: LimitState) -> str:
    return f"{format_number(state.limit.amount)} {state.limit.dimension} in {state.limit.per:g}s"


def _declared_limits(grant: Grant) -> list[LimitState]:
    """Return the stated limits that apply to this lease."""
    return [state for state in grant.key.quota.limits_for(grant.model) if not state.learned]


def _amount(grant: Grant, state: LimitState) -> float:
    return next((draw[1] for draw in grant.draws if draw[0] is state), 0.0)


# -- refusals ---------------------------------------------------------------------------------------------------------


def apply_rate_limit(
    grant: Grant, signal: Signal, starts_a_second: float, now: float, survived_at: float = -math.inf
) -> None:
    """Learn from a refused call. *starts_a_second* is the recent start rate of this quota.

    *survived_at* is the last start of a call that is in flight for much longer than this refusal took.
    """
    quota = grant.key.quota
    scope = find_scope(grant, signal)
    roomy = _has_room(grant, now)
    explained = apply_readings(grant, signal, now)
    expected = False  # a call that tried if a limit is true
    for state, amount, _, stamp in grant.draws:
        if isinstance(state, ReportedLimit):
            expected |= state.is_probe(stamp[1])
            state.on_refusal(amount, stamp[1], now, surprising=roomy and not explained)
    at_once = not explained and roomy and _too_many_at_once(grant, signal, now)
    wait: float | None = 0.0 if explained or expected or at_once else None  # None: unknown
    if not expected and not (at_once and quota.concurrency is not None and quota.concurrency.known):
        known = _known_limits(grant, signal, now)
        doubted = bool(find_rates(quota, scope))
        if any(_finds_out_itself(state) for state in known) or (
            known and not doubted and not _is_doubtful(quota, known, grant, now)
        ):
            wait = 0.0  # one refill
        else:
            wait = learn_rate(grant, scope, signal, known, starts_a_second, now)
    delay = FIRST_COOLDOWN if wait is None else wait
    if signal.delay is not None and not is_reset_of_limit(signal):
        delay = 0.0 if wait is not None and _is_one_refill(grant, signal.delay, now) else signal.delay
    delay = max(delay, _starve(quota, grant, now, survived_at))
    cool_down(quota, now + delay, scope, signal.why, now, probe=admits_nothing(quota, delay))


def estimates_tokens(grant: Grant) -> bool:
    """Return True if a limit on tokens is estimated that applies to this lease."""
    return any(state.dimension and state.counts_starts for state in grant.key.quota.limits_for(grant.model))


def plan_draws(call: Grant, now: float, within: float, *, again: bool) -> float:
    """Take from the learned limits what a call costs that its lease makes next; return the seconds until it may start.

    *again*: its lease made it before and it was refused. Take nothing if it cannot start *within* so many seconds.
    """
    request, wait = LeaseRequest(call.cost, call.model), 0.0
    drawn = {draw[0]: draw for draw in call.draws}
    changes = []
    for state in call.key.quota.limits_for(call.model):
        if not state.obeyed or not (state.learned if again else state.dimension and state.counts_starts):
            continue
        amount = estimate_amount(state, request) or 0.0
        taken = drawn[state][1] if state in drawn and state.counts_starts else 0.0
        more = amount if call.settled else amount - taken  # earlier calls of the lease used what was taken
        changes.append((state, taken, more))
        wait = max(wait, state.ready_at(max(0.0, more), now) - now)
    if wait < within:
        for state, taken, more in changes:
            *_, guessed, stamp = drawn.get(state, (False, None))
            if guessed:
                state.usage.end_in_flight()
            stamp = state.correct(stamp, more, now) if taken else state.take(more, now)
            drawn[state] = (state, taken + more, False, stamp)
        call.draws = list(drawn.values())
    return wait


def _starve(quota: Quota, grant: Grant, now: float, survived_at: float) -> float:
    """Return how long to wait after several refusals in a row, whatever is believed: ever longer."""
    if survived_at > quota.refused_at:
        quota.refusals, quota.admitted_at = 0, max(quota.admitted_at, survived_at)
    if grant.granted_at > quota.refused_at:
        quota.refusals += 1
        if quota.refusals == 1:
            quota.admitted_at = max(quota.admitted_at, grant.granted_at)
    quota.refused_at = now
    if quota.refusals < _SEVERAL:
        return 0.0
    return min(_LONGEST_STARVING, _LONGER_BY * (now - quota.admitted_at))


def is_reset_of_limit(signal: Signal) -> bool:
    """Return True if the delay is only the reset of a reported limit, which is a hypothesis like the rest of it."""
    return any(
        reading.limit is not None and reading.remaining is not None and reading.resets_in == signal.delay
        for reading in signal.readings
    )


def apply_long_limit(grant: Grant, signal: Signal, delay: float, now: float) -> None:
    """Learn from a call that was refused because a long window is used up; one call goes first when it has ended."""
    quota, scope = grant.key.quota, find_scope(grant, signal)
    known = _known_limits(grant, signal, now)
    parked_at, admitted = quota.parked_after
    if grant.granted_at > parked_at:  # else it is of the same burst
        quota.parked_after = (now, quota.admitted)
        few = parked_at > -math.inf and quota.admitted - admitted < _WHOLE_WINDOW
        # No window has ended: it takes that long until one more is admitted. Or adaptive slots have grown, and would
        # fill all at once when it ends.
        if (few or quota.concurrency is not None) and not known and not find_rates(quota, scope):
            get_adaptive_rate(quota, scope, 0.0, now).restart(now + delay)
    rates = find_rates(quota, scope)
    if known and not rates and not any(map(_finds_out_itself, known)) and _is_doubtful(quota, known, grant, now):
        learn_rate(grant, scope, signal, known, 0.0, now)
    for adaptive in rates:
        stamp = find_stamp(grant, adaptive)
        if stamp is None:
            continue
        if adaptive.admitted >= _WHOLE_WINDOW and delay * adaptive.believed_rate > _REFILLS:
            adaptive.restart(now + delay)
        else:
            adaptive.on_refusal(stamp, grant.granted_at, now)
            mark_as_untaken(grant, adaptive)
    cool_down(quota, now + delay, scope, signal.why, now, probe=True)


def _has_room(grant: Grant, now: float) -> bool:
    """Return True if much was left of all known limits, so that the rate does not explain a refusal."""
    return all(
        state.left(now) >= max(_ROOM, _ROOMY * state.limit.largest)
        for state in grant.key.quota.limits_for(grant.model)
        if state.dimension == REQUESTS and not isinstance(state, AdaptiveRate)
    )


def _known_limits(grant: Grant, signal: Signal, now: float) -> list[LimitState]:
    """Empty the limits of the refused dimension whose rate is known, since the provider counts more; return them."""
    tokens = any(dimension != DIMENSIONS[REQUESTS] for dimension in signal.dimensions)
    left = 0.0 if tokens else _find_part_left(grant, signal, now)
    known: list[LimitState] = []
    for state in grant.key.quota.limits_for(grant.model):
        if (state.dimension != REQUESTS) != tokens or isinstance(state, AdaptiveRate):
            continue
        stamp, amount = find_stamp(grant, state), _amount(grant, state)
        if isinstance(state, Bucket):
            state.refuse(stamp, amount, grant.granted_at, left)
        elif isinstance(state, (SlidingWindow, CalendarWindow)):
            state.refuse(stamp, amount, now, now - grant.granted_at)
            mark_as_untaken(grant, state)
        elif isinstance(state, ReportedLimit):
            if not state.obeyed:
                continue
            state.drain(grant.granted_at, stamp, left)
        known.append(state)
    return known


def _find_part_left(grant: Grant, signal: Signal, now: float) -> float:
    """Return the part of a call that was left at a refused one, which the exact reset of a bucket tells; 0: unknown."""
    quota = grant.key.quota
    for reading in signal.readings:
        if reading.resets_in is None or float(reading.resets_in).is_integer():
            continue  # it may be rounded up
        for state in quota.limits_for(grant.model):
            if not isinstance(state, (Bucket, ReportedLimit)) or state.dimension != REQUESTS:
                continue
            # Not twice in a row: what the first one trusted was wrong.
            again = now - quota.refused_at < 2.0 * state.seconds_each
            part = state.find_part_left(reading.limit, reading.resets_in)
            if 0.0 <= part < 1.0 and not again:
                return part
    return 0.0


def find_known_width(quota: Quota, latency: float) -> float | None:
    """Return how many calls at once the known limits allow: as many as start in the time of an answer, or are left.

    None if no limit is known.
    """
    widths: list[float] = []
    stated = any(state.dimension == REQUESTS and state.limit.per != "day" for state in quota.stated)
    for state in quota.unscoped:
        if state.dimension != REQUESTS or state.limit.per == "day" or not state.obeyed:
            continue
        if isinstance(state, AdaptiveRate) and state.searching:
            continue
        needed = state.limit.amount / float(state.limit.per) * latency
        if isinstance(state, ReportedLimit):
            # One answer alone does not tell the rate if much is used that this process did not use.
            if state.confirmed <= 1 and stated:
                continue
            needed = max(state.remaining, needed if state.confirmed > 1 else 0.0)
        elif not isinstance(state, AdaptiveRate):
            needed = max(needed, state.limit.largest)
        widths.append(needed)
    return min(widths, default=None)


def _finds_out_itself(state: LimitState) -> bool:
    """Return True for a window, which reduces what it allows after a refusal."""
    return isinstance(state, CalendarWindow) or (isinstance(state, SlidingWindow) and state.is_window is not False)


def _is_doubtful(quota: Quota, known: list[LimitState], grant: Grant, now: float) -> bool:
    """Return True if refusals are too frequent to be chance, although the known limits were kept."""
    taken = max(getattr(state, "taken", 0.0) for state in known)
    return quota.doubt.on_refusal(taken, grant.granted_at, now)


def _is_one_refill(grant: Grant, delay: float, now: float) -> bool:
    """Return True if *delay* is what the limits themselves ask for, rounded up to whole seconds; once in a while."""
    quota = grant.key.quota
    if not float(delay).is_integer() or now - quota.rounded_at < _ROUNDED_EVERY * delay:
        return False
    ready = max(
        (state.ready_at(1.0, now) for state in quota.limits_for(grant.model) if state.dimension == REQUESTS),
        default=now,
    )
    if not delay - 1.0 < ready - now <= delay:
        return False
    quota.rounded_at = now
    return True


def _too_many_at_once(grant: Grant, signal: Signal, now: float) -> bool:
    quota = grant.key.quota
    if not grant.key.auto or quota.concurrency is None:
        return False
    before = quota.concurrency.slots
    found = quota.concurrency.on_refusal(grant.token, now)
    if quota.concurrency.slots != before:
        quota.add_history(now, f"slots {quota.concurrency.slots}: more at once were refused ({signal.why})")
    return found


def slow_down(grant: Grant, signal: Signal, starts_a_second: float, now: float) -> None:
    """Halve the rate once per burst, because traffic grew too fast."""
    quota = grant.key.quota
    scope = find_scope(grant, signal)
    known = has_rate(quota, scope)
    adaptive = get_adaptive_rate(quota, scope, starts_a_second, now)
    if adaptive.slow_down(find_stamp(grant, adaptive), starts_a_second, now, known=known):
        quota.add_history(now, f"{adaptive}: traffic grew too fast ({signal.why})")
    cool_down(quota, now + (FIRST_COOLDOWN if signal.delay is None else signal.delay), scope, signal.why, now)
