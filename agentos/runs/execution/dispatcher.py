"""Pair the next item with a lease and start the attempt.

Any worker may call the dispatcher, from any thread or task; it never blocks, except in the user's own input. Where no
lease is free, one request (a few, if requests differ) waits in the pool's wait queue for the whole run. Its answer goes
to the run's completion queue, from which any awake worker of the run takes it. A key that is released and granted again
to the same run therefore changes hands without a wake-up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ...errors import JournalUnavailable, NeverFits
from ...pool.completion_queue import CompletionQueue, QueuedRequest
from ...pool.requests import LeaseRequest, TicketState, request_cost
from ...util.locks import acquire_contended
from ...util.wakeup import ThreadWakeup
from ..core.records import Attempt, Item
from ..core.states import Cause
from ..options import call_for_text
from .error_policy import format_error
from .item_source import CHUNK, ItemSource
from .journal_writer import Recorder
from .run_state import RunState

log = logging.getLogger("agentos")


class Idle:
    """The result of ``next_attempt`` when there is nothing to do at the moment."""


IDLE = Idle()
DEADLINE = "the deadline"

_MAX_REQUESTS = 16  # queued at once, where one may be able to start before another
_MAX_REQUESTS_PER_MODEL = 2  # of them for one model
_MAX_DEFERRED = 1_000  # items deferred behind those: how far the run searches for one that can start
_MAX_UNSERVABLE = 1_000
_POLL_INTERVAL = 0.05  # seconds


class DispatcherShutdown(Protocol):
    """The part of the run's shutdown that the dispatcher calls."""

    def stop(self, reason: str, *, cause: Cause) -> None: ...

    def finish_if_idle(self) -> None: ...

    def on_input_error(self, error: Exception) -> None: ...

    def on_journal_lost(self, error: JournalUnavailable) -> None: ...


class Timer(Protocol):
    """The timer thread, as the dispatcher wakes it."""

    def wake(self) -> None: ...

    def schedule(self, instant: float) -> None: ...


