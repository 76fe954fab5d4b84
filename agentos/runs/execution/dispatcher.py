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
from ...pool.completion_queue import Desk, DeskTicket
from ...pool.core.cost import request_cost
from ...pool.core.records import PLAIN, Ask
from ...pool.core.states import Wait
from ...util.locks import contend
from ...util.wakeup import ThreadBell
from ..core.records import Attempt, Item
from ..core.states import Cause
from .error_policy import text_of
from .item_source import CHUNK, Source
from .journal_writer import Ledger
from .run_state import RunState

log = logging.getLogger("agentos")


class Idle:
    """There is nothing to do at the moment."""


IDLE = Idle()

DEADLINE = "the deadline"

_MOST_REQUESTS = 16  # in line at once, where one may be able to start before another
_MOST_ALIKE = 2  # of them for one model
_MOST_ASIDE = 1_000  # items behind those: as far as a run looks for one that can start
_MOST_STRANDED = 1_000
_LOOK_UP = 0.05  # seconds, between two looks whether there is still time to wait


class Stopping(Protocol):
    """How admission ends the run, or tells it that an input or the journal failed."""

    def stop(self, reason: str, *, cause: Cause) -> None: ...

    def look_whether_over(self) -> None: ...

    def input_failed(self, error: Exception) -> None: ...

    def journal_lost(self, error: JournalUnavailable) -> None: ...


class Timer(Protocol):
    """The supervisor, as admission wakes it."""

    def wake(self) -> None: ...

    def look_at(self, instant: float) -> None: ...


