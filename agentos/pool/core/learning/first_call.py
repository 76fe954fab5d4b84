"""The first call of a credential with adaptive slots goes alone, as long as nothing is lost by that.

A dead or spent credential then costs one call, not a dozen. But a bucket that is full loses what flows in, and a window
loses what is not used before it ends. So until a call has succeeded, another one starts each time that the stated
buckets are full, and those of stated windows start at even intervals. Refusals of dead credentials arrive within
milliseconds, so that these cost hardly more calls; answers take seconds, in which many would be lost.

Where many credentials share a quota of which no limit is known, all would be refused together when it is reached: so
few of them are tried at a time.
"""

from __future__ import annotations

import itertools

from ..limits.base import FOREVER
from ..records import UNTRIED_SLOTS, Key, Quota
from .adaptive_concurrency import CAUTIOUS

_REFUSED_WITHIN = 1.0  # seconds: a dead credential would have been refused
_AT_A_TIME = 256  # untried keys that are looked at when a call ends


def find_next_start(key: Key, model: str | None) -> float:
    """Return when the next call of *key* may start beside those that are to show that it works."""
    if key.proven or not key.auto:
        return -FOREVER
    if key.leases <= len(key.leases_elsewhere):
        return FOREVER if is_crowded(key.quota) else -FOREVER
    overflows_at = [state.overflows_at for state in key.quota.limits_for(model) if state.overflows]
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
