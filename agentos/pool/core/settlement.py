"""Correct what a lease drew from its limits: when its usage is reported, or when it ends without a report."""

from __future__ import annotations

from .cost import DIMENSIONS, TOKENS, Used
from .learning.recent_starts import RecentStarts
from .learning.usage_stats import UsageStats
from .records import Grant

_RECENT = 60.0  # seconds in which the tokens of calls are summed up


def note_cost(grant: Grant, used: Used) -> None:
    """Remember what a call costs in tokens, as declared or else as used: an estimated limit on tokens needs it."""
    quota, declared = grant.key.quota, grant.cost[TOKENS]
    tokens = used[TOKENS] if declared is None else declared
    if tokens:
        if quota.costs is None or quota.recent_tokens is None:
            quota.costs, quota.recent_tokens = UsageStats(), RecentStarts()
        quota.costs.add(tokens)
        quota.recent_tokens.forget_until(grant.granted_at - _RECENT)
        quota.recent_tokens.add(tokens, grant.granted_at)


def settle_draws(grant: Grant, used: Used, now: float) -> bool:
    """Replace what was reserved by what was used, and remember the cost. Return False if nothing differs."""
    note_cost(grant, used)
    changed = bool(grant.key.quota.limits) and correct_draws(grant, used, now)
    grant.settled = True
    return changed


def correct_draws(grant: Grant, used: Used, now: float) -> bool:
    """Replace what was reserved by what was used. Return False if nothing differs."""
    changed = False
    draws = grant.draws
    for i, (state, amount, guessed, stamp) in enumerate(draws):
        actual = used[state.dimension]
        if actual is None:
            continue
        if actual > state.heaviest:
            actual = state.heaviest
        state.usage.add(actual)
        if state.learned and state.dimension:
            state.on_admitted(actual - amount if grant.settled else actual, grant.granted_at, now)
        if actual != amount or guessed:
            changed = True
            stamp = state.correct(stamp, actual - amount, now)
            draws[i] = (state, actual, False, stamp)  # type: ignore[index]  # not empty, so it is a list
            if guessed:
                state.usage.end_in_flight()
    if len(draws) < len(grant.key.quota.limits):
        _draw_late(grant, used, now)
    return changed


def _draw_late(grant: Grant, used: Used, now: float) -> None:
    """Draw on the limits that were set aside when the lease began, now that usage is reported."""
    drawn = {draw[0] for draw in grant.draws}
    for state in grant.key.quota.limits_for(grant.model):
        actual = used[state.dimension]
        if actual is not None and state not in drawn:
            actual = min(actual, state.heaviest)
            state.usage.add(actual)
            if state.counts_starts:
                continue  # it was estimated after the call had started
            grant.draws = [*grant.draws, (state, actual, False, state.take(actual, now))]


def end_estimates(grant: Grant, notes: list[str]) -> None:
    """End the draws of *grant* whose amount was never reported; add a warning to *notes* if a limit is set aside."""
    for state, _, guessed, _ in grant.draws:
        if not guessed:
            continue
        state.usage.end_in_flight()
        if state.usage.end_unreported():
            notes.append(
                f"quota {grant.key.quota.name}: the limit on {DIMENSIONS[state.dimension]} is set aside, because no "
                "lease gives a cost and none reports usage; pass cost= or call lease.settle()"
            )
