"""The inside of a pool: its parts, and the one interface that leases, runs, transports and its own thread use."""

from __future__ import annotations

import atexit
import math
import threading
import weakref
from collections.abc import Callable, Sequence

from ...util.clock import Clock
from ...util.locks import PoliteLock
from ..core.learning.adaptive_pool import LearningPool
from ..core.limits.base import FOREVER
from ..core.records import Ask, Grant, Ticket
from ..core.reservations import padded
from ..lease import HOLDING, ItemLease
from ..protocols import SharedCore
from ..redaction import Masker
from ..store_protocol import Lender, Ringer, Store
from .feedback import Feedback
from .inspection import PoolInspector
from .legacy_verbs import LegacyVerbs
from .maintenance_thread import Housekeeper
from .registry import CredentialRegistry
from .scheduler import Scheduler, log

_stores: weakref.WeakSet[Store] = weakref.WeakSet()


@atexit.register
def return_all_leases() -> None:
    """At the end of the process, what it holds is free at once, unless it is in use on other machines."""
    for store in list(_stores):
        store.leave()


class PoolRuntime:
    """Everything that a coordinator's public methods and the rest of the package use of a pool.

    Leases refer to it, not to the coordinator, and it refers to no coordinator: it lives as long as one or the other.
    No part refers back to it, so that it is gone as soon as neither does; its maintenance thread sees that and ends.
    """

    lease_ttl: float | None = None  # in a shared store; else leases last as long as this process
    store: Store | None = None  # only where it is shared
    _bell: Ringer

    def __init__(
        self,
        core: LearningPool,
        clock: Clock,
        default_backoff: Callable[[], float],
        shared: SharedCore | None = None,
    ) -> None:
        """*shared*: the same core, if its state is in a store."""
        self._shared = shared
        self.lends = False  # a run takes leases here, and its workers may ask for one: only then is that looked at
        self.core = core
        self.clock = clock
        self.masker = masker = Masker()
        lock = threading.RLock() if shared is None else PoliteLock()
        self.scheduler = scheduler = Scheduler(core, clock, lock)
        self.registry = registry = CredentialRegistry(scheduler, masker)
        self.feedback = feedback = Feedback(scheduler, masker, registry.secret_of, default_backoff)
        self.verbs = LegacyVerbs(scheduler, feedback, registry.names, registry.secret_of)
        self.inspector = PoolInspector(scheduler, shared)
        self._said_stray = False

        self.take = scheduler.take
        self.take_now = scheduler.take_now
        self.wait = scheduler.wait
        self.wait_async = scheduler.wait_async
        self.enqueue = scheduler.enqueue
        self.call_off = scheduler.call_off
        self.look_out = scheduler.look_out
        self.give_back = scheduler.give_back
        self.dropped = scheduler.dropped
        self.in_doubt = scheduler.in_doubt
        self.settle = scheduler.settle
        self.is_held = scheduler.is_held
        self.hold_on = scheduler.hold_on
        self.loss_of = scheduler.loss_of

        self.limited = feedback.limited
        self.refused = feedback.refused
        self.out_of_money = feedback.out_of_money
        self.heard = feedback.heard
        self.hear = feedback.hear
        self.settle_usage = feedback.settle_usage
        self.ignore_usage = feedback.ignore_usage
        self.masked = feedback.masked

        self.size = registry.size
        self.unsendable = registry.unsendable
        self.credential = registry.credential
        self.secret_of = registry.secret_of
        self.labels_for = registry.labels_for
        self.bases_at = registry.bases_at

    # -- a shared store ---------------------------------------------------------------------------------------

    def attach_store(self, store: Store, bell: Ringer, ttl: float) -> None:
        """Keep leases for *ttl* seconds in *store*, whose wake-ups come through *bell*."""
        self.lease_ttl = ttl
        self.store = store
        self._bell = bell
        _stores.add(store)
        self.scheduler.store_location = store.where
        self.scheduler.wake_maintenance = store.nudge

    def start_maintenance(self) -> None:
        """Start the thread that renews leases in the store, as long as this object exists."""
        assert self.store is not None  # noqa: S101 - for the type checker
        weakref.finalize(self, self._bell.release).atexit = False  # so that the thread sees that it is gone
        Housekeeper(self, self.clock, self._bell, self.store.close)

    def discard_store(self) -> None:
        """Leave the store again: the pool could not be made."""
        assert self.store is not None  # noqa: S101 - for the type checker
        self.store.close()
        self._bell.close()

    def keep_up(self, called: bool) -> None:
        """Renew what is held, and see what others did. *called*: they say that it is our turn."""
        shared = self._shared
        assert shared is not None  # noqa: S101 - for the type checker
        self.scheduler.run_step(lambda now: shared.keep_up(now, called=called))

    def due_at(self) -> float:
        """When ``keep_up`` should be called."""
        assert self._shared is not None  # noqa: S101 - for the type checker
        with self.scheduler.locked():
            return self._shared.due_at(self.scheduler.now())

    def is_over(self) -> bool:
        """Closed, and nothing left to give back."""
        return self.core.closed and not self.core.leases

    def close(self) -> None:
        """Grant nothing more, and fail every waiter."""
        if self.scheduler.refusal is not None:
            return  # it is the parent's
        self.scheduler.run_step(lambda _now: self.core.close())
        if self.store is not None:
            self._bell.release()  # so that the maintenance thread sees

    # -- runs -------------------------------------------------------------------------------------------------

    def abandon(self, grants: Sequence[Grant]) -> float | None:
        """Renew these leases no more: their run was stopped, and their workers still run.

        Returns within how many seconds a shared store frees them; None: they last until they are given back.
        """
        abandoned = False

        def abandon(_now: float) -> Sequence[Ticket]:
            nonlocal abandoned
            abandoned = self.core.abandon(grants)
            return ()

        self.scheduler.run_step(abandon)
        return self.lease_ttl if abandoned else None

    def lend(self, lender: Lender, out_for: float) -> None:
        """Leases that begin from now on may be used on other machines, for *out_for* seconds after this one is gone.

        In a shared store they then end by their time, and not with this process; see ``Store.lend``.
        """
        if self.store is not None:
            self.store.lend(lender, out_for)

    def good_for(self) -> float:
        """For how many seconds leases may be used, if nothing is heard of the shared store any more."""
        return FOREVER if self.store is None else self.store.valid_until - self.clock.now()

    def lock_lease(self, grant: Grant, mark: str) -> int | None:
        """A descriptor for a command with that *mark* to inherit; see ``Store.lock_lease``. The caller closes it."""
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
        """The command has ended."""
        if self.store is not None:
            self.store.unlock_lease(grant.token)

    def padded(self, ask: Ask, times: int) -> Ask:
        """The same request, reserving more than was told, after limits have stopped it so many times in a row."""
        with self.scheduler.locked():
            return padded(ask, times, self.core.keys.values())

    # -- calls ------------------------------------------------------------------------------------------------

    def on_loan(self) -> ItemLease | None:
        """The lease that the worker who asks was started with, if it was."""
        if not self.lends:
            return None
        holding = HOLDING.get()
        if holding is not None and holding.pool is self and not holding.ended:
            return holding.item_lease()
        return None

    def note_wait(self) -> None:
        """A call has to wait for a key. If items of a run hold them, it may well be one of theirs that went astray."""
        if self.lends and not self._said_stray and HOLDING.get() is None:
            self._said_stray = True
            log.warning(
                "[COORDINATOR] a call that belongs to no item waits for a key while items of a run hold keys of this "
                "pool. If a worker made it in a thread of its own, the two wait for each other: start such a thread "
                'with contextvars.copy_context().run, or use ParallelCoordinator(..., lease="call")'
            )

    def wants_news(self, grant: Grant) -> bool:
        """Whether it is worth reading what an answer that went well tells of the limits."""
        return self.core.is_news(grant, self.clock.now())

    def rest_of(self, grant: Grant, model: str | None) -> float:
        """Seconds until the quota of this lease is open again for *model*; infinite if no instant is known."""
        with self.scheduler.locked():
            return max(0.0, min(math.inf, grant.key.quota.closed_for(model) - self.clock.now()))