class Admission:
    """Finds work for the workers of one run.

    *pausing*: nothing may begin for now. *refuse* fails an item that cannot be run, with the reason.
    """

    def __init__(
        self,
        source: Source,
        state: RunState,
        ledger: Ledger,
        shutdown: Stopping,
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
        self._board = state.board
        self._lessor = state.lessor
        self._now = state.clock.now
        self._ask_functions = (options.cost_func, options.model_func, options.affinity_func)
        self._uniform = self._ask_functions == (None, None, None)  # any item may use any other's lease
        self._most_requests = 1 if self._uniform else _MOST_REQUESTS
        self.requests: dict[DeskTicket, None] = {}  # in line, or answered and not yet taken
        self._asking: set[int] = set()  # threads that are about to have put a request in line
        self._pulling = False
        self.hopeless: str | None = None  # why some items wait for nothing
        self._told_hopeless = False
        self._recalls: list[threading.Thread] = []
        self._giving_back: set[int] = set()  # threads that will look at the desk in a moment anyway
        self.desk = Desk(self._on_news)
        self._answered = self.desk.answered

    # -- for workers ------------------------------------------------------------------------------------------

    def next_attempt(self) -> Attempt | Idle | None:
        """An attempt that has begun and is to be run now; ``IDLE``; or None: there will be no more."""
        state, board, lock = self._state, self._board, self._lock
        while True:
            if self._answered:
                attempt = self._take_answer()
                if attempt is not None:
                    return attempt
                continue
            if state.closing:
                return None
            if len(self.requests) >= self._most_requests or self._pausing():
                return self._nothing_to_do()
            if not board.again:
                looked_far = board.set_aside >= _MOST_ASIDE
                if looked_far or not board.fresh:
                    if (board.set_aside and self._bring_back_orphans()) or (not looked_far and self._pull()):
                        continue
                    return None if state.closing else self._nothing_to_do()
            # _next_item, written out: it is the way of every item.
            if not lock.acquire(False):
                contend(lock)
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
            if self._lessor is not None:
                ask = PLAIN if self._uniform else self._ask_for(item)
                if ask is None:
                    continue
                grant = self._lessor.take_now(ask, item.id)
                if grant is None:
                    self._stand_in_line(ask, item)
                    continue
                if self._state.held is not None:  # since the pool was asked, which may have blocked
                    self._turn_down(item, grant)
                    continue
                if board.set_aside:
                    self._bring_back(ask.model)
            attempt = self._begin(item, grant)
            if attempt is not None:
                return attempt

    def _nothing_to_do(self) -> Idle:
        if self._state.may_park and not self._board.running:
            self._supervisor.wake()  # perhaps we were the last who might have begun something
        return IDLE

    @property
    def at_work(self) -> bool:
        """Whether something may begin without anything else happening: an item is in a worker's hands, or to be."""
        board = self._board
        with self._lock:
            if self._asking or len(board.admitted) > len(self.requests):
                return True
            if any(ticket.state is not Wait.WAITING for ticket in self.requests):
                return True  # answered, and perhaps on its way to whoever takes it
            if len(self.requests) >= self._most_requests:
                return False
            return bool(board.again) or (board.set_aside < _MOST_ASIDE and bool(board.fresh or not board.exhausted))

    def _bring_back(self, model: str | None) -> None:
        """One of the model got its lease at once: perhaps one that stands aside does too."""
        with self._lock:
            self._board.bring_back(model)
        self._idle.wake()

    def _bring_back_orphans(self) -> bool:
        """Let those go on that stand aside behind nobody."""
        with self._lock:
            in_line = {ticket.ask.model for ticket in self.requests}
            orphans = [model for model in self._board.aside if model not in in_line]
            for model in orphans:
                self._board.bring_back(model)
        return bool(orphans)

    def _next_item(self) -> Item | None:
        with self._lock:
            return self._board.next_item()

    def _request(self, item: Item) -> None:
        """Ask for a lease for an item that another worker shall run: answered at the desk, perhaps at once."""
        ask = PLAIN if self._uniform else self._ask_for(item)
        if ask is not None:
            self._stand_in_line(ask, item)

    def _stand_in_line(self, ask: Ask, item: Item) -> None:
        """Put a request in the pool's line; or, if enough for this model are there already, the item aside."""
        ticket = DeskTicket(ask, item.id, self.desk, item)
        me = threading.get_ident()
        with self._lock:
            alike = 0 if self._uniform else sum(other.ask.model == ask.model for other in self.requests)
            if alike >= _MOST_ALIKE:
                self._board.put_aside(item, ask.model)
                return
            self.requests[ticket] = None
            self._asking.add(me)
        try:
            self._lessor.enqueue(ticket)  # type: ignore[union-attr]
        finally:
            self._asking.discard(me)
        if ticket.recalled:
            return  # before it was in line, or out of it again
        if self._state.closing or self._state.held is not None:
            self.recall()  # it was put in line in the very moment when all were taken out

    def _ask_for(self, item: Item) -> Ask | None:
        """What the item needs of a credential. None: the user's functions could not tell, and it failed."""
        cost_of, model_of, affinity_of = self._ask_functions
        try:
            cost = None if cost_of is None else cost_of(item.payload)
            model = _text("model_func", model_of, item.payload)
            affinity = _text("affinity_func", affinity_of, item.payload)
            ask = Ask(request_cost(cost), model, affinity)
            told_too_low = item.short and cost is not None and self._lessor is not None
            return self._lessor.padded(ask, item.short) if told_too_low else ask  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - whatever they raise concerns this item only
            self._refuse(item, f"{type(error).__name__}: {text_of(error)}")
            return None

    def _begin(self, item: Item, grant: Any) -> Attempt | None:
        lock, board = self._lock, self._board
        if not lock.acquire(False):
            contend(lock)
        try:
            if self._uniform and board.again:
                better = board.better(item)
                if better is not item and grant is not None:
                    grant.requester = better.id
                item = better
            now = self._now()
            attempt = board.begin(item, grant, now)
            if attempt is not None and self._ledger.keeps:
                # Still under the lock: whoever gives the attempt up must not be written down before its start.
                self._ledger.began(attempt)
        finally:
            lock.release()
        if attempt is None:
            if grant is not None:
                self._lessor.give_back(grant)  # type: ignore[union-attr]
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
            if self._board.set_aside:
                self._board.bring_back(ticket.ask.model, all_of_them=ticket.state is Wait.FAILED)
        if ticket.state is Wait.FAILED:
            self._hopeless(ticket)
            return None
        if self._state.held is not None:
            self._turn_down(ticket.item, ticket.grant)
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
        while len(self._idle) and len(self.requests) < self._most_requests and not state.closing:
            item = self._next_item()
            if item is None:
                if not self._board.exhausted:
                    self._idle.wake()  # to look for more of the input, while this worker is busy
                return
            if item.fault is not None:
                self._refuse(item, item.fault)
                continue
            self._request(item)

    def _hopeless(self, ticket: DeskTicket) -> None:
        """No credential can ever serve this request."""
        error, item = ticket.error, ticket.item
        if isinstance(error, NeverFits):
            self._refuse(item, str(error))
            return
        with self._lock:
            self._board.strand(item)
            self.hopeless = str(error)
            many = len(self._board.stranded) >= _MOST_STRANDED
        if self._uniform or many:
            self._shutdown.stop(str(error), cause=Cause.CREDENTIALS)
        elif not self._told_hopeless:
            self._told_hopeless = True
            log.error("[COORDINATOR] %s waits for nothing: %s; it stays pending", item.id, error)
        self._shutdown.look_whether_over()

    def _turn_down(self, item: Item, grant: Any) -> None:
        """Nothing may begin now: give the lease back, and the item its place."""
        if grant is not None and self._lessor is not None:
            self._lessor.give_back(grant)
        with self._lock:
            self._board.put_back(item)

    def recall(self) -> None:
        """Nothing may begin any more, or for a while: take every request out of the line."""
        with self._lock:
            recalled = list(self.requests)
            self.requests.clear()
            for ticket in recalled:
                ticket.recalled = True
                self._board.bring_back(ticket.ask.model, all_of_them=True)
                self._board.put_back(ticket.item)
        if recalled and getattr(self._lessor, "lease_ttl", None) is not None:
            # Its store may not answer for a while, and whoever hears of signals must go on hearing.
            aside = threading.Thread(target=self._call_off, args=(recalled,), name="agentos-recall", daemon=True)
            try:
                aside.start()
            except RuntimeError:
                pass  # there can be no more threads: then here
            else:
                self._recalls = [*(each for each in self._recalls if each.is_alive()), aside]
                return
        self._call_off(recalled)

    def _call_off(self, tickets: list[DeskTicket]) -> None:
        for ticket in tickets:
            self._lessor.call_off(ticket)  # type: ignore[union-attr]
            try:
                self._answered.remove(ticket)
            except ValueError:
                pass

    def wait_for_recall(self, patience: float, hurry: Callable[[], bool]) -> None:
        """Until the pool knows that nothing is asked for any more: whoever asks it next must not find us in line."""
        until = time.monotonic() + patience
        for recall in self._recalls:
            while recall.is_alive() and time.monotonic() < until and not hurry():
                recall.join(_LOOK_UP)

    # -- news from the desk -----------------------------------------------------------------------------------

    def _on_news(self) -> None:
        """A request was answered, or the pool wants to be looked at earlier. Called by whoever caused it."""
        if self._answered and threading.get_ident() not in self._giving_back:
            self._idle.wake(len(self._answered))
        self._supervisor.look_at(self.desk.armed_at)

    def give_back(self, grant: Any) -> None:
        """Give a lease back. If that answers a request of this run, the caller finds it when it looks for work."""
        me = threading.get_ident()
        self._giving_back.add(me)
        try:
            self._lessor.give_back(grant)  # type: ignore[union-attr]
        finally:
            self._giving_back.discard(me)

    def look_out(self) -> None:
        """The instant has come for which the pool wanted to be looked at."""
        if self._lessor is not None:
            self._lessor.look_out(self.desk)

    # -- more of the input ------------------------------------------------------------------------------------

    def find_work(self) -> bool:
        """Whether there is something to do, or there will be no more; the input is looked at for it.

        Nothing is begun, and a run with nothing to do at all ends by this. False: as for ``IDLE``.
        """
        board, state = self._board, self._state
        while not (board.fresh or board.again or self._answered or state.closing):
            if self._pausing() or not self._pull():
                return False
        return True

    def count_known(self) -> None:
        """Tell of all that the journal has of a list, though the run ends before its workers come to it.

        Waits while results pile up that nobody takes.
        """
        state = self._state
        while self._ledger.resumes and self._source.total is not None and not (self._board.exhausted or state.closing):
            bell = ThreadBell()
            self._idle.register(bell)
            if self._pausing():
                bell.wait()
                continue
            self._idle.leave(bell)
            if not self._pull(on_and_on=True):
                return  # somebody else is at it

    @property
    def may_bring_more(self) -> bool:
        """Whether somebody is at the input, who does not ask whether the run is over."""
        return self._pulling or (self._source.comes_by_itself and not self._board.exhausted)

    def _pull(self, on_and_on: bool = False) -> bool:
        """Take more of the input; unless *on_and_on*, only if none is left. False: no more, or somebody is at it."""
        if self._source.comes_by_itself:
            self._state.on_room()
            return False
        board = self._board
        with self._lock:
            if self._pulling or board.exhausted:
                return False
            if board.fresh and not on_and_on:
                return True  # another worker was quicker
            self._pulling = True
        more = False
        try:
            more = self._take_some()
        except JournalUnavailable as error:
            self._shutdown.journal_lost(error)  # it was asked which of the items it knows
        except Exception as error:  # noqa: BLE001 - the user's input; the run ends, and says so
            if not self._state.over:  # else it came back from a long wait, and nobody wants it any more
                self._shutdown.input_failed(error)
        finally:
            with self._lock:
                self._pulling = False
                if not more:
                    board.exhausted = True
        self._idle.wake(len(board.fresh) - 1)
        if not more:
            self._shutdown.look_whether_over()
        return True

    def _take_some(self) -> bool:
        if self._source.total is not None:
            batch, more = self._source.take_listed(CHUNK * 4)
            if self._ledger.resumes:
                self._ledger.sort_out(batch, self._put)
            else:
                self._board.taken += len(batch)
                self._board.fresh.extend(batch)
            return more

        idle, resumes = self._idle, self._ledger.resumes

        def put(item: Item) -> None:
            if resumes:
                self._ledger.sort_out((item,), self._put)
            else:
                self._put(item)
            if len(idle):
                idle.wake()  # it must not wait for the next one: the input may take its time

        return self._source.take(put, CHUNK)

    def _put(self, item: Item) -> None:
        self._board.taken += 1
        self._board.fresh.append(item)

    def room(self) -> int:
        """How many more items an input that is pushed may bring now."""
        if self._state.closing or self._pausing():
            return 0
        return CHUNK - len(self._board.fresh)

    def push(self, payload: Any) -> None:
        """An input that comes by itself brings an item."""
        self._ledger.sort_out((self._source.make(payload),), self._put)
        self._idle.wake()

    def no_more(self) -> None:
        with self._lock:
            self._board.exhausted = True
        self._shutdown.look_whether_over()
        self._idle.wake_all()


def _text(name: str, function: Any, payload: Any) -> str | None:
    if function is None:
        return None
    found = function(payload)
    if found is not None and not (isinstance(found, str) and found):
        raise ValueError(f"{name} must give text or None, not {found!r}")
    return found
