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

import datetime
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from ...errors import NoCredentialAvailable, WouldBlockLoop
from ...util.clock import Clock, SystemClock
from ...util.event_loop import running_loop
from ...util.locks import contend
from ..completion_queue import Desk, DeskTicket
from ..core.cost import Used
from ..core.credential_report import state_of_key
from ..core.learning.adaptive_pool import LearningPool
from ..core.limits.base import FOREVER
from ..core.pool import NOBODY
from ..core.records import Ask, Grant, Ticket
from ..core.states import Wait
from ..secret import Secret
from .fork_handling import ForkableShell
from .waiters import LoopAlarm, TaskWaiter, ThreadWaiter

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

log = logging.getLogger("agentos")

Owner = ThreadWaiter | TaskWaiter | LoopAlarm | Desk

# A wall clock that runs a little fast or slow is left alone; one that was set is noticed.
_CLOCK_WAS_SET = 0.5
_PICKED_UP_WITHIN = 1.0
_SAID_AT_MOST_EVERY = 60.0
_LAST_HOUR = 253_000_000_000.0  # in the year 9987: datetime knows none after 9999
# A store that is busy is asked again whether a lease is held, because a command would be killed otherwise.
_INSIST_ON_LEASE, _ASK_AGAIN_AFTER = 5.0, 0.02


