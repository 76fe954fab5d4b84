"""The pool's shell: threads and tasks wait here, on one core, under one lock.

Under the lock only the core is asked, and those to be woken are noted; waking, logging and raising come after it.
There is no timer thread. The one whose turn the core expects next sleeps until that instant itself, and whoever
changes that instant wakes it to set its alarm anew. If that one is a task, every loop with waiting tasks and the
first waiting thread set theirs too: a loop may be stuck, and must not hold up the rest.

The lock is re-entrant only to notice that it was entered again. A finalizer that runs in the middle of a step (an
abandoned generator inside ``with pool.lease()``), or a signal handler, may give a lease back while its own thread is
inside the core. What it wants is done when the step is over.
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

# A wall clock that runs a little fast or slow is left alone; one that was set is noticed.
_CLOCK_WAS_SET = 0.5
# A store that is busy is asked again whether a lease is held, because a command would be killed otherwise.
_INSIST_ON_LEASE, _ASK_AGAIN_AFTER = 5.0, 0.02


class Scheduler(ForkHandling):
    """Grants leases to threads and tasks, and takes them back: one core under one lock."""

    def __init__(self, core: AdaptivePool, clock: Clock, lock: threading.RLock | FairLock) -> None:
        self.core = core
        self.clock = clock
        self.now = clock.now
        self.lock = lock
        self.waiters = WaiterTable(core, clock)
        self._after = self.waiters.after
        self._undelivered = self.waiters.handed
        self._shortage = ShortageLog(core)
        self._logged_kinds = self._shortage.told
        self._inside = False  # the core is at work
        self._deferred: deque[Callable[[], object]] = deque()  # what came in meanwhile, from the same thread
        self.wake_maintenance: Callable[[], object] | None = None  # of a shared pool
        core.wall.offset = clock.wall() - clock.now()
        super().__init__()

    # -- taking -----------------------------------------------------------------------------------------------

    def take_now(self, ask: LeaseRequest, requester: str | None) -> Grant | None:
        """A grant at once, or None if it would have to be waited for."""
        core, lock = self.core, self.lock
        if not lock.acquire(False):
            acquire_contended(lock)
        if self._inside:
            self._entered_again()
        self._inside = True
        try:
            if core.has_calendar:
                self.look_at_wall()
            return core.acquire(ask, requester, self.now())
        finally:
            self._inside = False
            lock.release()
            if self._deferred:
                self._run_deferred()

    def take(self, ask: LeaseRequest, requester: str | None, timeout: float | None, instead: str) -> Grant:
        """A grant, now or when it comes. Raises as ``CredentialCoordinator.acquire`` says."""
        return self.take_now(ask, requester) or self.wait(ask, requester, timeout, instead)

    def wait(self, ask: LeaseRequest, requester: str | None, timeout: float | None, instead: str) -> Grant:
        """Stand in line with this thread. *instead* is what to tell a caller that would block a loop."""
        waiter = ThreadWaiter()
        ticket = Ticket(ask, requester, waiter)
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

    async def wait_async(self, ask: LeaseRequest, requester: str | None, timeout: float | None) -> Grant:
        """Stand in line with this task; the loop runs on."""
        loop = running_loop()
        assert loop is not None  # noqa: S101 - for the type checker: only a loop runs coroutines
        waiter = TaskWaiter(loop)
        ticket = waiter.ticket = Ticket(ask, requester, waiter)
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

    # -- waiting, in turns under the lock ---------------------------------------------------------------------

    def _enqueue_ticket(self, ticket: Ticket, *, stay: bool) -> None:
        """Put the ticket in line; take it out again at once unless it may *stay*."""
        said = None

        def enter(now: float) -> Sequence[Ticket]:
            nonlocal said
            if isinstance(ticket, QueuedRequest) and ticket.is_withdrawn:
                return NOBODY  # its run has left meanwhile: no key is to be taken for it, not even for a moment
            touched = self.core.enqueue(ticket, now)
            if ticket.state is TicketState.WAITING:
                self.waiters.register(ticket, self._on_loop_timer)
                said = self._shortage.message(now, stay, of_a_run=isinstance(ticket, QueuedRequest))
                if not stay:
                    touched = [*touched, *self.core.withdraw(ticket, now)]
            return touched

        # A desk is not awake just because somebody puts a ticket in for it.
        self.run_step(enter, ticket, but=None if isinstance(ticket, QueuedRequest) else ticket.owner)
        if said is not None:
            log.log(said[0], "[COORDINATOR] %s", said[1])

    def _recheck(self, ticket: Ticket, waiter: ThreadWaiter | TaskWaiter, deadline: float) -> None:
        """Its alarm, its deadline or a nudge woke the ticket's owner: see what is due."""

        def look(now: float) -> Sequence[Ticket]:
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

        self.run_step(look, ticket, but=waiter)

    def _on_loop_timer(self, alarm: LoopTimer) -> None:
        """A loop's alarm went off."""

        def ring(now: float) -> Sequence[Ticket]:
            alarm.armed_at = FOREVER
            return self.core.tick(now)

        self.run_step(ring)

    def _abandon_ticket(self, ticket: Ticket) -> None:
        """The owner left: interrupted, cancelled, or its loop closed. If the grant has just come, it goes on."""
        self._undelivered.pop(ticket.owner, None)
        if self.refusal is None:
            self.run_step(lambda now: self.core.withdraw(ticket, now), ticket)

    def run_report(self, act: Callable[[float], Sequence[Ticket] | None]) -> Sequence[Ticket] | None:
        """As ``run_step``, for what a holder reports: None, if that changes nothing, as in a forked child."""
        return None if self.refusal is not None else self.run_step(act)

    def run_step(
        self,
        act: Callable[[float], Sequence[Ticket] | None],
        ticket: Ticket | None = None,
        but: Owner | None = None,
    ) -> Sequence[Ticket] | None:
        """Under the lock, do something to the core; then wake whom that concerns, except *but*, who is awake.

        If *ticket* no longer waits after it, it is forgotten.
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
                self.look_at_wall()
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
        """The pool, to be looked at: what comes in meanwhile from this very thread waits until we have looked."""
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
        """Under the lock. Raises, if this is a child that was forked, and the pool is its parent's."""
        if self.refusal is not None:
            self.lock.release()
            raise self.refusal.with_traceback(None)

    def _entered_again(self) -> NoReturn:
        self._refuse_if_forked()
        self.lock.release()
        raise RuntimeError("a lease was asked for from within the pool itself (by a finalizer or a signal handler)")

    def _defer(self, act: Callable[[], object]) -> bool:
        """Do it when the step is over in whose middle this thread already is. False: never, in a forked child."""
        # A partial, not a lambda: a closure would make the arguments of the hot methods slower to reach.
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
                return  # another thread was quicker
            act()

    def _take_back_from_closed_loops(self) -> None:
        """A loop may close between the grant and the moment its task would have run."""
        for waiter in list(self._undelivered):
            if waiter.loop.is_closed() and waiter.ticket is not None:
                self._undelivered.pop(waiter, None)
                ticket = waiter.ticket
                self.run_step(lambda now, ticket=ticket: self.core.withdraw(ticket, now))  # type: ignore[misc]

    def _wake(self, wakes: list[Owner], but: Owner | None = None) -> None:
        """Outside the lock: wake them. A grant whose owner's loop is closed goes on to the next."""
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

    # -- for a run: requests answered at a desk ---------------------------------------------------------------

    def enqueue(self, ticket: QueuedRequest) -> None:
        """Put a run's request in line. It is answered at its desk, perhaps before this returns."""
        self._enqueue_ticket(ticket, stay=True)

    def cancel(self, ticket: QueuedRequest) -> None:
        """Take a run's request out of the line; if its grant has just come, that goes on to the next."""
        self.run_step(lambda now: self.core.withdraw(ticket, now), ticket)

    def on_timer(self, desk: CompletionQueue) -> None:
        """The instant has come that the desk was armed for: see what is due."""

        def look(now: float) -> Sequence[Ticket]:
            if now >= desk.armed_at:
                desk.armed_at = FOREVER
            return self.core.tick(now)

        self.run_step(look)

    # -- giving back and reporting ----------------------------------------------------------------------------

    def give_back(self, grant: Grant) -> bool:
        """End the lease. False: it had ended already."""
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
                    self.look_at_wall()
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
            self._logged_kinds.clear()  # nobody waits, and this slot is free: the shortage is over
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
        """Whether the lease is still in force."""
        self.bring_up_to_date()
        return self.holds(grant)

    def reacquire(self, grant: Grant) -> Grant | None:
        """The lease, if it is in force though this process stood still; else another on its key. None: it is lost.

        A shared store is asked, and waited for a little if others keep it busy.
        """
        held: Grant | None = None

        def ask(now: float) -> Sequence[Ticket]:
            nonlocal held
            held = self.core.reacquire(grant, now)
            return NOBODY

        deadline = self.now() + _INSIST_ON_LEASE
        self.run_step(ask)
        while held is None and self.core.kept_out and self.now() < deadline:
            time.sleep(_ASK_AGAIN_AFTER)
            self.run_step(ask)
        return held

    def bring_up_to_date(self) -> None:
        """A lease may be over, or another process may have acted, without anybody here having looked."""
        if self.core.drifts and self.refusal is None:
            self.run_step(self.core.tick)

    def holds(self, grant: Grant) -> bool:
        return self.core.is_in_force(grant, self.now())

    def find_loss_reason(self, grant: Grant) -> str | None:
        """Why a lease must not be used any more though its holder did not give it back; None if it may."""
        return self.core.find_loss_reason(grant, self.now())

    def mark_unknown_outcome(self, grant: Grant) -> None:
        """A lease is about to end, and nobody knows how its call went."""
        if self.core.tracks_lease_ends and self.refusal is None:
            with self.locked():
                self.core.mark_unknown_outcome(grant)

    def on_lease_dropped(self, grant: Grant) -> bool:
        """A finalizer has found a lease that nobody can give back any more. False: it has ended already.

        Finalizers run in the middle of anything, so it is put off to whoever has the pool, or has it next.
        """
        if self.core.leases.get(grant.token) is not grant or self.refusal is not None:
            return False
        self._deferred.append(partial(self._end_dropped, grant))
        self._schedule_deferred()
        return True

    def _schedule_deferred(self) -> None:
        """Without waiting: see that what was put off is done. Who has the lock does it when it gives the lock back."""
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
                "[COORDINATOR] lease %d on %s held by %s was dropped without being given back, and its slot is free "
                "again; keep the lease for as long as its secret is in use",
                grant.token,
                grant.key.name,
                grant.requester or "nobody named",
            )

    # -- what people are told ---------------------------------------------------------------------------------

    def _log_notes(self) -> None:
        with self.locked():
            notes, self.core.notes = self.core.notes, []
        for note in notes:
            log.warning("[COORDINATOR] %s", note)

    def look_at_wall(self) -> None:
        offset = self.clock.wall() - self.clock.now()
        if abs(offset - self.core.wall.offset) > _CLOCK_WAS_SET:
            self.core.on_wall_clock_change(offset)


def check_timeout(timeout: object) -> None:
    """Refuse what is not a number of seconds to wait."""
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
