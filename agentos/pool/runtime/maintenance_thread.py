"""The maintenance thread of a shared pool: it renews leases and receives wake-ups."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from ...util.clock import Clock
from ..protocols import MaintainedPool
from ..store_protocol import StoreWakeup

log = logging.getLogger("agentos")

_AFTER_A_FAILURE = 1.0


class MaintenanceThread:
    """Calls ``maintain`` whenever that is due or a wake-up arrives, as long as the pool is in use.

    It holds only a weak reference to the pool and ends its session when the pool is collected: on this thread, since a
    collection can happen in the middle of anything. An extension that holds the interpreter lock for longer than the
    time to live keeps this thread from renewing, too; then the leases are lost, and the log notes it.
    """

    def __init__(self, pool: MaintainedPool, clock: Clock, wakeup: StoreWakeup, leave: Callable[[], None]) -> None:
        self._pool = weakref.ref(pool)
        self._leave = leave
        self._clock = clock
        self._wakeup = wakeup
        threading.Thread(target=self._run, name="agentos-pool", daemon=True).start()

    def _run(self) -> None:
        try:
            while (until := self._due_at()) is not None:
                self._clock.wait(self._wakeup, until)
                called, self._wakeup.was_notified = self._wakeup.was_notified, False
                self._maintain(called)
        finally:
            self._leave()
            self._wakeup.close()

    def _due_at(self) -> float | None:
        pool = self._pool()
        if pool is None or pool.is_finished():
            return None
        try:
            return pool.due_at()
        except Exception:  # as for the method below
            log.exception("[COORDINATOR] looking after the pool failed; going on")
            return self._clock.now() + _AFTER_A_FAILURE

    def _maintain(self, called: bool) -> None:
        pool = self._pool()
        if pool is None:
            return
        try:
            pool.maintain(called)
        except Exception:  # without this thread every lease would be lost
            log.exception("[COORDINATOR] looking after the pool failed; going on")
