"""A pool in a forked child: one in memory goes on as a copy, one with a store refuses."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from ...errors import StoreUnavailable
from ...util.fork_hooks import register_fork_hooks
from ...util.locks import FairLock
from ..core.states import TicketState

if TYPE_CHECKING:
    from ..core.learning.adaptive_pool import AdaptivePool
    from .waiters import WaiterTable

# Far above what a step of a pool in memory takes, on a machine that is busy.
_AT_REST_WITHIN = 5.0


class ForkHandling:
    """What a pool's shell does at a fork.

    A pool in memory is held still meanwhile, so that its copy is whole. A pool with a store may be in the middle of a
    step, which takes as long as the store does; nothing of it is used in the child.
    """

    store_location: str | None = None  # where the state is kept, if in a store: then no forked child can use the pool
    waiters: WaiterTable
    lock: threading.RLock | FairLock
    core: AdaptivePool
    _inside: bool
    _deferred: deque[Any]

    def __init__(self) -> None:
        self.refusal: StoreUnavailable | None = None  # set in a forked child that may not use this pool
        self._pid = os.getpid()
        self._held_by: set[int] = set()  # threads that fork
        register_fork_hooks(self)

    def before_fork(self) -> None:
        """Hold a pool in memory still."""
        if self.store_location is None and self.lock.acquire(True, _AT_REST_WITHIN):
            self._held_by.add(threading.get_ident())

    def after_fork(self) -> None:
        """In the parent: let others use the pool again."""
        if threading.get_ident() in self._held_by:
            self._held_by.discard(threading.get_ident())
            self.lock.release()

    def in_forked_child(self) -> None:
        """In the child: go on with a copy that is whole, or refuse whatever is asked for."""
        is_whole = threading.get_ident() in self._held_by
        self._held_by.clear()
        if is_whole:
            self.lock.release()
            if not self._inside:  # else this very thread forked in the middle of a step, and goes on with it
                self._forget_waiting()
            return
        if self.refusal is None:
            self.refusal = StoreUnavailable(
                path=self.store_location or "memory",
                detail=f"this pool was made in process {self._pid} and forked; make one in each process",
            )
        self.lock = threading.RLock()
        self._inside = True  # for good: whatever wants the core is stopped by that
        self._deferred.clear()
        self.waiters.clear()

    def _forget_waiting(self) -> None:
        """Those who waited are threads and loops of the parent: a key that comes free must not be kept for them."""
        self.core.empty_queue(TicketState.WITHDRAWN)
        self.waiters.clear()
