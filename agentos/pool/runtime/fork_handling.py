"""Handle forks: a pool in memory continues as a copy in the child, one with a store refuses."""

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

# Far above the duration of a step in memory on a busy machine.
_LOCK_TIMEOUT = 5.0


class ForkHandling:
    """Fork hooks of the scheduler.

    A pool in memory is locked during the fork, so that its copy is consistent. A pool with a store may be inside a
    step, which takes as long as the store does; the child does not use it.
    """

    store_location: str | None = None  # the location of the store, if any: then no forked child can use the pool
    waiters: WaiterTable
    lock: threading.RLock | FairLock
    core: AdaptivePool
    _inside: bool
    _deferred: deque[Any]

    def __init__(self) -> None:
        self.refusal: StoreUnavailable | None = None  # set in a forked child that may not use this pool
        self._pid = os.getpid()
        self._held_by: set[int] = set()  # threads that are forking
        register_fork_hooks(self)

    def before_fork(self) -> None:
        """Lock a pool in memory."""
        if self.store_location is None and self.lock.acquire(True, _LOCK_TIMEOUT):
            self._held_by.add(threading.get_ident())

    def after_fork(self) -> None:
        """Unlock the pool in the parent."""
        if threading.get_ident() in self._held_by:
            self._held_by.discard(threading.get_ident())
            self.lock.release()

    def in_forked_child(self) -> None:
        """In the child, continue with a consistent copy, or refuse every operation."""
        is_whole = threading.get_ident() in self._held_by
        self._held_by.clear()
        if is_whole:
            self.lock.release()
            if not self._inside:  # else this thread forked inside a step and continues it
                self._forget_waiting()
            return
        if self.refusal is None:
            self.refusal = StoreUnavailable(
                path=self.store_location or "memory",
                detail=f"this pool was made in process {self._pid} and forked; make one in each process",
            )
        self.lock = threading.RLock()
        self._inside = True  # for good: every operation checks this
        self._deferred.clear()
        self.waiters.clear()

    def _forget_waiting(self) -> None:
        """Remove the waiters: they are threads and loops of the parent, and must not be granted keys here."""
        self.core.empty_queue(TicketState.WITHDRAWN)
        self.waiters.clear()
