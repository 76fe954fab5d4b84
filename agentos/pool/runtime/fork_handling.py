"""A pool in a forked child: one in memory goes on as a copy, one with a store refuses."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from ...errors import StoreUnavailable
from ...util.fork_hooks import watch_forks
from ...util.locks import PoliteLock

if TYPE_CHECKING:
    from ..core.learning.adaptive_pool import LearningPool

# Far above what a step of a pool in memory takes, on a machine that is busy.
_AT_REST_WITHIN = 5.0


class ForkableShell:
    """What a pool's shell does at a fork.

    A pool in memory is held still meanwhile, so that its copy is whole. A pool with a store may be in the middle of a
    step, which takes as long as the store does; nothing of it is used in the child.
    """

    _lock: threading.RLock | PoliteLock
    _core: LearningPool
    _inside: bool
    _later: deque[Any]

    def __init__(self) -> None:
        self._refusal: StoreUnavailable | None = None  # set in a forked child that may not use this pool
        self._pid = os.getpid()
        self._held_by: set[int] = set()  # threads that fork
        watch_forks(self)

    def _store_in_parent(self) -> str | None:
        """Where the pool's state is kept, if that is a store: then it cannot be used in a forked child."""
        return None

    def before_fork(self) -> None:
        """Hold a pool in memory still."""
        if self._store_in_parent() is None and self._lock.acquire(True, _AT_REST_WITHIN):
            self._held_by.add(threading.get_ident())

    def after_fork(self) -> None:
        """In the parent: let others use the pool again."""
        if threading.get_ident() in self._held_by:
            self._held_by.discard(threading.get_ident())
            self._lock.release()

    def in_forked_child(self) -> None:
        """In the child: go on with a copy that is whole, or refuse whatever is asked for."""
        is_whole = threading.get_ident() in self._held_by
        self._held_by.clear()
        if is_whole:
            self._lock.release()
            if not self._inside:  # else this very thread forked in the middle of a step, and goes on with it
                self._forget_waiting()
            return
        if self._refusal is None:
            self._refusal = StoreUnavailable(
                path=self._store_in_parent() or "memory",
                detail=f"this pool was made in process {self._pid} and forked; make one in each process",
            )
        self._lock = threading.RLock()
        self._inside = True  # for good: whatever wants the core is stopped by that
        self._later.clear()
        self._forget_owners()

    def _forget_waiting(self) -> None:
        """Those who waited are threads and loops of the parent: a key that comes free must not be kept for them."""
        self._core.forget_waiting()
        self._forget_owners()

    def _forget_owners(self) -> None:
        raise NotImplementedError
