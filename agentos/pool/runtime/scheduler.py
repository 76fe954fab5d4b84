"""Grant leases to waiting threads and tasks: one core under one lock.

Under the lock only the core is called and the waiters to wake are collected; waking, logging and raising come after it.
There is no timer thread. The waiter that the core expects to start next sleeps until that instant, and a step that
changes the instant wakes it to set its timer again. If that waiter is a task, every loop with waiting tasks and the
first waiting thread set a timer too: a blocked loop must not delay the others.

The lock is re-entrant only to detect re-entry. A finalizer inside a step (of an abandoned generator in ``with
pool.lease()``), or a signal handler, may release a lease while its own thread is inside the core. That is deferred to
the end of the step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from ...errors import NoCredentialAvailable, WouldBlockLoop
from ...util.clock import Clock
from ...util.event_loop import running_loop
from ...util.locks import FairLock, acquire_contended
from ..completion_queue import CompletionQueue, QueuedRequest
from ..core.cost import Used
from ..core.learning.adaptive_pool import AdaptivePool
from ..core.limits.base import FOREVER
from ..core.pool import NOBODY
from ..core.records import Grant, LeaseRequest, Ticket
from ..core.states import TicketState
from .fork_handling import ForkHandling
from .shortage_message import ShortageLog
from .waiters import LoopTimer, Owner, TaskWaiter, ThreadWaiter, WaiterTable

log = logging.getLogger("agentos")

# Smaller differences of the wall clock are drift; larger ones mean that it was set.
_CLOCK_WAS_SET = 0.5
# Seconds for which a busy store is asked again if a lease is held, because a command would be killed otherwise.
_INSIST_ON_LEASE, _RETRY_AFTER = 5.0, 0.02


class Scheduler(ForkHandling):
    """Grants and ends leases for threads and tasks: one core under one lock."""

    def __init__(self, core: AdaptivePool, clock: Clock, lock: threading.RLock | FairLock) -> None:
        self.core = core
        self.clock = clock
        self.now = clock.now
        self.lock = lock
        self.waiters = WaiterTable(core, clock)
        self._after = self.waiters.after
        self._undelivered = self.waiters.handed
        self._shortage = ShortageLog(core)
        self._logged_kinds = self._shortage.logged_kinds
        self._inside = False  # a step is executing
        self._deferred: deque[Callable[[], object]] = deque()  # operations of the same thread meanwhile
        self.wake_maintenance: Callable[[], object] | None = None  # of a shared pool
        core.wall.offset = clock.wall() - clock.now()
        super().__init__()

    # -- acquiring --------------------------------------------------------------------------------------------

    def take_now(self, request: LeaseRequest, requester: str | None) -> Grant | None:
        """Return a grant, or None if the request would have to wait."""
        core, lock = self.core, self.lock
        if not lock.acquire(False):
            acquire_contended(lock)
        if self._inside:
            self._entered_again()
        self._inside = True
        try:
            if core.has_calendar:
                self.check_wall_clock()
            return core.acquire(request, requester, self.now())
        finally:
            self._inside = False
            lock.release()
            if self._deferred:
                self._run_deferred()

    def take(self, request: LeaseRequest, requester: str | None, timeout: float | None, instead: str) -> Grant:
        """Return a grant, waiting if necessary. Raises like ``CredentialCoordinator.acquire``."""
        return self.take_now(request, requester) or self.wait(request, requester, timeout, instead)

    def wait(self, request: LeaseRequest, requester: str | None, timeout: float | None, instead: str) -> Grant:
        """Wait for a grant in this thread. *instead* is the advice for a caller that would block a loop."""
        waiter = ThreadWaiter()
        ticket = Ticket(request, requester, waiter)
        would_block = timeout != 0 and running_loop() is not None
        began = self.now()
        deadline = FOREVER if timeout is None else began + timeout
        try:
            self._enqueue_ticket(ticket, stay=timeout != 0 and not would_block)
            while ticket.state is TicketState.WAITING:
                self.clock.wait(waiter.sleeper, min(deadline, waiter.armed_at))
                if ticket.state is TicketState.WAITING:
                    self._recheck(ticket, waiter, deadline)
        except BaseException:
            self._abandon_ticket(ticket)
            raise
        if would_block and ticket.state is TicketState.WITHDRAWN:
            raise WouldBlockLoop(instead=instead)
        return self._granted(ticket, began)

    async def wait_async(self, request: LeaseRequest, requester: str | None, timeout: float | None) -> Grant:
        """Wait for a grant in this task."""
        loop = running_loop()
        assert loop is not None  # noqa: S101 - for the type checker: only a loop runs coroutines
        waiter = TaskWaiter(loop)
        ticket = waiter.ticket = Ticket(request, requester, waiter)
        began = self.now()
        deadline = FOREVER if timeout is None else began + timeout
        alarm = None
        try:
            self._enqueue_ticket(ticket, stay=timeout != 0)
            if timeout is not None and ticket.state is TicketState.WAITING:
                alarm = self.clock.call_at(loop, deadline, waiter.set)
            while ticket.state is TicketState.WAITING:
                await waiter.future
                if ticket.state is TicketState.WAITING:
                    self._recheck(ticket, waiter, deadline)
                    if alarm is not None and ticket.state is TicketState.WAITING:
                        alarm.cancel()
                        alarm = self.clock.call_at(loop, deadline, waiter.set)
        except BaseException:
            self._abandon_ticket(ticket)
            raise
        finally:
            if alarm is not None:
                alarm.cancel()
        self._undelivered.pop(waiter, None)
        return self._granted(ticket, began)

    def _granted(self, ticket: Ticket, began: float) -> Grant:
        if ticket.state is TicketState.GRANTED:
            assert ticket.grant is not None  # noqa: S101 - for the type checker
            return ticket.grant
        if ticket.state is TicketState.FAILED:
            assert ticket.error is not None  # noqa: S101 - for the type checker
            raise ticket.error
        self.bring_up_to_date()
        with self.locked():
            now = self.now()
            at = self.core.earliest_start(ticket.request, now)
        raise NoCredentialAvailable(waited=now - began, next_free_in=None if at == FOREVER else max(0.0, at - now))

    # -- waiting under the lock -------------------------------------------------------------------------------

    def _enqueue_ticket(self, ticket: Ticket, *, stay: bool) -> None:
        """Add the ticket to the wait queue; remove it at once unless it may *stay*."""
        message = None

        def enter(now: float) -> Sequence[Ticket]:
            nonlocal message
            if isinstance(ticket, QueuedRequest) and ticket.is_withdrawn:
                return NOBODY  # its run has withdrawn it meanwhile: it must not take a key even for a moment
            touched = self.core.enqueue(ticket, now)
            if ticket.state is TicketState.WAITING:
                self.waiters.register(ticket, self._on_loop_timer)
                message = self._shortage.message(now, stay, of_a_run=isinstance(ticket, QueuedRequest))
                if not stay:
                    touched = [*touched, *self.core.withdraw(ticket, now)]
            return touched

        # The owner of a completion queue is not awake because a thread enqueues a request for it.
        self.run_step(enter, ticket, but=None if isinstance(ticket, QueuedRequest) else ticket.owner)
        if message is not None:
            log.log(message[0], "[COORDINATOR] %s", message[1])

    def _recheck(self, ticket: Ticket, waiter: ThreadWaiter | TaskWaiter, deadline: float) -> None:
        """Check what is due after a timer, a deadline or a wake-up of the ticket's owner."""

        def check(now: float) -> Sequence[Ticket]:
            if ticket.state is not TicketState.WAITING:
                return NOBODY
            if isinstance(waiter, ThreadWaiter):
                if now >= waiter.armed_at:
                    waiter.armed_at = FOREVER
            else:
                waiter.sleep_again()
            touched = self.core.tick(now)
            if now >= deadline and ticket.state is TicketState.WAITING:
                touched = [*touched, *self.core.withdraw(ticket, now)]
            return touched

        self.run_step(check, ticket, but=waiter)

    def _on_loop_timer(self, alarm: LoopTimer) -> None:
        """Check what is due after a loop's timer."""

        def fire(now: float) -> Sequence[Ticket]:
            alarm.armed_at = FOREVER
            return self.core.tick(now)

        self.run_step(fire)

    def _abandon_ticket(self, ticket: Ticket) -> None:
        """Withdraw a ticket whose owner was interrupted, cancelled, or lost its loop."""
        self._undelivered.pop(ticket.owner, None)
        if self.refusal is None:
            self.run_step(lambda now: self.core.withdraw(ticket, now), ticket)

    def run_report(self, act: Callable[[float], Sequence[Ticket] | None]) -> Sequence[Ticket] | None:
        """Run a step for a holder's report. None: it changes nothing, as in a forked child."""
        return None if self.refusal is not None else self.run_step(act)

    def run_step(
        self,
        act: Callable[[float], Sequence[Ticket] | None],
        ticket: Ticket | None = None,
        but: Owner | None = None,
    ) -> Sequence[Ticket] | None:
        """Run *act* on the core under the lock; then wake the waiters concerned, except *but*, which is awake.

        If *ticket* no longer waits afterwards, its waiter is removed.
        """
        if self._undelivered:
            self._take_back_from_closed_loops()
        core, lock = self.core, self.lock
        wakes: list[Owner] = []
        if not lock.acquire(False):
            acquire_contended(lock)
        if self._inside:
            self._refuse_if_forked()
            self._defer(partial(self.run_step, act, ticket, but))
            return NOBODY
        self._inside = True
        try:
            if core.has_calendar:
                self.check_wall_clock()
            touched = act(self.now())
            if touched is not None:
                wakes = self._after(touched)
            if ticket is not None and ticket.state is not TicketState.WAITING:
                self.waiters.forget(ticket, wakes)
        finally:
            self._inside = False
            lock.release()
            self._wake(wakes, but)
            if self._deferred:
                self._run_deferred()
        if core.notes:
            self._log_notes()
        return touched

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the pool for reading; operations of this thread meanwhile are deferred."""
        if not self.lock.acquire(False):
            acquire_contended(self.lock)
        self._refuse_if_forked()
        was_inside, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = was_inside
            self.lock.release()
            if self._deferred and not was_inside:
                self._run_deferred()

    def _refuse_if_forked(self) -> None:
        """Release the lock and raise in a forked child if the pool is its parent's."""
        if self.refusal is not None:
            self.lock.release()
            raise self.refusal.with_traceback(None)

    def _entered_again(self) -> NoReturn:
        self._refuse_if_forked()
        self.lock.release()
        raise RuntimeError("a lease was requested inside the pool (by a finalizer or a signal handler)")

    def _defer(self, act: Callable[[], object]) -> bool:
        """Defer *act* to the end of the step that this thread is in. False: never, in a forked child."""
        # A partial, not a lambda: a closure would slow the access to the arguments of the hot methods.
        is_ours = self.refusal is None
        if is_ours:
            self._deferred.append(act)
        self.lock.release()
        return is_ours

    def _run_deferred(self) -> None:
        while self._deferred:
            try:
                act = self._deferred.popleft()
            except IndexError:
                return  # another thread was faster
            act()

    def _take_back_from_closed_loops(self) -> None:
        """Withdraw grants of tasks whose loop closed before they could run."""
        for waiter in list(self._undelivered):
            if waiter.loop.is_closed() and waiter.ticket is not None:
                self._undelivered.pop(waiter, None)
                ticket = waiter.ticket
                self.run_step(lambda now, ticket=ticket: self.core.withdraw(ticket, now))  # type: ignore[misc]

    def _wake(self, wakes: list[Owner], but: Owner | None = None) -> None:
        """Wake waiters outside the lock. A grant whose owner's loop is closed goes to the next."""
        for owner in wakes:
            if owner is not but and not owner.wake():
                self._on_loop_closed(owner)

    def _on_loop_closed(self, owner: Owner) -> None:
        assert isinstance(owner, (TaskWaiter, LoopTimer))  # noqa: S101 - for the type checker
        with self.locked():
            lost = [t for t in self.core.tickets() if isinstance(t.owner, TaskWaiter) and t.owner.loop is owner.loop]
        if isinstance(owner, TaskWaiter) and owner.ticket is not None:
            lost.append(owner.ticket)
        for ticket in lost:
            self._abandon_ticket(ticket)

    # -- requests of a run ------------------------------------------------------------------------------------

    def enqueue(self, ticket: QueuedRequest) -> None:
        """Enqueue a run's request. Its completion queue may receive the answer before this returns."""
        self._enqueue_ticket(ticket, stay=True)

    def cancel(self, ticket: QueuedRequest) -> None:
        """Withdraw a run's request; if it was just granted, the next one gets that grant."""
        self.run_step(lambda now: self.core.withdraw(ticket, now), ticket)

    def on_timer(self, queue: CompletionQueue) -> None:
        """Check what is due at the instant for which a completion queue was armed."""

        def check(now: float) -> Sequence[Ticket]:
            if now >= queue.armed_at:
                queue.armed_at = FOREVER
            return self.core.tick(now)

        self.run_step(check)

    # -- releasing and reporting ------------------------------------------------------------------------------

    def give_back(self, grant: Grant) -> bool:
        """End the lease. False: it had already ended."""
        core, lock = self.core, self.lock
        wakes: list[Owner] | None = None
        if not lock.acquire(False):
            acquire_contended(lock)
        if self._inside:
            return self._defer(partial(self.give_back, grant))
        self._inside = True
        try:
            if not core.waiting:
                ended = core.end(grant)
            else:
                if core.has_calendar:
                    self.check_wall_clock()
                touched = core.release(grant, self.now())
                ended = touched is not None
                if touched is not None:
                    wakes = self._after(touched)
        finally:
            self._inside = False
            lock.release()
            if wakes:
                self._wake(wakes)
            if self._deferred:
                self._run_deferred()
        if self._logged_kinds and ended and not wakes and not core.waiting:
            self._logged_kinds.clear()  # no request waits, and this slot is free: the shortage is over
        if core.notes:
            self._log_notes()
        if not ended and self.run_step(lambda now: core.end_abandoned(grant, now)) is None:
            log.info("[COORDINATOR] lease %d on %s had already ended; nothing changed", grant.token, grant.key.name)
        return ended

    def settle(self, grant: Grant, used: Used) -> bool:
        """Replace what was reserved by what was used. False: the lease had ended."""
        core, lock = self.core, self.lock
        wakes: list[Owner] | None = None
        if not lock.acquire(False):
            acquire_contended(lock)
        if self._inside:
            return self._defer(partial(self.settle, grant, used))
        self._inside = True
        try:
            touched = core.settle(grant, used, self.now())
            if touched is not None and (touched or core.waiting):
                wakes = self._after(touched)
        finally:
            self._inside = False
            lock.release()
            if wakes:
                self._wake(wakes)
            if self._deferred:
                self._run_deferred()
        if touched is None:
            log_stale_report(grant, "usage")
        return touched is not None

    def is_held(self, grant: Grant) -> bool:
        """Return True if the lease is still in force."""
        self.bring_up_to_date()
        return self.holds(grant)

    def reacquire(self, grant: Grant) -> Grant | None:
        """Return the lease if it is in force after a suspension; else another on its key. None: it is lost.

        Asks a shared store, and retries for a while if it is busy.
        """
        held: Grant | None = None

        def attempt(now: float) -> Sequence[Ticket]:
            nonlocal held
            held = self.core.reacquire(grant, now)
            return NOBODY

        deadline = self.now() + _INSIST_ON_LEASE
        self.run_step(attempt)
        while held is None and self.core.kept_out and self.now() < deadline:
            time.sleep(_RETRY_AFTER)
            self.run_step(attempt)
        return held

    def bring_up_to_date(self) -> None:
        """Apply expired leases and changes of other processes."""
        if self.core.drifts and self.refusal is None:
            self.run_step(self.core.tick)

    def holds(self, grant: Grant) -> bool:
        return self.core.is_in_force(grant, self.now())

    def find_loss_reason(self, grant: Grant) -> str | None:
        """Return why a lease must not be used any more although it was not released; None if it may."""
        return self.core.find_loss_reason(grant, self.now())

    def mark_unknown_outcome(self, grant: Grant) -> None:
        """Note that a lease is about to end and the outcome of its call is unknown."""
        if self.core.tracks_lease_ends and self.refusal is None:
            with self.locked():
                self.core.mark_unknown_outcome(grant)

    def on_lease_dropped(self, grant: Grant) -> bool:
        """Release a lease that a finalizer found unreachable. False: it has already ended.

        Finalizers run in the middle of anything, so the release is deferred to the current or next user of the pool.
        """
        if self.core.leases.get(grant.token) is not grant or self.refusal is not None:
            return False
        self._deferred.append(partial(self._end_dropped, grant))
        self._schedule_deferred()
        return True

    def _schedule_deferred(self) -> None:
        """Have deferred operations executed, without blocking; a thread that holds the lock does it afterwards."""
        if self.wake_maintenance is not None:
            self.wake_maintenance()  # a finalizer must not wait for a store
        elif self.lock.acquire(False):
            is_inside = self._inside
            self.lock.release()
            if not is_inside:
                self._run_deferred()

    def _end_dropped(self, grant: Grant) -> None:
        self.mark_unknown_outcome(grant)
        if self.give_back(grant):
            log.warning(
                "[COORDINATOR] lease %d on %s held by %s was dropped without being released, and its slot is free "
                "again; keep the lease for as long as its secret is in use",
                grant.token,
                grant.key.name,
                grant.requester or "an unnamed holder",
            )

    # -- logging ----------------------------------------------------------------------------------------------

    def _log_notes(self) -> None:
        with self.locked():
            notes, self.core.notes = self.core.notes, []
        for note in notes:
            log.warning("[COORDINATOR] %s", note)

    def check_wall_clock(self) -> None:
        offset = self.clock.wall() - self.clock.now()
        if abs(offset - self.core.wall.offset) > _CLOCK_WAS_SET:
            self.core.on_wall_clock_change(offset)


def check_timeout(timeout: object) -> None:
    """Raise ValueError if *timeout* is not a number of seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ValueError("timeout must be a number of seconds of at least 0, or None to wait as long as it takes")


def log_stale_report(grant: Grant, what: str) -> None:
    """Log that the holder of an ended lease reported *what*, and that nothing changed."""
    log.warning(
        "[COORDINATOR] lease %d on %s has ended; its report of %s changed nothing",
        grant.token,
        grant.key.name,
        what,
    )
