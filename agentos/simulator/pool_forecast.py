"""When a pool will be through with so many items, before or while they run."""

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
    """When *pool* will be through with *n_items*, what holds it up, and what would move that.

    See ``CredentialCoordinator.forecast``. ``VirtualRun`` plays the same through call by call.
    """
    return pool.forecast(n_items, cost, duration, parallel=parallel, model=model)
