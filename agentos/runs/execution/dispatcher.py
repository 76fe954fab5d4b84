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
from ...pool.requests import PLAIN, LeaseRequest, TicketState, request_cost
from ...util.locks import acquire_contended
from ...util.wakeup import ThreadWakeup
from ..core.records import Attempt, Item
from ..core.states import Cause
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
        ledger: Recorder,
        shutdown: DispatcherShutdown,
        supervisor: Timer,
        *,
        pausing: Callable[[], bool],
        refuse: Callable[[Item, str], None],
    ) -> None:
        options = state.options
        self._source = source
        self._state = state
        self._ledger = ledger
        self._shutdown = shutdown
        self._supervisor = supervisor
        self._pausing = pausing
        self._refuse = refuse
        self._idle = state.idle
        self._lock = state.lock
        self._scheduler = state.scheduler
        self._pool = state.pool
        self._now = state.clock.now
        self._ask_functions = (options.cost_func, options.model_func, options.affinity_func)
        self._uniform = self._ask_functions == (None, None, None)  # any item may use any other's lease
        self._max_requests = 1 if self._uniform else _MAX_REQUESTS
        self.requests: dict[QueuedRequest, None] = {}  # queued, or answered and not yet taken
        self._asking: set[int] = set()  # threads that are queueing a request
        self._pulling = False
        self.unservable_reason: str | None = None  # why some items can never start
        self._told_hopeless = False
        self._withdrawals: list[threading.Thread] = []
        self._giving_back: set[int] = set()  # threads that will check the completion queue next anyway
        self.completions = CompletionQueue(self._on_completion)
        self._answered = self.completions.completed

    # -- for workers ------------------------------------------------------------------------------------------

    def next_attempt(self) -> Attempt | Idle | None:
        """Return an attempt that has started and must be run now; ``IDLE``; or None: there will be no more."""
        state, board, lock = self._state, self._scheduler, self._lock
        while True:
            if self._answered:
                attempt = self._take_answer()
                if attempt is not None:
                    return attempt
                continue
            if state.closing:
                return None
            if len(self.requests) >= self._max_requests or self._pausing():
                return self._idle_result()
            if not board.retry_ready:
                looked_far = board.deferred_count >= _MAX_DEFERRED
                if looked_far or not board.fresh:
                    if (board.deferred_count and self._resume_orphaned()) or (not looked_far and self._read_input()):
                        continue
                    return None if state.closing else self._idle_result()
            # Inlined _next_item: this is the hot path.
            if not lock.acquire(False):
                acquire_contended(lock)
            try:
                item = board.next_item()
            finally:
                lock.release()
            if item is None:
                continue  # another worker took it
            if item.fault is not None:
                self._refuse(item, item.fault)
                continue
            grant = None
            if self._pool is not None:
                ask = PLAIN if self._uniform else self._build_ask(item)
                if ask is None:
                    continue
                grant = self._pool.take_now(ask, item.id)
                if grant is None:
                    self._enqueue_request(ask, item)
                    continue
                if self._state.pause_reason is not None:  # it may have been set during take_now, which can block
                    self._decline(item, grant)
                    continue
                if board.deferred_count:
                    self._resume_deferred(ask.model)
            attempt = self._begin(item, grant)
            if attempt is not None:
                return attempt

    def _idle_result(self) -> Idle:
        if self._state.may_park and not self._scheduler.running:
            self._supervisor.wake()  # this worker may have been the last that could start something
        return IDLE

    @property
    def may_begin_work(self) -> bool:
        """True if something may start without another event: a worker is handling an item, or may take one."""
        board = self._scheduler
        with self._lock:
            if self._asking or len(board.admitted) > len(self.requests):
                return True
            if any(ticket.state is not TicketState.WAITING for ticket in self.requests):
                return True  # answered, and perhaps about to be taken
            if len(self.requests) >= self._max_requests:
                return False
            return bool(board.retry_ready) or (
                board.deferred_count < _MAX_DEFERRED and bool(board.fresh or not board.exhausted)
            )

    def _resume_deferred(self, model: str | None) -> None:
        """Make one deferred item of the model ready: another of that model got its lease at once."""
        with self._lock:
            self._scheduler.resume_deferred(model)
        self._idle.wake()

    def _resume_orphaned(self) -> bool:
        """Make deferred items ready whose model has no queued request."""
        with self._lock:
            in_line = {ticket.request.model for ticket in self.requests}
            orphans = [model for model in self._scheduler.deferred_by_model if model not in in_line]
            for model in orphans:
                self._scheduler.resume_deferred(model)
        return bool(orphans)

    def _next_item(self) -> Item | None:
        with self._lock:
            return self._scheduler.next_item()

    def _request(self, item: Item) -> None:
        """Request a lease for an item that another worker will run; the answer goes to the completion queue."""
        ask = PLAIN if self._uniform else self._build_ask(item)
        if ask is not None:
            self._enqueue_request(ask, item)

    def _enqueue_request(self, ask: LeaseRequest, item: Item) -> None:
        """Queue a request; or defer the item, if enough requests for its model are queued already."""
        ticket = QueuedRequest(ask, item.id, self.completions, item)
        me = threading.get_ident()
        with self._lock:
            alike = 0 if self._uniform else sum(other.request.model == ask.model for other in self.requests)
            if alike >= _MAX_REQUESTS_PER_MODEL:
                self._scheduler.defer(item, ask.model)
                return
            self.requests[ticket] = None
            self._asking.add(me)
        try:
            self._pool.enqueue(ticket)  # type: ignore[union-attr]
        finally:
            self._asking.discard(me)
        if ticket.is_withdrawn:
            return  # withdrawn before it was queued, or after
        if self._state.closing or self._state.pause_reason is not None:
            self.withdraw_requests()  # it was queued while all the others were withdrawn

    def _build_ask(self, item: Item) -> LeaseRequest | None:
        """Build the item's lease request. None: a user function failed, and so did the item."""
        cost_of, model_of, affinity_of = self._ask_functions
        try:
            cost = None if cost_of is None else cost_of(item.payload)
            model = _text("model_func", model_of, item.payload)
            affinity = _text("affinity_func", affinity_of, item.payload)
            ask = LeaseRequest(request_cost(cost), model, affinity)
            told_too_low = item.token_shortfalls and cost is not None and self._pool is not None
            return self._pool.with_margin(ask, item.token_shortfalls) if told_too_low else ask  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - an error of a user function fails this item only
            self._refuse(item, f"{type(error).__name__}: {format_error(error)}")
            return None

    def _begin(self, item: Item, grant: Any) -> Attempt | None:
        lock, board = self._lock, self._scheduler
        if not lock.acquire(False):
            acquire_contended(lock)
        try:
            if self._uniform and board.retry_ready:
                better = board.swap_for_earlier(item)
                if better is not item and grant is not None:
                    grant.requester = better.id
                item = better
            now = self._now()
            attempt = board.begin(item, grant, now)
            if attempt is not None and self._ledger.enabled:
                # Still under the lock: the journal must have the start before an abandonment.
                self._ledger.record_start(attempt)
        finally:
            lock.release()
        if attempt is None:
            if grant is not None:
                self._pool.give_back(grant)  # type: ignore[union-attr]
            if now >= board.deadline:
                self._shutdown.stop(DEADLINE, cause=Cause.DEADLINE)  # the timer thread has not noticed yet
            return None
        return attempt

    # -- answers ----------------------------------------------------------------------------------------------

    def _take_answer(self) -> Attempt | None:
        try:
            ticket = self._answered.popleft()
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
            if self._answered:
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
        elif not self._told_hopeless:
            self._told_hopeless = True
            log.error("[COORDINATOR] %s waits for nothing: %s; it stays pending", item.id, error)
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
            recalled = list(self.requests)
            self.requests.clear()
            for ticket in recalled:
                ticket.is_withdrawn = True
                self._scheduler.resume_deferred(ticket.request.model, all_of_them=True)
                self._scheduler.put_back(ticket.item)
        if recalled and getattr(self._pool, "lease_ttl", None) is not None:
            # The store may be slow to answer, and the caller may be the thread that handles signals.
            aside = threading.Thread(target=self._cancel_requests, args=(recalled,), name="agentos-recall", daemon=True)
            try:
                aside.start()
            except RuntimeError:
                pass  # no more threads: cancel them here
            else:
                self._withdrawals = [*(each for each in self._withdrawals if each.is_alive()), aside]
                return
        self._cancel_requests(recalled)

    def _cancel_requests(self, tickets: list[QueuedRequest]) -> None:
        for ticket in tickets:
            self._pool.cancel(ticket)  # type: ignore[union-attr]
            try:
                self._answered.remove(ticket)
            except ValueError:
                pass

    def wait_for_withdrawal(self, patience: float, hurry: Callable[[], bool]) -> None:
        """Wait until the pool has processed the withdrawals, so that its next user does not find them in the queue."""
        until = time.monotonic() + patience
        for recall in self._withdrawals:
            while recall.is_alive() and time.monotonic() < until and not hurry():
                recall.join(_POLL_INTERVAL)

    # -- the completion queue ---------------------------------------------------------------------------------

    def _on_completion(self) -> None:
        """Wake workers for completed requests, and reschedule the timer. Any thread may call this."""
        if self._answered and threading.get_ident() not in self._giving_back:
            self._idle.wake(len(self._answered))
        self._supervisor.schedule(self.completions.armed_at)

    def release_lease(self, grant: Any) -> None:
        """Release a lease. If that completes a request of this run, the caller finds it when it looks for work."""
        me = threading.get_ident()
        self._giving_back.add(me)
        try:
            self._pool.give_back(grant)  # type: ignore[union-attr]
        finally:
            self._giving_back.discard(me)

    def on_timer(self) -> None:
        """Run the pool's timer, at the instant that the pool asked for."""
        if self._pool is not None:
            self._pool.on_timer(self.completions)

    # -- more of the input ------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Return True if there is something to do, or there will be no more; read the input to find out.

        Starts nothing; a run with nothing left to do ends by this. False is the same as ``IDLE``.
        """
        board, state = self._scheduler, self._state
        while not (board.fresh or board.retry_ready or self._answered or state.closing):
            if self._pausing() or not self._read_input():
                return False
        return True

    def count_recorded(self) -> None:
        """Publish every recorded result of a list, even if the run ends before its workers start.

        Waits while too many results are unpublished.
        """
        state = self._state
        while (
            self._ledger.resumes and self._source.total is not None and not (self._scheduler.exhausted or state.closing)
        ):
            bell = ThreadWakeup()
            self._idle.register(bell)
            if self._pausing():
                bell.wait()
                continue
            self._idle.unregister(bell)
            if not self._read_input(on_and_on=True):
                return  # another thread is reading

    @property
    def may_read_more(self) -> bool:
        """True if another party reads the input and does not check whether the run is over."""
        return self._pulling or (self._source.is_pushed and not self._scheduler.exhausted)

    def _read_input(self, on_and_on: bool = False) -> bool:
        """Read more of the input; unless *on_and_on*, only if none is left. False: it has ended or is being read."""
        if self._source.is_pushed:
            self._state.on_room()
            return False
        board = self._scheduler
        with self._lock:
            if self._pulling or board.exhausted:
                return False
            if board.fresh and not on_and_on:
                return True  # another worker did
            self._pulling = True
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
                self._pulling = False
                if not more:
                    board.exhausted = True
        self._idle.wake(len(board.fresh) - 1)
        if not more:
            self._shutdown.finish_if_idle()
        return True

    def _read_batch(self) -> bool:
        if self._source.total is not None:
            batch, more = self._source.take_listed(CHUNK * 4)
            if self._ledger.resumes:
                self._ledger.split_known(batch, self._add_item)
            else:
                self._scheduler.taken += len(batch)
                self._scheduler.fresh.extend(batch)
            return more

        idle, resumes = self._idle, self._ledger.resumes

        def put(item: Item) -> None:
            if resumes:
                self._ledger.split_known((item,), self._add_item)
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
        self._ledger.split_known((self._source.make(payload),), self._add_item)
        self._idle.wake()

    def end_input(self) -> None:
        with self._lock:
            self._scheduler.exhausted = True
        self._shutdown.finish_if_idle()
        self._idle.wake_all()


def _text(name: str, function: Any, payload: Any) -> str | None:
    if function is None:
        return None
    found = function(payload)
    if found is not None and not (isinstance(found, str) and found):
        raise ValueError(f"{name} must give text or None, not {found!r}")
    return found
