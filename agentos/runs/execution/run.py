"""One run: it joins the board, the input, the pool, the journal, an engine and the one who waits for the results.

Whatever happens to an item is decided by the board, under the run's lock, and is queued for the journal under the same
lock, so that the journal has the decisions in their order. Talking, waking and giving back happen outside it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from ...errors import CommandFailed, Interrupted, ValueNotRecorded
from ...util.clock import Clock
from ...util.locks import contend
from ..context import CheckpointFolder, Context
from ..core.item_scheduler import Board
from ..core.outcome_rules import lacks_tokens
from ..core.records import LOST, Attempt, Item
from ..core.states import Cause, Ended, Phase, Verdict
from ..engines.protocol import Engine
from ..journal import Journal
from ..options import RunOptions
from ..results import ProgressStats, WorkflowResult
from ..worker import Worker
from .attempt import PooledAttempt
from .dispatcher import Admission
from .error_policy import asked_to_wait, hear, judge, text_of
from .item_source import Source
from .journal_writer import JournalLedger, Ledger, NoLedger
from .lease_source import Lessor
from .shutdown import Ending
from .timers import Supervisor

if TYPE_CHECKING:
    from ..engines.loop_executor import StartedCalls

log = logging.getLogger("agentos")


class Run(Ending):
    """A run from its first item to its last word."""

    def __init__(
        self,
        worker: Worker,
        source: Source,
        options: RunOptions,
        lessor: Lessor | None,
        clock: Clock,
        *,
        bell: Any,
        secrets: Lessor | None = None,
        journal: Journal | None = None,
        streamed: bool = False,
        on_main_thread: bool = False,
    ) -> None:
        stats = ProgressStats(total=source.total, start_time=clock.wall())
        if journal is None:
            folder = CheckpointFolder(None)
        else:
            folder = CheckpointFolder(journal.files.checkpoints, inside=journal.files.folder)
        super().__init__(options, stats, bell, folder, streamed=streamed, on_main_thread=on_main_thread)
        self.worker = worker
        self.source = source
        self.clock = clock
        self.lessor = lessor
        self.secrets = secrets  # who knows them, whoever leases them
        is_our_pool = lessor is not None and hasattr(lessor, "lends")
        if is_our_pool:
            lessor.lends = True  # type: ignore[union-attr]
        self._secret_of = _revealing(lessor, is_our_pool)
        self.board = Board(
            retries=options.retries,
            halt=options.halt_clause,
            last_token=0 if journal is None else journal.last_token,
            pool=lessor,
            attempt=PooledAttempt if is_our_pool else Attempt,
        )
        self.running = self.board.running
        self._engine: Engine | None = None
        self._stopped_at = 0.0
        self.suspended = False  # by SIGTSTP: until what it means for the time that items have had is known
        self.supervisor = Supervisor(self)
        self.ledger: Ledger = NoLedger(self)
        if journal is not None:
            strict = options.start == "strict"
            self.ledger = JournalLedger(self, journal, strict=strict, retry_failed=options.retry_failed)
        # Without a journal a result is published where it was made, and nobody may want to hear of it.
        self._tells = worker.wants_context or self._wants_items
        # Whether it ends when the limits outlast its patience.
        self.may_park = lessor is not None and (options.max_wait is not None or options.deadline is not None)
        self.admission = Admission(self, source)
        self.next_attempt = self.admission.next_attempt

    # -- beginning --------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """A list is compared with what the journal knows, and written down as what is to be done."""
        ids = self.source.ids
        if isinstance(self.ledger, JournalLedger) and ids is not None:
            if self.ledger.resumes:
                self.source.unchanged = self.ledger.check(ids, self.source.payloads)
            self.ledger.plan(ids)

    def begin(self, engine: Engine) -> None:
        """Start the workers."""
        self._engine = engine
        self.board.deadline = self.options.deadline_at(self.clock.now(), self.clock.wall())
        total = self.source.total
        count = "" if total is None else f" of {total} item{'' if total == 1 else 's'}"
        workers = self.options.max_workers if total is None else max(1, min(self.options.max_workers, total))
        self._say(
            "run_started",
            f"Starting parallel execution{count} with {self.options.max_workers} workers",
        )
        self.supervisor.start()
        engine.start(workers)

    @property
    def engine(self) -> Engine:
        assert self._engine is not None  # noqa: S101 - for the type checker: nothing runs before it has begun
        return self._engine

    def kill_commands(self) -> None:
        if self._engine is not None:
            self._engine.kill()

    def close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()

    # -- for engines ------------------------------------------------------------------------------------------

    def secret_for(self, attempt: Attempt) -> str | None:
        """The credential as its worker gets it."""
        grant = attempt.grant
        return None if grant is None else self._secret_of(grant.key)

    def context_for(self, attempt: Attempt) -> Context:
        lease = attempt.item_lease() if isinstance(attempt, PooledAttempt) else None
        return Context(attempt.item.id, attempt.number, lease, self.stopping, self.folder, attempt.item.index)

    def check_still_wanted(self, attempt: Attempt) -> None:
        """After a wait that others could have ended: the attempt may have been given up meanwhile."""
        if attempt.token not in self.board.running or self.board.phase is not Phase.RUNNING:
            raise Interrupted

    def called_off(self, attempt: Attempt) -> Exception:
        """What became of an attempt that was cancelled."""
        if attempt.cancelled == "stop":
            return Interrupted()
        if attempt.cancelled == LOST:
            return Interrupted("this process stood still for so long that its key was given to another one")
        return TimeoutError(f"timed out after {self.options.timeout:g}s")

    def has_lost_its_key(self, attempt: Attempt) -> bool:
        """Whether others may have the attempt's key by now, because this process stood still."""
        grant = attempt.grant
        return isinstance(attempt, PooledAttempt) and grant is not None and attempt.pool.loss_of(grant) is not None

    # -- Ctrl-Z -------------------------------------------------------------------------------------------------

    def before_stop(self) -> None:
        """The process is about to be stopped."""
        self._stopped_at, self.suspended = time.monotonic(), True
        if self._engine is not None and self._engine.suspension is not None:
            self._engine.suspension.before_stop()

    def after_continue(self) -> None:
        """It was continued."""
        if self._engine is not None and self._engine.suspension is not None:
            self._engine.suspension.after_continue()
        else:
            self.stood_still(time.monotonic() - self._stopped_at)
        self.suspended = False

    def stood_still(self, seconds: float) -> None:
        """What runs could not go on for so long until now: that time counts neither as its own nor as its timeout's."""
        with self.lock:
            now = self.clock.now()
            for attempt in self.board.running.values():
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
        now = self.clock.now()
        name = row = trace = None
        luck = rest = 0.0
        if error is None:
            ended = Ended.VALUE
        else:
            signal = hear(attempt, error, self.lessor, self.clock.wall())
            ended, luck = judge(attempt, error, self.options.retry_if, signal), SystemRandom().random()
            if isinstance(attempt, PooledAttempt) and grant is not None:
                attempt.pool.in_doubt(grant)  # unless it is known by now how its call went
                item.short += ended is Ended.LIMIT and lacks_tokens(signal or (attempt.lease and attempt.lease.signal))
            if ended is not Ended.LIMIT or grant is None:  # else the pool lets the key rest, not the item
                rest = asked_to_wait(error, signal, self.clock.wall())
        if grant is not None:
            name = grant.key.name
            if calls is None or not self._wait_for_calls(attempt, calls):
                self.left_behind.pop(attempt.token, None)
                if attempt.lease is not None:
                    attempt.lease.over()
                if self.admission.requests:
                    self.admission.give_back(grant)
                else:
                    self.lessor.give_back(grant)  # type: ignore[union-attr]
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
            result = self._failure(attempt, self.masked(text_of(error)), self.masked(type(error).__qualname__), now)
            if isinstance(error, CommandFailed):
                result.metadata.update(exit=error.exit, signal=error.signal, tail=error.tail)
            elif self.worker.is_command:
                result.metadata.update(exit=None, signal=None)  # it was ended by us, or did not begin
            if ledger.keeps:
                trace = ledger.trace(error)
        lock, telling = self.lock, self._tells or error is not None
        if not lock.acquire(False):
            contend(lock)
        try:
            in_a_row = item.limited
            quota = None if grant is None else grant.key.quota.name
            verdict = self.board.finish(attempt, ended, quota, now, luck, rest)
            if verdict is Verdict.DONE:
                if row is None:
                    self.note_success(result)
                else:
                    self.note_untold(item)
                    ledger.done(row, result)
            elif verdict is Verdict.FAILED:
                self.note_untold(item)
                if ended is Ended.LIMIT:
                    result.error = (
                        f"never fits: limited {in_a_row + 1} times in a row, while others succeed; {result.error}"
                    )
                ledger.failed(attempt, result, trace)
            elif verdict is not Verdict.LATE:
                ledger.row(verdict.value, attempt, result.error, trace)
            if telling:
                self._telling.append(None)
        finally:
            lock.release()
        try:
            if verdict is Verdict.LATE:
                ledger.late(attempt, value, result.error)
            if verdict is Verdict.DONE or verdict is Verdict.FAILED:
                if not ledger.keeps and (telling or self._listening):
                    self.tell((result,))
                if self.options.halt is not None:
                    self._look_at_halt()
            else:
                self._went_otherwise(verdict, attempt, result)
        finally:
            if telling:
                self._telling.pop()
        if self.board.exhausted or self.closing:
            self.look_whether_over()
        if self.may_park and not self.running:
            self.supervisor.wake()
        return verdict

    def take_back(self, attempt: Attempt, why: str) -> bool:
        """It could not go on: its key is given back, and its item is the next to run. It costs nothing.

        There was no place to run it in, or its key is another process's by now. False: it had been given up, or the run
        stops, and it is to be finished.
        """
        with self.lock:
            if not self.board.take_back(attempt):
                return False
            self.ledger.row("interrupted", attempt, why, None)
        self._give_back_late(attempt)
        if self.closing:
            self.look_whether_over()
        if self.may_park and not self.running:
            self.supervisor.wake()
        return True

    def _wait_for_calls(self, attempt: Attempt, calls: StartedCalls) -> bool:
        """Keep the lease until the calls that the attempt started in threads have ended. False: they have."""
        self.left_behind[attempt.token] = attempt
        if not calls.when_ended(partial(self._give_back_late, attempt)):
            return False
        if attempt.cancelled is not None:
            name, key = attempt.item.id, attempt.grant.key.name
            self._say("worker_left", f"{name} has ended, but not its threads; {key} stays leased until they have", name)
        return True

    def _give_back_late(self, attempt: Attempt) -> None:
        """Nobody uses the lease of an attempt any more, and it is no worker of this run that notices."""
        self.left_behind.pop(attempt.token, None)
        if attempt.grant is not None:
            if attempt.lease is not None:
                attempt.lease.over()
            self.lessor.give_back(attempt.grant)  # type: ignore[union-attr]

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
        if verdict is Verdict.LATE:
            self.supervisor.abandoned -= 1
            log.warning("[COORDINATOR] %s came back after it had been given up; kept as evidence", attempt.item.id)
            self.idle.wake(len(self.admission.desk.answered))  # this worker leaves, and will not take them
        elif verdict is Verdict.INTERRUPTED:
            self.stats.interrupted = self.board.interrupted
        else:
            kind = "item_retried" if verdict is Verdict.RETRY else "item_limited"
            self.stats.retried, self.stats.limited = self.board.retried, self.board.limited
            if self._wants_items:
                self._say(kind, result.error or "", attempt.item.id)
            self.supervisor.look_at(self.board.next_due)

    def _look_at_halt(self) -> None:
        board = self.board
        with self.lock:
            reached = board.phase is Phase.RUNNING and board.halted()
        if reached and board.halt is not None:
            self.stop(f"halt at {board.halt}", cause=Cause.HALT, force=board.halt.now)

    # -- items that end otherwise -----------------------------------------------------------------------------

    def refuse(self, item: Item, why: str) -> None:
        """An item fails without being run."""
        text = self.masked(why)
        result = WorkflowResult(item.id, False, text, attempts=item.attempts, outcome="failed", index=item.index)
        with self.lock:
            self.board.refuse(item)
            self.note_untold(item)
            self.ledger.refused(item, result)
            self._telling.append(None)
        self._failed_otherwise(result)

    def overran(self, attempt: Attempt, timeout: float) -> bool:
        """An attempt took too long and cannot be stopped: its item failed, it is left behind. False: it had ended."""
        what = "its worker could not be stopped and was left behind; it keeps its credential until it returns"
        text = f"timed out after {timeout:g}s; {what}"
        result = self._failure(attempt, text, "TimeoutError", self.clock.now())
        with self.lock:
            if not self.give_up(attempt, failed=True):
                return False
            self.note_untold(attempt.item)
            self.ledger.failed(attempt, result, None)
            self._telling.append(None)
        log.warning("[COORDINATOR] %s %s", attempt.item.id, text)
        self._failed_otherwise(result)
        return True

    def _failed_otherwise(self, result: WorkflowResult) -> None:
        try:
            if not self.ledger.keeps:
                self.tell((result,))
            if self.options.halt is not None:
                self._look_at_halt()
        finally:
            self._telling.pop()
        self.look_whether_over()

    def interrupt(self, attempt: Attempt) -> None:
        """The run stops without waiting for this attempt."""
        with self.lock:
            if not self.give_up(attempt, failed=False):
                return
            self.stats.interrupted = self.board.interrupted
            self.ledger.row("interrupted", attempt, f"interrupted: {self.stats.stopped_by}", None)
        self.look_whether_over()

    # -- what is on disk, and what is left --------------------------------------------------------------------

    def publish(self, results: Sequence[WorkflowResult]) -> None:
        """They are on disk: tell of them."""
        lock = self.lock
        if not lock.acquire(False):
            contend(lock)
        try:
            self.note_published(results)
        finally:
            lock.release()
        self.tell(results)
        if self.board.exhausted or self.closing:
            self.look_whether_over()

    def unfinished(self) -> list[str]:
        """The ids of the items that are neither done nor failed, in order."""
        if self._finished is not None and self.source.ids is not None:
            return [item_id for item_id, done in zip(self.source.ids, self._finished, strict=True) if not done]
        with self.lock:
            board = self.board
            items = [*board.waiting(), *board.admitted, *(attempt.item for attempt in board.running.values())]
            items += board.left
            found = {item.index: item.id for item in items} | self._unwritten
        return [found[index] for index in sorted(found)]

    def under_way(self) -> list[tuple[str, float]]:
        """The ids of the running items and when they began, the oldest first."""
        with self.lock:
            return [(attempt.item.id, attempt.began_at) for attempt in self.board.running.values()]

    def masked(self, text: str) -> str:
        return text if self.secrets is None else self.secrets.masked(text)


def _revealing(lessor: Lessor | None, is_our_pool: bool) -> Callable[[Any], str]:
    """How to get the secret of a key that a worker is given."""
    if lessor is not None and is_our_pool:
        secret_of = lessor.secret_of
        return lambda key: secret_of(key.name).reveal()
    return lambda key: key.secret.reveal()
