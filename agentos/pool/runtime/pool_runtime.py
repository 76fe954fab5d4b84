"""The object behind a coordinator: the parts of a pool and the interface that the rest of the package uses."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence

from ...util.clock import Clock
from ...util.locks import FairLock
from ..core.checked_pool import CheckedPool
from ..core.learning.adaptive_pool import AdaptivePool
from ..core.limits.base import FOREVER
from ..core.pool import NOBODY
from ..core.records import Grant, LeaseRequest, Ticket
from ..core.reservations import with_margin
from ..lease import CURRENT_ATTEMPT, ItemLease
from ..protocols import SharedCore
from ..redaction import Masker
from ..store_protocol import RemoteUser, Store, StoreWakeup
from .feedback import Feedback
from .inspection import PoolInspector
from .legacy_verbs import LegacyVerbs
from .maintenance_thread import MaintenanceThread
from .registry import CredentialRegistry
from .scheduler import Scheduler, log

_stores: weakref.WeakSet[Store] = weakref.WeakSet()


@atexit.register
def release_all_at_exit() -> None:
    """Release what this process holds when it exits, unless it is in use on other machines."""
    for store in list(_stores):
        store.leave()


def make_core(*, debug: bool, keep_free: int, max_lease: float | None) -> AdaptivePool:
    """Make the core of a pool in memory; with *debug* one that checks its own promises."""
    return (CheckedPool if debug else AdaptivePool)(keep_free=keep_free, max_lease=max_lease)


class PoolRuntime:
    """Everything that a coordinator's public methods and the rest of the package use of a pool.

    Leases refer to it, not to the coordinator, and it refers to no coordinator: it lives as long as one or the other.
    No part refers back to it, so that it is collected as soon as neither does; its maintenance thread sees that and
    ends.
    """

    lease_ttl: float | None = None  # of a shared store; else leases last as long as this process
    store: Store | None = None  # of a shared pool
    _wakeup: StoreWakeup

    def __init__(
        self,
        core: AdaptivePool,
        clock: Clock,
        default_backoff: Callable[[], float],
        shared: SharedCore | None = None,
    ) -> None:
        """Create the runtime. *shared* is the same core, if its state is in a store."""
        self._shared = shared
        self.is_used_by_run = False  # a run uses this pool, and its workers may request a lease
        self.core = core
        self.clock = clock
        self.masker = masker = Masker()
        lock = threading.RLock() if shared is None else FairLock()
        self.scheduler = scheduler = Scheduler(core, clock, lock)
        self.registry = registry = CredentialRegistry(scheduler, masker)
        self.feedback = feedback = Feedback(
            scheduler, masker, registry.get_secret, registry.find_answerer, default_backoff
        )
        self.verbs = LegacyVerbs(scheduler, feedback, registry.names, registry.get_secret)
        self.inspector = PoolInspector(scheduler, shared)
        self._warned_stray = False

        self.take = scheduler.take
        self.take_now = scheduler.take_now
        self.wait = scheduler.wait
        self.wait_async = scheduler.wait_async
        self.enqueue = scheduler.enqueue
        self.cancel = scheduler.cancel
        self.on_timer = scheduler.on_timer
        self.give_back = scheduler.give_back
        self.on_lease_dropped = scheduler.on_lease_dropped
        self.mark_unknown_outcome = scheduler.mark_unknown_outcome
        self.settle = scheduler.settle
        self.is_held = scheduler.is_held
        self.reacquire = scheduler.reacquire
        self.find_loss_reason = scheduler.find_loss_reason

        self.report_rate_limited = feedback.report_rate_limited
        self.report_rejected = feedback.report_rejected
        self.report_out_of_money = feedback.report_out_of_money
        self.report_answer = feedback.report_answer
        self.report_signal = feedback.report_signal
        self.find_mismatch = feedback.find_mismatch
        self.settle_usage = feedback.settle_usage
        self.ignore_usage = feedback.ignore_usage
        self.masked = feedback.masked

        self.credential_count = registry.credential_count
        self.unsendable = registry.unsendable
        self.get_credential = registry.get_credential
        self.get_secret = registry.get_secret
        self.find_labels = registry.find_labels
        self.find_base_urls = registry.find_base_urls
        self.find_quota = registry.find_quota
        self.find_quota_labels = registry.find_quota_labels
        self.seconds_until_open = self.inspector.seconds_until_open
        self.select_provider = registry.select_provider

    # -- a shared store ---------------------------------------------------------------------------------------

    def attach_store(self, store: Store, wakeup: StoreWakeup, ttl: float) -> None:
        """Keep leases for *ttl* seconds in *store*, whose wake-ups arrive through *wakeup*."""
        self.lease_ttl = ttl
        self.store = store
        self._wakeup = wakeup
        _stores.add(store)
        self.scheduler.store_location = store.where
        self.scheduler.wake_maintenance = store.wake_maintenance

    def start_maintenance(self) -> None:
        """Start the thread that renews leases in the store, as long as this object exists."""
        assert self.store is not None  # noqa: S101 - for the type checker
        weakref.finalize(self, self._wakeup.release).atexit = False  # so that the thread sees that it is gone
        MaintenanceThread(self, self.clock, self._wakeup, self.store.close)

    def discard_store(self) -> None:
        """Leave the store again: the pool could not be created."""
        assert self.store is not None  # noqa: S101 - for the type checker
        self.store.close()
        self._wakeup.close()

    def maintain(self, called: bool) -> None:
        """Renew what is held, and load the changes of others. *called*: this process was notified."""
        shared = self._shared
        assert shared is not None  # noqa: S101 - for the type checker
        self.scheduler.run_step(lambda now: shared.maintain(now, called=called))

    def due_at(self) -> float:
        """Return when ``maintain`` is due."""
        assert self._shared is not None  # noqa: S101 - for the type checker
        with self.scheduler.locked():
            return self._shared.due_at(self.scheduler.now())

    def is_finished(self) -> bool:
        """Return True if the pool is closed and nothing is left to release."""
        return self.core.closed and not self.core.leases

    def close(self) -> None:
        """Grant nothing more, and fail every waiter."""
        if self.scheduler.refusal is not None:
            return  # the pool is the parent's
        self.scheduler.run_step(lambda _now: self.core.close())
        if self.store is not None:
            self._wakeup.release()  # so that the maintenance thread sees

    # -- runs -------------------------------------------------------------------------------------------------

    def abandon(self, grants: Sequence[Grant]) -> float | None:
        """Stop renewing these leases: their run was stopped, and their workers still run.

        Returns within how many seconds a shared store frees them; None: they last until they are released.
        """
        abandoned = False

        def abandon(_now: float) -> Sequence[Ticket]:
            nonlocal abandoned
            abandoned = self.core.abandon(grants)
            return ()

        self.scheduler.run_step(abandon)
        return self.lease_ttl if abandoned else None

    def end_run(self) -> None:
        """Forget what counted for a run only: it has ended."""
        if any(key.barred_for_run or key.refused_elsewhere for key in list(self.core.keys.values())):
            self.scheduler.run_step(self.core.end_run_bars)

    def delegate(self, lender: RemoteUser, out_for: float) -> None:
        """Let new leases be used on other machines, for *out_for* seconds after this process is gone.

        In a shared store they then end by their time, and not with this process; see ``Store.delegate``.
        """
        if self.store is not None:
            self.store.delegate(lender, out_for)

    def valid_for(self) -> float:
        """Return for how many seconds leases may be used without contact to the shared store."""
        return FOREVER if self.store is None else self.store.valid_until - self.clock.now()

    def lock_lease(self, grant: Grant, mark: str) -> int | None:
        """Return a descriptor for a command with that *mark*; see ``Store.lock_lease``. The caller closes it."""
        if self.store is None:
            return None
        try:
            return self.store.lock_lease(grant.token, mark)
        except OSError as error:
            log.warning(
                "[COORDINATOR] no lock file for a command on %s (%s): should this process be killed, the next one may "
                "use the key while that command still runs",
                grant.key.name,
                error.strerror or error,
            )
            return None

    def unlock_lease(self, grant: Grant) -> None:
        """Note that the command has ended."""
        if self.store is not None:
            self.store.unlock_lease(grant.token)

    def with_margin(self, request: LeaseRequest, times: int) -> LeaseRequest:
        """Return the same request with a larger reservation, after it was rate-limited that many times in a row."""
        with self.scheduler.locked():
            return with_margin(request, times, self.core.keys.values())

    # -- calls ------------------------------------------------------------------------------------------------

    def current_item_lease(self) -> ItemLease | None:
        """Return the lease that the calling worker was started with, if any."""
        if not self.is_used_by_run:
            return None
        holding = CURRENT_ATTEMPT.get()
        if holding is not None and holding.pool is self and not holding.ended:
            return holding.item_lease()
        return None

    def on_wait(self) -> None:
        """Warn if a call waits for a key that an item of a run holds: it may be that item's own call."""
        if not self.is_used_by_run or self._warned_stray:
            return
        holding = CURRENT_ATTEMPT.get()
        if holding is None or holding.item_lease() is None:
            self._warned_stray = True
            log.warning(
                "[COORDINATOR] a call that belongs to no item waits for a key while items of a run hold keys of this "
                "pool. If a worker made it in a thread of its own, the two wait for each other: start such a thread "
                'with contextvars.copy_context().run, or use ParallelCoordinator(..., lease="call")'
            )

    def wants_readings(self, grant: Grant) -> bool:
        """Return True if the limits reported in a successful answer are worth reading."""
        return self.core.wants_readings(grant, self.clock.now())

    def plan_call(self, grant: Grant, request: LeaseRequest, after: float, within: float) -> float:
        """Return the seconds until a lease may make a call, *after* so many at least: its next one, or a refused one.

        The call takes its cost from the learned limits, unless it cannot start *within* so many seconds.
        """
        wait = after

        def plan(now: float) -> Sequence[Ticket]:
            nonlocal wait
            wait = self.core.plan_call(grant, request, now, after=after, within=within)
            return NOBODY

        self.scheduler.run_step(plan)
        return wait