class PoolShell(ForkableShell):
    """Grants leases to threads and tasks, and takes them back."""

    def __init__(self, core: LearningPool, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._now = self._clock.now
        self._core = core
        self._lock = threading.RLock()
        self._inside = False  # the core is at work
        self._later: deque[Callable[[], object]] = deque()  # what came in meanwhile, from the same thread
        self._threads: OrderedDict[ThreadWaiter, None] = OrderedDict()
        self._alarms: dict[AbstractEventLoop, LoopAlarm] = {}
        self._desks: dict[Desk, None] = {}
        self._handed: dict[TaskWaiter, None] = {}  # granted, and not yet picked up
        self._told: set[str] = set()  # what was said of the present shortage
        self._quiet_until = -FOREVER  # of shortages in a run
        self.lends = False  # a run takes leases here, and its workers may ask for one: only then is that looked at
        core.wall.offset = self._clock.wall() - self._clock.now()
        super().__init__()

    # -- taking -----------------------------------------------------------------------------------------------

    def take_now(self, ask: Ask, requester: str | None) -> Grant | None:
        """A grant at once, or None if it would have to be waited for."""
        core, lock = self._core, self._lock
        if not lock.acquire(False):
            contend(lock)
        if self._inside:
            self._entered_again()
        self._inside = True
        try:
            if core.has_calendar:
                self._look_at_wall()
            return core.acquire(ask, requester, self._now())
        finally:
            self._inside = False
            lock.release()
            if self._later:
                self._do_later()

    def take(self, ask: Ask, requester: str | None, timeout: float | None, instead: str) -> Grant:
        """A grant, now or when it comes. Raises as ``CredentialCoordinator.acquire`` says."""
        return self.take_now(ask, requester) or self.wait(ask, requester, timeout, instead)

    def wait(self, ask: Ask, requester: str | None, timeout: float | None, instead: str) -> Grant:
        """Stand in line with this thread. *instead* is what to tell a caller that would block a loop."""
        waiter = ThreadWaiter()
        ticket = Ticket(ask, requester, waiter)
        would_block = timeout != 0 and _in_running_loop()
        began = self._now()
        deadline = FOREVER if timeout is None else began + timeout
        try:
            self._enter_line(ticket, stay=timeout != 0 and not would_block)
            while ticket.state is Wait.WAITING:
                self._clock.wait(waiter.sleeper, min(deadline, waiter.armed_at))
                if ticket.state is Wait.WAITING:
                    self._look_again(ticket, waiter, deadline)
        except BaseException:
            self._abandon(ticket)
            raise
        if would_block and ticket.state is Wait.WITHDRAWN:
            raise WouldBlockLoop(instead=instead)
        return self._granted(ticket, began)

    async def wait_async(self, ask: Ask, requester: str | None, timeout: float | None) -> Grant:
        """Stand in line with this task; the loop runs on."""
        loop = running_loop()
        assert loop is not None  # noqa: S101 - for the type checker: only a loop runs coroutines
        waiter = TaskWaiter(loop)
        ticket = waiter.ticket = Ticket(ask, requester, waiter)
        began = self._now()
        deadline = FOREVER if timeout is None else began + timeout
        alarm = None
        try:
            self._enter_line(ticket, stay=timeout != 0)
            if timeout is not None and ticket.state is Wait.WAITING:
                alarm = self._clock.call_at(loop, deadline, waiter.set)
            while ticket.state is Wait.WAITING:
                await waiter.future
                if ticket.state is Wait.WAITING:
                    self._look_again(ticket, waiter, deadline)
                    if alarm is not None and ticket.state is Wait.WAITING:
                        alarm.cancel()
                        alarm = self._clock.call_at(loop, deadline, waiter.set)
        except BaseException:
            self._abandon(ticket)
            raise
        finally:
            if alarm is not None:
                alarm.cancel()
        self._handed.pop(waiter, None)
        return self._granted(ticket, began)

    def _granted(self, ticket: Ticket, began: float) -> Grant:
        if ticket.state is Wait.GRANTED:
            assert ticket.grant is not None  # noqa: S101 - for the type checker
            return ticket.grant
        if ticket.state is Wait.FAILED:
            assert ticket.error is not None  # noqa: S101 - for the type checker
            raise ticket.error
        self._bring_up_to_date()
        with self._held_still():
            now = self._now()
            at = self._core.earliest(ticket.ask, now)
        raise NoCredentialAvailable(waited=now - began, next_free_in=None if at == FOREVER else max(0.0, at - now))

    # -- waiting, in turns under the lock ---------------------------------------------------------------------

    def _enter_line(self, ticket: Ticket, *, stay: bool) -> None:
        """Put the ticket in line; take it out again at once unless it may *stay*."""
        said = None

        def enter(now: float) -> Sequence[Ticket]:
            nonlocal said
            if isinstance(ticket, DeskTicket) and ticket.recalled:
                return NOBODY  # its run has left meanwhile: no key is to be taken for it, not even for a moment
            touched = self._core.enqueue(ticket, now)
            if ticket.state is Wait.WAITING:
                self._register(ticket)
                said = self._episode(now, stay, of_a_run=isinstance(ticket, DeskTicket))
                if not stay:
                    touched = [*touched, *self._core.withdraw(ticket, now)]
            return touched

        # A desk is not awake just because somebody puts a ticket in for it.
        self._turn(enter, ticket, but=None if isinstance(ticket, DeskTicket) else ticket.owner)
        if said is not None:
            log.log(said[0], "[COORDINATOR] %s", said[1])

    def _look_again(self, ticket: Ticket, waiter: ThreadWaiter | TaskWaiter, deadline: float) -> None:
        """Its alarm, its deadline or a nudge woke the ticket's owner: see what is due."""

        def look(now: float) -> Sequence[Ticket]:
            if ticket.state is not Wait.WAITING:
                return NOBODY
            if isinstance(waiter, ThreadWaiter):
                if now >= waiter.armed_at:
                    waiter.armed_at = FOREVER
            else:
                waiter.sleep_again()
            touched = self._core.tick(now)
            if now >= deadline and ticket.state is Wait.WAITING:
                touched = [*touched, *self._core.withdraw(ticket, now)]
            return touched

        self._turn(look, ticket, but=waiter)

    def _ring(self, alarm: LoopAlarm) -> None:
        """A loop's alarm went off."""

        def ring(now: float) -> Sequence[Ticket]:
            alarm.armed_at = FOREVER
            return self._core.tick(now)

        self._turn(ring)

    def _abandon(self, ticket: Ticket) -> None:
        """The owner left: interrupted, cancelled, or its loop closed. If the grant has just come, it goes on."""
        self._handed.pop(ticket.owner, None)
        if self._refusal is None:
            self._turn(lambda now: self._core.withdraw(ticket, now), ticket)

    def _report(self, act: Callable[[float], Sequence[Ticket] | None]) -> Sequence[Ticket] | None:
        """As ``_turn``, for what a holder reports: None, if that changes nothing, as in a forked child."""
        return None if self._refusal is not None else self._turn(act)

    def _turn(
        self,
        act: Callable[[float], Sequence[Ticket] | None],
        ticket: Ticket | None = None,
        but: Owner | None = None,
    ) -> Sequence[Ticket] | None:
        """Under the lock, do something to the core; then wake whom that concerns, except *but*, who is awake.

        If *ticket* no longer waits after it, it is forgotten.
        """
        if self._handed:
            self._take_back_from_closed_loops()
        core, lock = self._core, self._lock
        wakes: list[Owner] = []
        if not lock.acquire(False):
            contend(lock)
        if self._inside:
            self._refuse_if_forked()
            self._put_off(partial(self._turn, act, ticket, but))
            return NOBODY
        self._inside = True
        try:
            if core.has_calendar:
                self._look_at_wall()
            touched = act(self._now())
            if touched is not None:
                wakes = self._after(touched)
            if ticket is not None and ticket.state is not Wait.WAITING:
                self._forget(ticket, wakes)
        finally:
            self._inside = False
            lock.release()
            self._wake(wakes, but)
            if self._later:
                self._do_later()
        if core.notes:
            self._say_notes()
        return touched

    @contextmanager
    def _held_still(self) -> Iterator[None]:
        """The pool, to be looked at: what comes in meanwhile from this very thread waits until we have looked."""
        if not self._lock.acquire(False):
            contend(self._lock)
        self._refuse_if_forked()
        was_inside, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = was_inside
            self._lock.release()
            if self._later and not was_inside:
                self._do_later()

    def _refuse_if_forked(self) -> None:
        """Under the lock. Raises, if this is a child that was forked, and the pool is its parent's."""
        if self._refusal is not None:
            self._lock.release()
            raise self._refusal.with_traceback(None)

    def _entered_again(self) -> NoReturn:
        self._refuse_if_forked()
        self._lock.release()
        raise RuntimeError("a lease was asked for from within the pool itself (by a finalizer or a signal handler)")

    def _put_off(self, act: Callable[[], object]) -> bool:
        """Do it when the step is over in whose middle this thread already is. False: never, in a forked child."""
        # A partial, not a lambda: a closure would make the arguments of the hot methods slower to reach.
        is_ours = self._refusal is None
        if is_ours:
            self._later.append(act)
        self._lock.release()
        return is_ours

    def _do_later(self) -> None:
        while self._later:
            try:
                act = self._later.popleft()
            except IndexError:
                return  # another thread was quicker
            act()

    def _take_back_from_closed_loops(self) -> None:
        """A loop may close between the grant and the moment its task would have run."""
        for waiter in list(self._handed):
            if waiter.loop.is_closed() and waiter.ticket is not None:
                self._handed.pop(waiter, None)
                ticket = waiter.ticket
                self._turn(lambda now, ticket=ticket: self._core.withdraw(ticket, now))  # type: ignore[misc]

    def _register(self, ticket: Ticket) -> None:
        owner: ThreadWaiter | TaskWaiter | Desk = ticket.owner
        if isinstance(owner, ThreadWaiter):
            self._threads[owner] = None
            return
        if isinstance(ticket, DeskTicket):
            ticket.in_line = True
            ticket.owner.waiting += 1
            self._desks[ticket.owner] = None
            return
        assert isinstance(owner, TaskWaiter)  # noqa: S101 - for the type checker
        alarm = self._alarms.get(owner.loop)
        if alarm is None:
            alarm = self._alarms[owner.loop] = LoopAlarm(owner.loop, self._clock, self._ring)
        alarm.waiting += 1
        owner.registered = True

    def _forget(self, ticket: Ticket, wakes: list[Owner]) -> None:
        owner: ThreadWaiter | TaskWaiter | Desk = ticket.owner
        if isinstance(owner, ThreadWaiter):
            self._threads.pop(owner, None)
        elif isinstance(ticket, DeskTicket):
            if ticket.in_line:
                ticket.in_line = False
                desk: Desk = ticket.owner
                desk.waiting -= 1
                if not desk.waiting:
                    self._desks.pop(desk, None)
                    desk.armed_at = FOREVER
        elif isinstance(owner, TaskWaiter) and owner.registered:
            owner.registered = False
            alarm = self._alarms[owner.loop]
            alarm.waiting -= 1
            if not alarm.waiting:
                del self._alarms[owner.loop]
                if alarm.armed_at < FOREVER:
                    alarm.armed_at = FOREVER
                    wakes.append(alarm)  # to take its timer down

    def _forget_owners(self) -> None:
        self._threads.clear()
        self._alarms.clear()
        self._desks.clear()
        self._handed.clear()

    def _after(self, touched: Sequence[Ticket]) -> list[Owner]:
        """Under the lock, after the core was asked: whom to wake, and who must set an alarm."""
        wakes: list[Owner] = []
        for ticket in touched:
            owner = ticket.owner
            self._forget(ticket, wakes)
            wakes.append(owner)
            if isinstance(ticket, DeskTicket):
                owner.answered.append(ticket)
            elif isinstance(owner, TaskWaiter) and ticket.state is Wait.GRANTED:
                self._handed[owner] = None
        core = self._core
        if core.next_ticket is not None:
            owner = core.next_ticket.owner
            if isinstance(owner, (ThreadWaiter, Desk)):
                self._arm(owner, core.next_at, wakes)
            else:
                self._arm_everybody(core.next_at, wakes)
        if self._handed and core.waiting:
            # If a loop closes before its task has picked its lease up, somebody must be there to notice.
            handed = list(self._handed)  # a copy: who picks its lease up does so without the lock
            self._arm_everybody(self._now() + _PICKED_UP_WITHIN, wakes, but={waiter.loop for waiter in handed})
        return wakes

    def _arm_everybody(self, at: float, wakes: list[Owner], but: Collection[AbstractEventLoop] = ()) -> None:
        """Every loop with waiting tasks, every desk, and the first waiting thread: one of them will be able to look."""
        for alarm in self._alarms.values():
            if alarm.loop not in but:
                self._arm(alarm, at, wakes)
        for desk in self._desks:
            self._arm(desk, at, wakes)
        for thread in self._threads:
            self._arm(thread, at, wakes)
            break

    @staticmethod
    def _arm(owner: ThreadWaiter | LoopAlarm | Desk, at: float, wakes: list[Owner]) -> None:
        if owner.armed_at > at:
            owner.armed_at = at
            wakes.append(owner)

    def _wake(self, wakes: list[Owner], but: Owner | None = None) -> None:
        """Outside the lock: wake them. A grant whose owner's loop is closed goes on to the next."""
        for owner in wakes:
            if owner is not but and not owner.wake():
                self._loop_is_gone(owner)

    def _loop_is_gone(self, owner: Owner) -> None:
        assert isinstance(owner, (TaskWaiter, LoopAlarm))  # noqa: S101 - for the type checker
        with self._held_still():
            lost = [t for t in self._core.tickets() if isinstance(t.owner, TaskWaiter) and t.owner.loop is owner.loop]
        if isinstance(owner, TaskWaiter) and owner.ticket is not None:
            lost.append(owner.ticket)
        for ticket in lost:
            self._abandon(ticket)

    # -- for a run: requests answered at a desk ---------------------------------------------------------------

    def enqueue(self, ticket: DeskTicket) -> None:
        """Put a run's request in line. It is answered at its desk, perhaps before this returns."""
        self._enter_line(ticket, stay=True)

    def call_off(self, ticket: DeskTicket) -> None:
        """Take a run's request out of the line; if its grant has just come, that goes on to the next."""
        self._turn(lambda now: self._core.withdraw(ticket, now), ticket)

    def look_out(self, desk: Desk) -> None:
        """The instant has come that the desk was armed for: see what is due."""

        def look(now: float) -> Sequence[Ticket]:
            if now >= desk.armed_at:
                desk.armed_at = FOREVER
            return self._core.tick(now)

        self._turn(look)

    # -- giving back and reporting ----------------------------------------------------------------------------

    def give_back(self, grant: Grant) -> bool:
        """End the lease. False: it had ended already."""
        core, lock = self._core, self._lock
        wakes: list[Owner] | None = None
        if not lock.acquire(False):
            contend(lock)
        if self._inside:
            return self._put_off(partial(self.give_back, grant))
        self._inside = True
        try:
            if not core.waiting:
                ended = core.end(grant)
            else:
                if core.has_calendar:
                    self._look_at_wall()
                touched = core.release(grant, self._now())
                ended = touched is not None
                if touched is not None:
                    wakes = self._after(touched)
        finally:
            self._inside = False
            lock.release()
            if wakes:
                self._wake(wakes)
            if self._later:
                self._do_later()
        if self._told and ended and not wakes and not core.waiting:
            self._told.clear()  # nobody waits, and this slot is free: the shortage is over
        if core.notes:
            self._say_notes()
        if not ended and self._turn(lambda now: core.end_abandoned(grant, now)) is None:
            log.info("[COORDINATOR] lease %d on %s had already ended; nothing changed", grant.token, grant.key.name)
        return ended

    def settle(self, grant: Grant, used: Used) -> bool:
        """Replace what was reserved by what was used. False: the lease had ended."""
        core, lock = self._core, self._lock
        wakes: list[Owner] | None = None
        if not lock.acquire(False):
            contend(lock)
        if self._inside:
            return self._put_off(partial(self.settle, grant, used))
        self._inside = True
        try:
            touched = core.settle(grant, used, self._now())
            if touched is not None and (touched or core.waiting):
                wakes = self._after(touched)
        finally:
            self._inside = False
            lock.release()
            if wakes:
                self._wake(wakes)
            if self._later:
                self._do_later()
        if touched is None:
            self._say_stale(grant, "usage")
        return touched is not None

    def secret_of(self, name: str) -> Secret:
        """The secret of a credential, in its holder."""
        raise NotImplementedError

    def is_held(self, grant: Grant) -> bool:
        """Whether the lease is still in force."""
        self._bring_up_to_date()
        return self._holds(grant)

    def hold_on(self, grant: Grant) -> Grant | None:
        """The lease, if it is in force though this process stood still; else another on its key. None: it is lost.

        A shared store is asked, and waited for a little if others keep it busy.
        """
        held: Grant | None = None

        def ask(now: float) -> Sequence[Ticket]:
            nonlocal held
            held = self._core.hold_on(grant, now)
            return NOBODY

        deadline = self._now() + _INSIST_ON_LEASE
        self._turn(ask)
        while held is None and self._core.kept_out and self._now() < deadline:
            time.sleep(_ASK_AGAIN_AFTER)
            self._turn(ask)
        return held

    def _bring_up_to_date(self) -> None:
        """A lease may be over, or another process may have acted, without anybody here having looked."""
        if self._core.drifts and self._refusal is None:
            self._turn(self._core.tick)

    def _holds(self, grant: Grant) -> bool:
        return self._core.holds(grant, self._now())

    def loss_of(self, grant: Grant) -> str | None:
        """Why a lease must not be used any more though its holder did not give it back; None if it may."""
        return self._core.loss_of(grant, self._now())

    # -- what people are told ---------------------------------------------------------------------------------

    def _episode(self, now: float, stay: bool, *, of_a_run: bool) -> tuple[int, str] | None:
        """What to log of a request that has to wait, and at which level: once in each shortage, and once of each kind.

        A run that goes at the speed of its limits is short of keys all the time: of that it is enough to hear once a
        minute.
        """
        core = self._core
        if core.not_before > now:
            return None  # a moment's wait for the store, or for another process: no shortage yet
        exhausted = bool(core.leases) or core.next_at == FOREVER or core.taken_elsewhere()
        kind = "exhausted" if exhausted else "limited"
        if kind in self._told:
            return None
        self._told.add(kind)
        if of_a_run:
            if now < self._quiet_until:
                return None
            self._quiet_until = now + _SAID_AT_MOST_EVERY
        if exhausted:
            # To wait for a key that others use is the normal state of a busy pool.
            return logging.INFO, "Credential pool exhausted" + (", waiting for release..." if stay else "")
        until = _hour(core.next_at + core.wall.offset)
        planned = None if core.next_ticket is None else core.next_ticket.planned
        why = "" if planned is None else state_of_key(planned, now)[2]  # not always a limit: a provider may be down
        return logging.WARNING, f"all keys rest until {until} (in {core.next_at - now:.1f}s){f': {why}' if why else ''}"

    def _say_stale(self, grant: Grant, what: str) -> None:
        log.warning(
            "[COORDINATOR] lease %d on %s has ended; its report of %s changed nothing",
            grant.token,
            grant.key.name,
            what,
        )

    def _say_notes(self) -> None:
        with self._held_still():
            notes, self._core.notes = self._core.notes, []
        for note in notes:
            log.warning("[COORDINATOR] %s", note)

    def _look_at_wall(self) -> None:
        offset = self._clock.wall() - self._clock.now()
        if abs(offset - self._core.wall.offset) > _CLOCK_WAS_SET:
            self._core.wall_moved(offset)


def check_timeout(timeout: object) -> None:
    """Refuse what is not a number of seconds to wait."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ValueError("timeout must be a number of seconds of at least 0, or None to wait as long as it takes")


def _in_running_loop() -> bool:
    return running_loop() is not None


def _hour(epoch: float) -> str:
    return datetime.datetime.fromtimestamp(min(epoch, _LAST_HOUR)).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
