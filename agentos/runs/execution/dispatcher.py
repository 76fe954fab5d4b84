"""Admission: the next item together with a lease that can carry it, or nothing.

Any worker may ask, from any thread or task; nobody blocks in here, except in the user's own input. Where no lease is
free, one request (a few, if requests differ) stands in the pool's line for the whole run, and is answered at its
desk: whoever of the run's workers is awake takes the answer. So a key that is given back and granted again to the
same run changes hands without waking anybody.
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
    """There is nothing to do at the moment."""


IDLE = Idle()

DEADLINE = "the deadline"

_MAX_REQUESTS = 16  # in line at once, where one may be able to start before another
_MAX_REQUESTS_PER_MODEL = 2  # of them for one model
_MAX_DEFERRED = 1_000  # items behind those: as far as a run looks for one that can start
_MAX_UNSERVABLE = 1_000
_POLL_INTERVAL = 0.05  # seconds, between two looks whether there is still time to wait


class DispatcherShutdown(Protocol):
    """The part of the run's shutdown that the dispatcher calls."""

    def stop(self, reason: str, *, cause: Cause) -> None: ...

    def finish_if_idle(self) -> None: ...

    def on_input_error(self, error: Exception) -> None: ...

    def on_journal_lost(self, error: JournalUnavailable) -> None: ...


class Timer(Protocol):
    """The supervisor, as admission wakes it."""

    def wake(self) -> None: ...

    def schedule(self, instant: float) -> None: ...


