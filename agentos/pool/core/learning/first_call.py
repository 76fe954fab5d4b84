"""The first call of a credential with adaptive slots goes alone, as long as nothing is lost by that.

A dead or spent credential then costs one call, not a dozen. But a bucket that is full loses what flows in. So until a
call has succeeded, another one starts each time that the stated buckets are full. Refusals of dead credentials arrive
within milliseconds, so that these cost hardly more calls; answers take seconds, in which many would be lost.
"""

from __future__ import annotations

from ..limits.base import FOREVER
from ..limits.bucket import Bucket
from ..records import Key


def find_next_start(key: Key, model: str | None) -> float:
    """Return when the next call of *key* may start beside those that are to show that it works."""
    if key.proven or not key.auto or key.leases <= len(key.leases_elsewhere):
        return -FOREVER
    buckets = [state for state in key.quota.limits_for(model) if isinstance(state, Bucket)]
    return max((state.full_at for state in buckets), default=FOREVER)
