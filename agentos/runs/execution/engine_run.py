"""The attempts of one run, from their start to their end: what an engine uses of a run.

The board decides what becomes of an item, under the run's lock, and the decision is queued for the journal under the
same lock, so that the journal has the decisions in their order. Progress events, wake-ups and the return of leases
happen outside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from ...errors import CommandFailed, Interrupted, ValueNotRecorded
from ...pool.protocols import RunPool
from ...util.locks import contend
from ..context import Context
from ..core.outcome_rules import lacks_tokens
from ..core.records import LOST, Attempt, Item
from ..core.states import Cause, Ended, Phase, Verdict
from ..results import WorkflowResult
from ..worker import Worker
from .attempt import PooledAttempt
from .dispatcher import Admission
from .error_policy import asked_to_wait, hear, judge, text_of
from .item_source import Source
from .journal_writer import Ledger
from .publisher import ResultPublisher
from .run_state import RunState
from .shutdown import Shutdown
from .timers import Supervisor

if TYPE_CHECKING:
    from ..engines.loop_executor import StartedCalls

log = logging.getLogger("agentos")


class EngineRun:
    """Starts attempts and finishes them, on behalf of an engine."""

    def __init__(
        self,
        worker: Worker,
        source: Source,
        state: RunState,
        publisher: ResultPublisher,
        ledger: Ledger,
        shutdown: Shutdown,
        supervisor: Supervisor,
    ) -> None:
        self.worker = worker
        self.source = source
        self.state = state
        self.ledger = ledger
        self.shutdown = shutdown
        self.supervisor = supervisor
        self.folder = publisher.folder
        self._publisher = publisher
        self._running = state.board.running
        self._secret_of = _revealing(state.lessor)
        # Without a journal a result is published where it was made, and nobody may want to hear of it.
        self._tells = worker.wants_context or publisher.wants_items
        self.admission = Admission(
            source, state, ledger, shutdown, supervisor, pausing=publisher.pausing, refuse=self.refuse
        )
        self.next_attempt = self.admission.next_attempt

    # -- for engines ------------------------------------------------------------------------------------------

    def secret_for(self, attempt: Attempt) -> str | None:
        """The credential as its worker gets it."""
        grant = attempt.grant
        return None if grant is None else self._secret_of(grant.key)

    def context_for(self, attempt: Attempt) -> Context:
        lease = attempt.item_lease() if isinstance(attempt, PooledAttempt) else None
        return Context(attempt.item.id, attempt.number, lease, self.shutdown.stopping, self.folder, attempt.item.index)

    def check_still_wanted(self, attempt: Attempt) -> None:
        """After a wait that others could have ended: the attempt may have been given up meanwhile."""
        if attempt.token not in self.state.board.running or self.state.board.phase is not Phase.RUNNING:
            raise Interrupted

    def called_off(self, attempt: Attempt) -> Exception:
        """What became of an attempt that was cancelled."""
        if attempt.cancelled == "stop":
            return Interrupted()
        if attempt.cancelled == LOST:
            return Interrupted("this process stood still for so long that its key was given to another one")
        return TimeoutError(f"timed out after {self.state.options.timeout:g}s")

    def has_lost_its_key(self, attempt: Attempt) -> bool:
        """Whether others may have the attempt's key by now, because this process stood still."""
        grant = attempt.grant
        return isinstance(attempt, PooledAttempt) and grant is not None and attempt.pool.loss_of(grant) is not None

    def stood_still(self, seconds: float) -> None:
        """What runs could not go on for so long until now: that time counts neither as its own nor as its timeout's."""
        with self.state.lock:
            now = self.state.clock.now()
            for attempt in self.state.board.running.values():
                attempt.began_at += min(seconds, now - attempt.began_at)
                if attempt.cancelled is not None:
                    attempt.cancelled_at += min(seconds, now - attempt.cancelled_at)
        self.supervisor.wake()

    # -- the end of an attempt ----------------------------------------------------------------------------------

    def finish(
        self, attempt: Attempt, value: Any, error: BaseException | None, calls: StartedCalls | None = None
    ) -> Verdict:
        """An attempt came back, with a value or an error. Called by its engine, on the worker's own thread or task.

        It keeps its lease while *calls* that it started in other threads still run.
        """
        item, grant, ledger = attempt.item, attempt.grant, self.ledger
        state, publisher = self.state, self._publisher
        now = state.clock.now()
        name = row = trace = None
        luck = rest = 0.0
        if error is None:
            ended = Ended.VALUE
        else:
            signal = hear(attempt, error, state.lessor, state.clock.wall())
            ended, luck = judge(attempt, error, state.options.retry_if, signal), SystemRandom().random()
            if isinstance(attempt, PooledAttempt) and grant is not None:
                attempt.pool.in_doubt(grant)  # unless it is known by now how its call went
                item.short += ended is Ended.LIMIT and lacks_tokens(signal or (attempt.lease and attempt.lease.signal))
            if ended is not Ended.LIMIT or grant is None:  # else the pool lets the key rest, not the item
                rest = asked_to_wait(error, signal, state.clock.wall())
        if grant is not None:
            name = grant.key.name
            if calls is None or not self._wait_for_calls(attempt, calls):
                self.shutdown.left_behind.pop(attempt.token, None)
                if attempt.lease is not None:
                    attempt.lease.over()
                if self.admission.requests:
                    self.admission.give_back(grant)
                else:
                    state.lessor.give_back(grant)  # type: ignore[union-attr]
        # Whatever the user's objects have a hand in happens here, and nothing of it under the lock.
        if error is None and ledger.keeps:
            try:
                row = ledger.prepare(attempt, value, now)
            except ValueNotRecorded as unrecorded:
                error, ended = unrecorded, Ended.ERROR
        if error is None:
            result = WorkflowResult(item.id, True, None, now - attempt.began_at, {}, value, attempt.number, name)
            result.index = item.index
        else:
            text, kind = state.masked(text_of(error)), state.masked(type(error).__qualname__)
            result = self._failure(attempt, text, kind, now)
            if isinstance(error, CommandFailed):
                result.metadata.update(exit=error.exit, signal=error.signal, tail=error.tail)
            elif self.worker.is_command:
                result.metadata.update(exit=None, signal=None)  # it was ended by us, or did not begin
            if ledger.keeps:
                trace = ledger.trace(error)
        lock, telling = state.lock, self._tells or error is not None
        if not lock.acquire(False):
            contend(lock)
        try:
            in_a_row = item.limited
            quota = None if grant is None else grant.key.quota.name
            verdict = state.board.finish(attempt, ended, quota, now, luck, rest)
            if verdict is Verdict.DONE:
                if row is None:
                    publisher.note_success(result)
                else:
                    publisher.note_untold(item)
                    ledger.done(row, result)
            elif verdict is Verdict.FAILED:
                publisher.note_untold(item)
                if ended is Ended.LIMIT:
                    result.error = (
                        f"never fits: limited {in_a_row + 1} times in a row, while others succeed; {result.error}"
                    )
                ledger.failed(attempt, result, trace)
            elif verdict is not Verdict.LATE:
                ledger.row(verdict.value, attempt, result.error, trace)
            if telling:
                publisher.telling.append(None)
        finally:
            lock.release()
        try:
            if verdict is Verdict.LATE:
                ledger.late(attempt, value, result.error)
            if verdict is Verdict.DONE or verdict is Verdict.FAILED:
                if not ledger.keeps and (telling or publisher.listening):
                    publisher.tell((result,))
                if state.options.halt is not None:
                    self._look_at_halt()
            else:
                self._went_otherwise(verdict, attempt, result)
        finally:
            if telling:
                publisher.telling.pop()
        if state.board.exhausted or state.closing:
            self.shutdown.look_whether_over()
        if state.may_park and not self._running:
            self.supervisor.wake()
        return verdict

    def take_back(self, attempt: Attempt, why: str) -> bool:
        """It could not go on: its key is given back, and its item is the next to run. It costs nothing.

        There was no place to run it in, or its key is another process's by now. False: it had been given up, or the run
        stops, and it is to be finished.
        """
        with self.state.lock:
            if not self.state.board.take_back(attempt):
                return False
            self.ledger.row("interrupted", attempt, why, None)
        self._give_back_late(attempt)
        if self.state.closing:
            self.shutdown.look_whether_over()
        if self.state.may_park and not self._running:
            self.supervisor.wake()
        return True

    def _wait_for_calls(self, attempt: Attempt, calls: StartedCalls) -> bool:
        """Keep the lease until the calls that the attempt started in threads have ended. False: they have."""
        self.shutdown.left_behind[attempt.token] = attempt
        if not calls.when_ended(partial(self._give_back_late, attempt)):
            return False
        if attempt.cancelled is not None:
            name, key = attempt.item.id, attempt.grant.key.name
            what = f"{name} has ended, but not its threads; {key} stays leased until they have"
            self._publisher.say("worker_left", what, name)
        return True

    def _give_back_late(self, attempt: Attempt) -> None:
        """Nobody uses the lease of an attempt any more, and it is no worker of this run that notices."""
        self.shutdown.left_behind.pop(attempt.token, None)
        if attempt.grant is not None:
            if attempt.lease is not None:
                attempt.lease.over()
            self.state.lessor.give_back(attempt.grant)  # type: ignore[union-attr]

    @staticmethod
    def _failure(attempt: Attempt, text: str, kind: str, now: float) -> WorkflowResult:
        name = None if attempt.grant is None else attempt.grant.key.name
        return WorkflowResult(
            item_id=attempt.item.id,
            success=False,
            error=text,
            duration=now - attempt.began_at,
            metadata={"error_type": kind},
            attempts=attempt.number,
            credential=name,
            outcome="failed",
            index=attempt.item.index,
        )

    def _went_otherwise(self, verdict: Verdict, attempt: Attempt, result: WorkflowResult) -> None:
        board, stats = self.state.board, self.state.stats
        if verdict is Verdict.LATE:
            self.supervisor.abandoned -= 1
            log.warning("[COORDINATOR] %s came back after it had been given up; kept as evidence", attempt.item.id)
            self.state.idle.wake(len(self.admission.desk.answered))  # this worker leaves, and will not take them
        elif verdict is Verdict.INTERRUPTED:
            stats.interrupted = board.interrupted
        else:
            kind = "item_retried" if verdict is Verdict.RETRY else "item_limited"
            stats.retried, stats.limited = board.retried, board.limited
            if self._publisher.wants_items:
                self._publisher.say(kind, result.error or "", attempt.item.id)
            self.supervisor.look_at(board.next_due)

    def _look_at_halt(self) -> None:
        board = self.state.board
        with self.state.lock:
            reached = board.phase is Phase.RUNNING and board.halted()
        if reached and board.halt is not None:
            self.shutdown.stop(f"halt at {board.halt}", cause=Cause.HALT, force=board.halt.now)

    # -- items that end otherwise -----------------------------------------------------------------------------

    def refuse(self, item: Item, why: str) -> None:
        """An item fails without being run."""
        text = self.state.masked(why)
        result = WorkflowResult(item.id, False, text, attempts=item.attempts, outcome="failed", index=item.index)
        with self.state.lock:
            self.state.board.refuse(item)
            self._publisher.note_untold(item)
            self.ledger.refused(item, result)
            self._publisher.telling.append(None)
        self._failed_otherwise(result)

    def overran(self, attempt: Attempt, timeout: float) -> bool:
        """An attempt took too long and cannot be stopped: its item failed, it is left behind. False: it had ended."""
        what = "its worker could not be stopped and was left behind; it keeps its credential until it returns"
        text = f"timed out after {timeout:g}s; {what}"
        result = self._failure(attempt, text, "TimeoutError", self.state.clock.now())
        with self.state.lock:
            if not self.shutdown.give_up(attempt, failed=True):
                return False
            self._publisher.note_untold(attempt.item)
            self.ledger.failed(attempt, result, None)
            self._publisher.telling.append(None)
        log.warning("[COORDINATOR] %s %s", attempt.item.id, text)
        self._failed_otherwise(result)
        return True

    def _failed_otherwise(self, result: WorkflowResult) -> None:
        try:
            if not self.ledger.keeps:
                self._publisher.tell((result,))
            if self.state.options.halt is not None:
                self._look_at_halt()
        finally:
            self._publisher.telling.pop()
        self.shutdown.look_whether_over()

    def interrupt(self, attempt: Attempt) -> None:
        """The run stops without waiting for this attempt."""
        with self.state.lock:
            if not self.shutdown.give_up(attempt, failed=False):
                return
            self.state.stats.interrupted = self.state.board.interrupted
            self.ledger.row("interrupted", attempt, f"interrupted: {self.state.stats.stopped_by}", None)
        self.shutdown.look_whether_over()


def _revealing(lessor: RunPool | None) -> Callable[[Any], str]:
    """Return the function that gives the secret of a key to a worker."""
    if lessor is not None and hasattr(lessor, "lends"):  # our pool
        secret_of = lessor.secret_of
        return lambda key: secret_of(key.name).reveal()
    return lambda key: key.secret.reveal()