class Dispatcher:
    """Finds work for the workers of one run.

    *pausing*: nothing may begin for now. *refuse* fails an item that cannot be run, with the reason.
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
        self.requests: dict[QueuedRequest, None] = {}  # in line, or answered and not yet taken
        self._asking: set[int] = set()  # threads that are about to have put a request in line
        self._pulling = False
        self.unservable_reason: str | None = None  # why some items wait for nothing
        self._told_hopeless = False
        self._withdrawals: list[threading.Thread] = []
        self._giving_back: set[int] = set()  # threads that will look at the desk in a moment anyway
        self.completions = CompletionQueue(self._on_completion)
        self._answered = self.completions.completed

    # -- for workers ------------------------------------------------------------------------------------------

    def next_attempt(self) -> Attempt | Idle | None:
        """An attempt that has begun and is to be run now; ``IDLE``; or None: there will be no more."""
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
            # _next_item, written out: it is the way of every item.
            if not lock.acquire(False):
                acquire_contended(lock)
            try:
                item = board.next_item()
            finally:
                lock.release()
            if item is None:
                continue  # another worker was quicker
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
                if self._state.pause_reason is not None:  # since the pool was asked, which may have blocked
                    self._decline(item, grant)
                    continue
                if board.deferred_count:
                    self._resume_deferred(ask.model)
            attempt = self._begin(item, grant)
            if attempt is not None:
                return attempt

    def _idle_result(self) -> Idle:
        if self._state.may_park and not self._scheduler.running:
            self._supervisor.wake()  # perhaps we were the last who might have begun something
        return IDLE

    @property
    def may_begin_work(self) -> bool:
        """Whether something may begin without anything else happening: an item is in a worker's hands, or to be."""
        board = self._scheduler
        with self._lock:
            if self._asking or len(board.admitted) > len(self.requests):
                return True
            if any(ticket.state is not TicketState.WAITING for ticket in self.requests):
                return True  # answered, and perhaps on its way to whoever takes it
            if len(self.requests) >= self._max_requests:
                return False
            return bool(board.retry_ready) or (
                board.deferred_count < _MAX_DEFERRED and bool(board.fresh or not board.exhausted)
            )

    def _resume_deferred(self, model: str | None) -> None:
        """One of the model got its lease at once: perhaps one that stands aside does too."""
        with self._lock:
            self._scheduler.resume_deferred(model)
        self._idle.wake()

    def _resume_orphaned(self) -> bool:
        """Let those go on that stand aside behind nobody."""
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
        """Ask for a lease for an item that another worker shall run: answered at the desk, perhaps at once."""
        ask = PLAIN if self._uniform else self._build_ask(item)
        if ask is not None:
            self._enqueue_request(ask, item)

    def _enqueue_request(self, ask: LeaseRequest, item: Item) -> None:
        """Put a request in the pool's line; or, if enough for this model are there already, the item aside."""
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
            return  # before it was in line, or out of it again
        if self._state.closing or self._state.pause_reason is not None:
            self.withdraw_requests()  # it was put in line in the very moment when all were taken out

    def _build_ask(self, item: Item) -> LeaseRequest | None:
        """What the item needs of a credential. None: the user's functions could not tell, and it failed."""
        cost_of, model_of, affinity_of = self._ask_functions
        try:
            cost = None if cost_of is None else cost_of(item.payload)
            model = _text("model_func", model_of, item.payload)
            affinity = _text("affinity_func", affinity_of, item.payload)
            ask = LeaseRequest(request_cost(cost), model, affinity)
            told_too_low = item.token_shortfalls and cost is not None and self._pool is not None
            return self._pool.with_margin(ask, item.token_shortfalls) if told_too_low else ask  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - whatever they raise concerns this item only
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
                # Still under the lock: whoever gives the attempt up must not be written down before its start.
                self._ledger.record_start(attempt)
        finally:
            lock.release()
        if attempt is None:
            if grant is not None:
                self._pool.give_back(grant)  # type: ignore[union-attr]
            if now >= board.deadline:
                self._shutdown.stop(DEADLINE, cause=Cause.DEADLINE)  # its supervisor has not looked yet
            return None
        return attempt

    # -- answers ----------------------------------------------------------------------------------------------

    def _take_answer(self) -> Attempt | None:
        try:
            ticket = self._answered.popleft()
        except IndexError:
            return None  # another worker was quicker
        with self._lock:
            if self.requests.pop(ticket, self) is self:
                return None  # it was called off in this very moment
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
        """An answer was taken, by a worker that is now busy: put the next request in line for those who are not."""
        state = self._state
        while len(self._idle) and len(self.requests) < self._max_requests and not state.closing:
            item = self._next_item()
            if item is None:
                if not self._scheduler.exhausted:
                    self._idle.wake()  # to look for more of the input, while this worker is busy
                return
            if item.fault is not None:
                self._refuse(item, item.fault)
                continue
            self._request(item)

    def _on_unservable(self, ticket: QueuedRequest) -> None:
        """No credential can ever serve this request."""
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
        """Nothing may begin now: give the lease back, and the item its place."""
        if grant is not None and self._pool is not None:
            self._pool.give_back(grant)
        with self._lock:
            self._scheduler.put_back(item)

    def withdraw_requests(self) -> None:
        """Nothing may begin any more, or for a while: take every request out of the line."""
        with self._lock:
            recalled = list(self.requests)
            self.requests.clear()
            for ticket in recalled:
                ticket.is_withdrawn = True
                self._scheduler.resume_deferred(ticket.request.model, all_of_them=True)
                self._scheduler.put_back(ticket.item)
        if recalled and getattr(self._pool, "lease_ttl", None) is not None:
            # Its store may not answer for a while, and whoever hears of signals must go on hearing.
            aside = threading.Thread(target=self._cancel_requests, args=(recalled,), name="agentos-recall", daemon=True)
            try:
                aside.start()
            except RuntimeError:
                pass  # there can be no more threads: then here
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
        """Until the pool knows that nothing is asked for any more: whoever asks it next must not find us in line."""
        until = time.monotonic() + patience
        for recall in self._withdrawals:
            while recall.is_alive() and time.monotonic() < until and not hurry():
                recall.join(_POLL_INTERVAL)

    # -- news from the desk -----------------------------------------------------------------------------------

    def _on_completion(self) -> None:
        """A request was answered, or the pool wants to be looked at earlier. Called by whoever caused it."""
        if self._answered and threading.get_ident() not in self._giving_back:
            self._idle.wake(len(self._answered))
        self._supervisor.schedule(self.completions.armed_at)

    def release_lease(self, grant: Any) -> None:
        """Give a lease back. If that answers a request of this run, the caller finds it when it looks for work."""
        me = threading.get_ident()
        self._giving_back.add(me)
        try:
            self._pool.give_back(grant)  # type: ignore[union-attr]
        finally:
            self._giving_back.discard(me)

    def on_timer(self) -> None:
        """The instant has come for which the pool wanted to be looked at."""
        if self._pool is not None:
            self._pool.on_timer(self.completions)

    # -- more of the input ------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Whether there is something to do, or there will be no more; the input is looked at for it.

        Nothing is begun, and a run with nothing to do at all ends by this. False: as for ``IDLE``.
        """
        board, state = self._scheduler, self._state
        while not (board.fresh or board.retry_ready or self._answered or state.closing):
            if self._pausing() or not self._read_input():
                return False
        return True

    def count_recorded(self) -> None:
        """Tell of all that the journal has of a list, though the run ends before its workers come to it.

        Waits while results pile up that nobody takes.
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
                return  # somebody else is at it

    @property
    def may_read_more(self) -> bool:
        """Whether somebody is at the input, who does not ask whether the run is over."""
        return self._pulling or (self._source.is_pushed and not self._scheduler.exhausted)

    def _read_input(self, on_and_on: bool = False) -> bool:
        """Take more of the input; unless *on_and_on*, only if none is left. False: no more, or somebody is at it."""
        if self._source.is_pushed:
            self._state.on_room()
            return False
        board = self._scheduler
        with self._lock:
            if self._pulling or board.exhausted:
                return False
            if board.fresh and not on_and_on:
                return True  # another worker was quicker
            self._pulling = True
        more = False
        try:
            more = self._read_batch()
        except JournalUnavailable as error:
            self._shutdown.on_journal_lost(error)  # it was asked which of the items it knows
        except Exception as error:  # noqa: BLE001 - the user's input; the run ends, and says so
            if not self._state.is_over:  # else it came back from a long wait, and nobody wants it any more
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
                idle.wake()  # it must not wait for the next one: the input may take its time

        return self._source.take(put, CHUNK)

    def _add_item(self, item: Item) -> None:
        self._scheduler.taken += 1
        self._scheduler.fresh.append(item)

    def input_room(self) -> int:
        """How many more items an input that is pushed may bring now."""
        if self._state.closing or self._pausing():
            return 0
        return CHUNK - len(self._scheduler.fresh)

    def push(self, payload: Any) -> None:
        """An input that comes by itself brings an item."""
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
