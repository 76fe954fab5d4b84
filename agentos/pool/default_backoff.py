"""The default cooldown after a rate limit for which the provider states no delay."""

from __future__ import annotations

import weakref

DEFAULT_BACKOFF_SECONDS = 60


def read_backoff(kind: type, pool: weakref.ref[object]) -> float:
    """Return the backoff of the instance or its class. The weak reference lets the coordinator be collected."""
    instance = pool()
    chosen: float = getattr(kind if instance is None else instance, "RATE_LIMIT_BACKOFF_SECONDS")  # noqa: B009
    return float(chosen)
