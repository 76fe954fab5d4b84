"""Hold back calls of credentials with adaptive slots: the first one goes alone, and unlimited ones start apart.

The first call goes alone, as long as nothing is lost by that. A dead or spent credential then costs one call, not a
dozen. But a bucket that is full loses what flows in, and a window
loses what is not used before it ends. So until a call has succeeded, another one starts each time that the stated
buckets are full, and those of stated windows start at even intervals. Refusals of dead credentials arrive within
milliseconds, so that these cost hardly more calls; answers take seconds, in which many would be lost.

Where many credentials share a quota of which no limit is known, all would be refused together when it is reached: so
few of them are tried at a time. And while no limit is known, calls start apart, as evenly as slots are used: of those
that start together when slots become free together, all would be refused when a limit is reached.
"""

from __future__ import annotations

import itertools

from ..limits.base import FOREVER
from ..records import Key, Quota
from .adaptive_concurrency import CAUTIOUS

UNTRIED_SLOTS = 16  # calls at most within the seconds in which a dead credential would have been refused
_REFUSED_WITHIN = 1.0
_AT_A_TIME = 256  # untried keys that are looked at when a call ends


def find_next_start(key: Key, model: str | None) -> float:
    """Return when the next call of *key* may start beside those that are to show that it works."""
    quota = key.quota
    if not key.auto or quota.concurrency is None:
        return -FOREVER
    if key.proven:
        return -FOREVER if quota.limits else quota.concurrency.paced_at(len(quota.keys))
    if key.leases <= len(key.leases_elsewhere):
        return FOREVER if is_crowded(quota) else -FOREVER
    overflows_at = [state.overflows_at for state in quota.limits_for(model) if state.overflows]
    at = max(overflows_at, default=FOREVER)
    many = key.leases - len(key.leases_elsewhere) >= UNTRIED_SLOTS
    return max(at, key.tried_at + _REFUSED_WITHIN) if many else at


def is_crowded(quota: Quota) -> bool:
    """Return True if as many calls are under way as should be refused at most when an unknown limit is reached."""
    if quota.limits or len(quota.keys) <= CAUTIOUS or quota.concurrency is None:
        return False
    return quota.concurrency.is_crowded


def take_untried(untried: dict[Key, None]) -> list[Key]:
    """Return some of the untried keys that have no call under way. Drop those that were tried meanwhile."""
    found = list(itertools.islice(untried, _AT_A_TIME))
    for key in found:
        del untried[key]
    found = [key for key in found if not key.proven]
    untried.update(dict.fromkeys(found))  # in turn
    return [key for key in found if not key.leases]
