"""Build the core of a shared pool and attach it to its store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..pool.core.checked_pool import CheckedPool
from ..pool.runtime.pool_runtime import PoolRuntime
from ..pool.store_protocol import CredentialUpdate, QuotaUpdate
from .factory import open_store
from .redis.url import RedisLocation
from .shared_pool.pool import SharedPool


class _CheckedSharedPool(CheckedPool, SharedPool):
    """A shared pool that checks its invariants, except for quotas that other processes reopen."""

    def apply_updates(self, credentials: Sequence[CredentialUpdate], quotas: Sequence[QuotaUpdate]) -> None:
        super().apply_updates(credentials, quotas)
        for quota in self.quotas.values():
            self.review_closings(quota)


def make_shared_core(*, debug: bool, keep_free: int, max_lease: float | None) -> SharedPool:
    """Build the core; with *debug* one that checks its invariants."""
    return (_CheckedSharedPool if debug else SharedPool)(keep_free=keep_free, max_lease=max_lease)


def share_pool(runtime: PoolRuntime, core: SharedPool, place: Path | RedisLocation, ttl: float, weight: float) -> None:
    """Share the pool's state with the other processes that have opened it at *place*. Raises StoreError."""
    credentials = runtime.registry.credentials
    core.mask = runtime.masker.mask
    opened = open_store(place, runtime.clock, ttl=ttl, weight=weight, view=core)
    store = opened.store
    runtime.attach_store(store, opened.wakeup, ttl)
    core.attach(store)
    core.fingerprint_of = lambda name: store.fingerprint(credentials[name].secret.reveal())
