"""PooledAttempt: an attempt that holds a lease of the agentos pool."""

from __future__ import annotations

from typing import Any

from ...pool.lease import ItemLease
from ..core.records import Attempt


class PooledAttempt(Attempt):
    """An attempt with a lease of the agentos pool; ``item_lease`` is the worker's view of it."""

    __slots__ = ("reporter",)

    def __init__(self, *fields: Any, reporter: str | None = None) -> None:
        super().__init__(*fields)
        self.reporter = reporter  # the name of the worker, for reasons that people read

    def item_lease(self) -> ItemLease:
        if self.lease is None:
            self.lease = ItemLease(self.pool, self.grant, self.usage_log, self.reporter)
        lease: ItemLease = self.lease
        return lease
