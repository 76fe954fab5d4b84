"""Waiting threads and tasks: how each sleeps, is woken, and sets its timer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from ...util.clock import Alarm, Clock
from ...util.event_loop import running_loop
from ..completion_queue import CompletionQueue, QueuedRequest
from ..core.learning.adaptive_pool import AdaptivePool
from ..core.limits.base import FOREVER
from ..core.records import Ticket
from ..core.states import TicketState

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

_DELIVERY_TIMEOUT = 1.0


class ThreadWaiter:
    """A thread that sleeps until it is woken, or until the instant it was armed for."""

    __slots__ = ("armed_at", "sleeper")

    def __init__(self) -> None:
        self.sleeper = threading.Lock()
        self.sleeper.acquire()
        self.armed_at = FOREVER

    def wake(self) -> bool:
        """Wake the thread. It checks itself what has happened, so that a second wake-up does no harm."""
        try:
            self.sleeper.release()
        except RuntimeError:
            pass  # already awake
        return True


class TaskWaiter:
    """A task that sleeps on a future of its own loop."""

    __slots__ = ("future", "loop", "registered", "ticket")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.ticket: Ticket | None = None
        self.registered = False  # counted in its loop's timer
        self.future: Future[None] = loop.create_future()

    def sleep_again(self) -> None:
        self.future = self.loop.create_future()

    def wake(self) -> bool:
        """Wake the task. False: its loop is closed."""
        return call_on(self.loop, self.set)

    def set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class LoopTimer:
    """One timer per loop in which tasks wait, so that a blocked loop delays only its own tasks."""

    __slots__ = ("_alarm", "_clock", "_fire", "armed_at", "loop", "waiting")

    def __init__(self, loop: AbstractEventLoop, clock: Clock, fire: Callable[[LoopTimer], None]) -> None:
        self.loop = loop
        self.waiting = 0
        self.armed_at = FOREVER  # changed only under the pool's lock
        self._clock = clock
        self._fire = fire
        self._alarm: Alarm | None = None

    def wake(self) -> bool:
        """Set the timer to ``armed_at``, from any thread."""
        return call_on(self.loop, self._set)

    def _set(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self.waiting and self.armed_at < FOREVER:
            self._alarm = self._clock.call_at(self.loop, self.armed_at, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self._fire(self)


def call_on(loop: AbstractEventLoop, callback: Callable[[], None]) -> bool:
    """Call *callback* on the loop's thread: at once from there, else as soon as the loop can. False: it is closed."""
    try:
        if loop.is_closed():
            return False
        if running_loop() is loop:
            callback()
        else:
            loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return False  # it has just closed
    return True


Owner = ThreadWaiter | TaskWaiter | LoopTimer | CompletionQueue


class WaiterTable:
    """The threads, loops and completion queues that wait for a lease, and their timers. Used under the pool's lock."""

    def __init__(self, core: AdaptivePool, clock: Clock) -> None:
        self._core = core
        self._clock = clock
        self.threads: OrderedDict[ThreadWaiter, None] = OrderedDict()
        self.alarms: dict[AbstractEventLoop, LoopTimer] = {}
        self.queues: dict[CompletionQueue, None] = {}
        self.handed: dict[TaskWaiter, None] = {}  # granted, and not yet picked up

    def register(self, ticket: Ticket, on_timer: Callable[[LoopTimer], None]) -> None:
        """Add the owner of a waiting ticket; *on_timer* is called when the timer of its loop fires."""
        owner: ThreadWaiter | TaskWaiter | CompletionQueue = ticket.owner
        if isinstance(owner, ThreadWaiter):
            self.threads[owner] = None
            return
        if isinstance(ticket, QueuedRequest):
            ticket.is_queued = True
            ticket.owner.waiting += 1
            self.queues[ticket.owner] = None
            return
        assert isinstance(owner, TaskWaiter)  # noqa: S101 - for the type checker
        alarm = self.alarms.get(owner.loop)
        if alarm is None:
            alarm = self.alarms[owner.loop] = LoopTimer(owner.loop, self._clock, on_timer)
        alarm.waiting += 1
        owner.registered = True

    def forget(self, ticket: Ticket, wakes: list[Owner]) -> None:
        """Remove the owner of a ticket that no longer waits; add the owners to wake to *wakes*."""
        owner: ThreadWaiter | TaskWaiter | CompletionQueue = ticket.owner
        if isinstance(owner, ThreadWaiter):
            self.threads.pop(owner, None)
        elif isinstance(ticket, QueuedRequest):
            if ticket.is_queued:
                ticket.is_queued = False
                queue: CompletionQueue = ticket.owner
                queue.waiting -= 1
                if not queue.waiting:
                    self.queues.pop(queue, None)
                    queue.armed_at = FOREVER
        elif isinstance(owner, TaskWaiter) and owner.registered:
            owner.registered = False
            alarm = self.alarms[owner.loop]
            alarm.waiting -= 1
            if not alarm.waiting:
                del self.alarms[owner.loop]
                if alarm.armed_at < FOREVER:
                    alarm.armed_at = FOREVER
                    wakes.append(alarm)  # to cancel its timer

    def clear(self) -> None:
        """Remove everything, without waking anything."""
        self.threads.clear()
        self.alarms.clear()
        self.queues.clear()
        self.handed.clear()

    def after(self, touched: Sequence[Ticket]) -> list[Owner]:
        """Return the owners to wake after a step of the core, including those that must set a timer."""
        wakes: list[Owner] = []
        for ticket in touched:
            owner = ticket.owner
            self.forget(ticket, wakes)
            wakes.append(owner)
            if isinstance(ticket, QueuedRequest):
                owner.completed.append(ticket)
            elif isinstance(owner, TaskWaiter) and ticket.state is TicketState.GRANTED:
                self.handed[owner] = None
        core = self._core
        if core.next_ticket is not None:
            owner = core.next_ticket.owner
            if isinstance(owner, (ThreadWaiter, CompletionQueue)):
                self._arm(owner, core.next_at, wakes)
            else:
                self._arm_all(core.next_at, wakes)
        if self.handed and core.waiting:
            # If a loop closes before its task has picked its lease up, another waiter must notice.
            handed = list(self.handed)  # a copy: leases are picked up without the lock
            self._arm_all(self._clock.now() + _DELIVERY_TIMEOUT, wakes, but={waiter.loop for waiter in handed})
        return wakes

    def _arm_all(self, at: float, wakes: list[Owner], but: Collection[AbstractEventLoop] = ()) -> None:
        """Arm every loop with waiting tasks, every completion queue and the first waiting thread: one can run."""
        for alarm in self.alarms.values():
            if alarm.loop not in but:
                self._arm(alarm, at, wakes)
        for queue in self.queues:
            self._arm(queue, at, wakes)
        for thread in self.threads:
            self._arm(thread, at, wakes)
            break

    @staticmethod
    def _arm(owner: ThreadWaiter | LoopTimer | CompletionQueue, at: float, wakes: list[Owner]) -> None:
        if owner.armed_at > at:
            owner.armed_at = at
            wakes.append(owner)
