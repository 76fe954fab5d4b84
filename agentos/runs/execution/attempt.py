"""An attempt as the pool sees it."""

from __future__ import annotations

from ...pool.lease import ItemLease
from ..core.records import Attempt


class PooledAttempt(Attempt):
    """An attempt with a lease of our pool, which lends that lease to a worker that asks for one."""

    __slots__ = ()

    def item_lease(self) -> ItemLease:
        if self.lease is None:
            self.lease = ItemLease(self.pool, self.grant)
        lease: ItemLease = self.lease
        return lease
