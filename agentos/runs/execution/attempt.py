"""PooledAttempt: an attempt that holds a lease of the agentos pool."""

from __future__ import annotations

from ...pool.lease import ItemLease
from ..core.records import Attempt


class PooledAttempt(Attempt):
    """An attempt with a lease of the agentos pool; ``item_lease`` is the worker's view of it."""

    __slots__ = ()

    def item_lease(self) -> ItemLease:
        if self.lease is None:
            self.lease = ItemLease(self.pool, self.grant, self.usage_log)
        lease: ItemLease = self.lease
        return lease