class Dispatcher:
    """Finds work for the workers of one run.

    *pausing* returns True while nothing may start. *refuse* fails an item that cannot be run, with the reason.
    """

    def __init__(
        self,
        source: ItemSource,
        state: RunState,
        recorder: Recorder,
        shutdown: DispatcherShutdown,
        timers: Timer,
        *,
        pausing: Callable[[], bool],
        refuse: Callable[[Item, str], None],
    ) -> None:
        options = state.options
        self._source = source
        self._state = state
        self._recorder = recorder
        self._shutdown = shutdown
        self._timers = timers
        self._pausing = pausing
        self._refuse = refuse
        self._idle = state.idle
        self._lock = state.lock
        self._scheduler = state.scheduler
        self._pool = state.pool
        self._now = state.clock.now
        self._request_functions = (options.cost_func, options.model_func, options.affinity_func)
        self._uniform = self._request_functions == (None, None, None)  # any item may use any other's lease
        self._max_requests = 1 if self._uniform else _MAX_REQUESTS
        self.requests: dict[QueuedRequest, None] = {}  # queued, or answered and not yet taken
        self._enqueueing_threads: set[int] = set()  # threads that are queueing a request
        self._reading = False
        self.unservable_reason: str | None = None  # why some items can never start
        self._reported_unservable = False
        self._withdrawals: list[threading.Thread] = []
        self._releasing_threads: set[int] = set()  # threads that will check the completion queue next anyway
        self.completions = CompletionQueue(self._on_completion)
        self._completed = self.completions.completed

    # -- for workers ------------------------------------------------------------------------------------------

    def next_attempt(self) -> Attempt | Idle | None:
        """Return an attempt that has started and must be run now; ``IDLE``; or None: there will be no more."""
        state, scheduler, lock = self._state, self._scheduler, self._lock
        while True:
            if self._completed:
                attempt = self._take_completed()
                if attempt is not None:
                    return attempt
                continue
            if state.closing:
                return None
            if len(self.requests) >= self._max_requests or self._pausing():
                return self._idle_result()
            if not scheduler.retry_ready:
                deferred_enough = scheduler.deferred_count >= _MAX_DEFERRED
                if deferred_enough or not scheduler.fresh:
                    if (scheduler.deferred_count and self._resume_orphaned()) or (
                        not deferred_enough and self._read_input()
                    ):
                        continue
                    return None if state.closing else self._idle_result()
            # Inlined _next_item: this is the hot path.
            if not lock.acquire(False):
                acquire_contended(lock)
            try:
                item = scheduler.next_item()
            finally:
                lock.release()
            if item is None:
                continue  # another worker took it
            if item.fault is not None:
                self._refuse(item, item.fault)
                continue
            grant = None
            if self._pool is not None:
                request = state.plain_request if self._uniform else self._build_request(item)
                if request is None:
                    continue
                grant = self._pool.take_now(request, item.id)
                if grant is None:
                    self._enqueue_request(request, item)
                    continue
                if self._state.pause_reason is not None:  # it may have been set during take_now, which can block
                    self._decline(item, grant)
                    continue
                if scheduler.deferred_count:
                    self._resume_deferred(request.model)
            attempt = self._begin(item, grant)
            if attempt is not None:
                return attempt

    def _idle_result(self) -> Idle:
        if self._state.may_park and not self._scheduler.running:
            self._timers.wake()  # this worker may have been the last that could start something
        return IDLE

    @property
    def may_begin_work(self) -> bool:
        """True if something may start without another event: a worker is handling an item, or may take one."""
        scheduler = self._scheduler
        with self._lock:
            if self._enqueueing_threads or len(scheduler.admitted) > len(self.requests):
                return True
            if any(ticket.state is not TicketState.WAITING for ticket in self.requests):
                return True  # answered, and perhaps about to be taken
            if len(self.requests) >= self._max_requests:
                return False
            return bool(scheduler.retry_ready) or (
                scheduler.deferred_count < _MAX_DEFERRED and bool(scheduler.fresh or not scheduler.exhausted)
            )

    def _resume_deferred(self, model: str | None) -> None:
        """Make one deferred item of the model ready: another of that model got its lease at once."""
        with self._lock:
            self._scheduler.resume_deferred(model)
        self._idle.wake()

    def _resume_orphaned(self) -> bool:
        """Make deferred items ready whose model has no queued request."""
        with self._lock:
            queued_models = {ticket.request.model for ticket in self.requests}
            orphans = [model for model in self._scheduler.deferred_by_model if model not in queued_models]
            for model in orphans:
                self._scheduler.resume_deferred(model)
        return bool(orphans)

    def _next_item(self) -> Item | None:
        with self._lock:
            return self._scheduler.next_item()

    def _request(self, item: Item) -> None:
        """Request a lease for an item that another worker will run; the answer goes to the completion queue."""
        request = self._state.plain_request if self._uniform else self._build_request(item)
        if request is not None:
            self._enqueue_request(request, item)

    def _enqueue_request(self, request: LeaseRequest, item: Item) -> None:
        """Queue a request; or defer the item, if enough requests for its model are queued already."""
        ticket = QueuedRequest(request, item.id, self.completions, item)
        me = threading.get_ident()
        with self._lock:
            alike = 0 if self._uniform else sum(other.request.model == request.model for other in self.requests)
            if alike >= _MAX_REQUESTS_PER_MODEL:
                self._scheduler.defer(item, request.model)
                return
            self.requests[ticket] = None
            self._enqueueing_threads.add(me)
        try:
            self._pool.enqueue(ticket)  # type: ignore[union-attr]
        finally:
            self._enqueueing_threads.discard(me)
        if ticket.is_withdrawn:
            return  # withdrawn before it was queued, or after
        if self._state.closing or self._state.pause_reason is not None:
            self.withdraw_requests()  # it was queued while all the others were withdrawn

    def _build_request(self, item: Item) -> LeaseRequest | None:
        """Build the item's lease request. None: a user function failed, and so did the item."""
        cost_func, model_func, affinity_func = self._request_functions
        try:
            cost = None if cost_func is None else cost_func(item.payload)
            model = call_for_text("model_func", model_func, item.payload)
            affinity = call_for_text("affinity_func", affinity_func, item.payload)
            request = LeaseRequest(request_cost(cost), model, affinity, labels=self._state.plain_request.labels)
            needs_margin = item.token_shortfalls and cost is not None and self._pool is not None
            return self._pool.with_margin(request, item.token_shortfalls) if needs_margin else request  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - an error of a user function fails this item only
            self._refuse(item, f"{type(error).__name__}: {format_error(error)}")
            return None

    def _begin(self, item: Item, grant: Any) -> Attempt | None:
        lock, scheduler = self._lock, self._scheduler
        if not lock.acquire(False):
            acquire_contended(lock)
        try:
            if self._uniform and scheduler.retry_ready:
                better = scheduler.swap_for_earlier(item)
                if better is not item and grant is not None:
                    grant.requester = better.id
                item = better
            now = self._now()
            attempt = scheduler.begin(item, grant, now)
            if attempt is not None and self._recorder.enabled:
                # Still under the lock: the journal must have the start before an abandonment.
                self._recorder.record_start(attempt)
        finally:
            lock.release()
        if attempt is None:
            if grant is not None:
                self._pool.give_back(grant)  # type: ignore[union-attr]
            if now >= scheduler.deadline:
                self._shutdown.stop(DEADLINE, cause=Cause.DEADLINE)  # the timer thread has not noticed yet
            return None
        return attempt

    # -- answers ----------------------------------------------------------------------------------------------

    def _take_completed(self) -> Attempt | None:
        try:
            ticket = self._completed.popleft()
        except IndexError:
            return None  # another worker took it
        with self._lock:
            if self.requests.pop(ticket, self) is self:
                return None  # it was withdrawn at the same time
            if self._scheduler.deferred_count:
                self._scheduler.resume_deferred(ticket.request.model, all_of_them=ticket.state is TicketState.FAILED)
        if ticket.state is TicketState.FAILED:
            self._on_unservable(ticket)
            return None
        if self._state.pause_reason is not None:
            self._decline(ticket.item, ticket.grant)
            return None
        attempt = self._begin(ticket.item, ticket.grant)
        if attempt is not None:
            if self._completed:
                self._idle.wake()
            elif not self._pausing():
                self._replenish()
        return attempt

    def _replenish(self) -> None:
        """Queue the next request for the idle workers, after a now busy worker took an answer."""
        state = self._state
        while len(self._idle) and len(self.requests) < self._max_requests and not state.closing:
            item = self._next_item()
            if item is None:
                if not self._scheduler.exhausted:
                    self._idle.wake()  # one that reads the input, while this worker is busy
                return
            if item.fault is not None:
                self._refuse(item, item.fault)
                continue
            self._request(item)

    def _on_unservable(self, ticket: QueuedRequest) -> None:
        """Fail or set aside the item of a request that no credential can ever serve."""
        error, item = ticket.error, ticket.item
        if isinstance(error, NeverFits):
            self._refuse(item, str(error))
            return
        with self._lock:
            self._scheduler.mark_unservable(item)
            self.unservable_reason = str(error)
            many = len(self._scheduler.unservable) >= _MAX_UNSERVABLE
        if self._uniform or many:
            self._shutdown.stop(str(error), cause=Cause.CREDENTIALS)
        elif not self._reported_unservable:
            self._reported_unservable = True
            log.error("[COORDINATOR] %s cannot be served: %s; it stays pending", item.id, error)
        self._shutdown.finish_if_idle()

    def _decline(self, item: Item, grant: Any) -> None:
        """Release the lease and put the item back: nothing may start now."""
        if grant is not None and self._pool is not None:
            self._pool.give_back(grant)
        with self._lock:
            self._scheduler.put_back(item)

    def withdraw_requests(self) -> None:
        """Withdraw every queued request: nothing may start any more, or for a while."""
        with self._lock:
            withdrawn = list(self.requests)
            self.requests.clear()
            for ticket in withdrawn:
                ticket.is_withdrawn = True
                self._scheduler.resume_deferred(ticket.request.model, all_of_them=True)
                self._scheduler.put_back(ticket.item)
        if withdrawn and getattr(self._pool, "lease_ttl", None) is not None:
            # The store may be slow to answer, and the caller may be the thread that handles signals.
            thread = threading.Thread(
                target=self._cancel_requests, args=(withdrawn,), name="agentos-withdraw", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                pass  # no more threads: cancel them here
            else:
                self._withdrawals = [*(each for each in self._withdrawals if each.is_alive()), thread]
                return
        self._cancel_requests(withdrawn)

    def _cancel_requests(self, tickets: list[QueuedRequest]) -> None:
        for ticket in tickets:
            self._pool.cancel(ticket)  # type: ignore[union-attr]
            try:
                self._completed.remove(ticket)
            except ValueError:
                pass

    def wait_for_withdrawal(self, patience: float, hurry: Callable[[], bool]) -> None:
        """Wait until the pool has processed the withdrawals, so that its next user does not find them in the queue."""
        until = time.monotonic() + patience
        for withdrawal in self._withdrawals:
            while withdrawal.is_alive() and time.monotonic() < until and not hurry():
                withdrawal.join(_POLL_INTERVAL)

    # -- the completion queue ---------------------------------------------------------------------------------

    def _on_completion(self) -> None:
        """Wake workers for completed requests, and reschedule the timer. Any thread may call this."""
        if self._completed and threading.get_ident() not in self._releasing_threads:
            self._idle.wake(len(self._completed))
        self._timers.schedule(self.completions.armed_at)

    def release_lease(self, grant: Any) -> None:
        """Release a lease. If that completes a request of this run, the caller finds it when it looks for work."""
        me = threading.get_ident()
        self._releasing_threads.add(me)
        try:
            self._pool.give_back(grant)  # type: ignore[union-attr]
        finally:
            self._releasing_threads.discard(me)

    def on_timer(self) -> None:
        """Run the pool's timer, at the instant that the pool asked for."""
        if self._pool is not None:
            self._pool.on_timer(self.completions)

    # -- more of the input ------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Return True if there is something to do, or there will be no more; read the input to find out.

        Starts nothing; a run with nothing left to do ends by this. False is the same as ``IDLE``.
        """
        scheduler, state = self._scheduler, self._state
        while not (scheduler.fresh or scheduler.retry_ready or self._completed or state.closing):
            if self._pausing() or not self._read_input():
                return False
        return True

    def count_recorded(self) -> None:
        """Publish every recorded result of a list, even if the run ends before its workers start.

        Waits while too many results are unpublished.
        """
        state = self._state
        while (
            self._recorder.resumes
            and self._source.total is not None
            and not (self._scheduler.exhausted or state.closing)
        ):
            wakeup = ThreadWakeup()
            self._idle.register(wakeup)
            if self._pausing():
                wakeup.wait()
                continue
            self._idle.unregister(wakeup)
            if not self._read_input(read_ahead=True):
                return  # another thread is reading

    @property
    def may_read_more(self) -> bool:
        """True if another party reads the input and does not check whether the run is over."""
        return self._reading or (self._source.is_pushed and not self._scheduler.exhausted)

    def _read_input(self, read_ahead: bool = False) -> bool:
        """Read more of the input; unless *read_ahead*, only if none is left. False: it has ended or is being read."""
        if self._source.is_pushed:
            self._state.on_room()
            return False
        scheduler = self._scheduler
        with self._lock:
            if self._reading or scheduler.exhausted:
                return False
            if scheduler.fresh and not read_ahead:
                return True  # another worker did
            self._reading = True
        more = False
        try:
            more = self._read_batch()
        except JournalUnavailable as error:
            self._shutdown.on_journal_lost(error)  # looking up the known items failed
        except Exception as error:  # noqa: BLE001 - an error of the user's input ends the run and is reported
            if not self._state.is_over:  # else the read blocked for long, and its error no longer matters
                self._shutdown.on_input_error(error)
        finally:
            with self._lock:
                self._reading = False
                if not more:
                    scheduler.exhausted = True
        self._idle.wake(len(scheduler.fresh) - 1)
        if not more:
            self._shutdown.finish_if_idle()
        return True

    def _read_batch(self) -> bool:
        if self._source.total is not None:
            batch, more = self._source.take_listed(CHUNK * 4)
            if self._recorder.resumes:
                self._recorder.split_known(batch, self._add_item)
            else:
                self._scheduler.taken += len(batch)
                self._scheduler.fresh.extend(batch)
            return more

        idle, resumes = self._idle, self._recorder.resumes

        def put(item: Item) -> None:
            if resumes:
                self._recorder.split_known((item,), self._add_item)
            else:
                self._add_item(item)
            if len(idle):
                idle.wake()  # at once: the next item may take long to arrive

        return self._source.take(put, CHUNK)

    def _add_item(self, item: Item) -> None:
        self._scheduler.taken += 1
        self._scheduler.fresh.append(item)

    def input_room(self) -> int:
        """Return how many more items a pushed input may add now."""
        if self._state.closing or self._pausing():
            return 0
        return CHUNK - len(self._scheduler.fresh)

    def push(self, payload: Any) -> None:
        """Add an item of a pushed input."""
        self._recorder.split_known((self._source.make(payload),), self._add_item)
        self._idle.wake()

    def end_input(self) -> None:
        with self._lock:
            self._scheduler.exhausted = True
        self._shutdown.finish_if_idle()
        self._idle.wake_all()
