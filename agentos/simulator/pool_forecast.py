"""Forecast when a pool will finish a number of items, before or while they run."""

from __future__ import annotations

from collections.abc import Mapping

from ..pool.snapshot import Forecast
from ..workflows.parallel import CredentialCoordinator

__all__ = ["Forecast", "forecast"]


def forecast(
    pool: CredentialCoordinator,
    n_items: int,
    cost: Mapping[str, float] | None = None,
    duration: float = 1.0,
    *,
    parallel: int | None = None,
    model: str | None = None,
) -> Forecast:
    """Return when *pool* will finish *n_items*, what limits it, and what would improve that.

    See ``CredentialCoordinator.forecast``. ``VirtualRun`` simulates the same call by call.
    """
    return pool.forecast(n_items, cost, duration, parallel=parallel, model=model)
