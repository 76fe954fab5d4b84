"""The part of a run that an engine uses: start attempts and finish them.

The scheduler decides the outcome of an item under the run's lock, and the decision is queued for the journal under the
same lock, so that the journal has the decisions in order. Progress events, wake-ups and lease releases happen outside
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from ...errors import Interrupted, ValueNotRecorded
from ...pool.protocols import RunPool
from ...providers import Signal
from ...util.locks import acquire_contended
from ..context import Context
from ..core.outcome_rules import lacks_tokens
from ..core.records import LOST, Attempt, Item
from ..core.states import AttemptEnd, Cause, Phase, Trouble, Verdict
from ..failures import describe_result, describe_unreachable, encode_facts
from ..results import WorkflowResult
from ..worker import Worker
from .attempt import PooledAttempt
from .attempt_usage import take_usage
from .dispatcher import Dispatcher, Idle
from .error_policy import (
    classify_error,
    find_mismatch,
    find_requested_delay,
    find_trouble,
    format_error,
    report_error,
)
from .failure_facts import build_failure_facts
from .item_source import ItemSource
from .journal_writer import JournalRecorder, Recorder
from .publisher import ResultPublisher
from .run_state import RunState
from .shutdown import Shutdown
from .timers import TimerThread

if TYPE_CHECKING:
    from ..engines.loop_executor import StartedCalls

log = logging.getLogger("agentos")


class EngineRun:
    """Starts and finishes attempts on behalf of an engine."""

    def __init__(
        self,
        worker: Worker,
        source: ItemSource,
        state: RunState,
        publisher: ResultPublisher,
        recorder: Recorder,
        shutdown: Shutdown,
        timers: TimerThread,
    ) -> None:
        self.worker = worker
        self.source = source
        self.state = state
        self.recorder = recorder
        self.shutdown = shutdown
        self.timers = timers
        self.folder = publisher.folder
        self._publisher = publisher
        self._outputs = worker.outputs
        if self._outputs is not None and isinstance(recorder, JournalRecorder):
            recorder.on_unended = self._outputs.note_killed
        if worker.access is not None:
            worker.access.bind(recorder.record_request)
        self._running = state.scheduler.running
        self._read_secret = _build_secret_reader(state.pool)
        # Without a journal a result is published by its worker, and may have no receiver.
        self._announces = worker.wants_context or publisher.wants_items
        self.dispatcher = Dispatcher(
            source, state, recorder, shutdown, timers, pausing=publisher.is_paused, refuse=self.refuse
        )
        self.next_attempt = self._next_recorded if recorder.enabled else self.dispatcher.next_attempt

    # -- for engines ------------------------------------------------------------------------------------------

    def _next_recorded(self) -> Attempt | Idle | None:
        """Return the dispatcher's next attempt, with its item encoded for the journal."""
        attempt = self.dispatcher.next_attempt()
        if isinstance(attempt, Attempt):
            self.recorder.encode_item(attempt.item)
        return attempt

    def secret_for(self, attempt: Attempt) -> str | None:
        """Return the attempt's credential as its worker gets it: a key, or a token until the attempt ends."""
        grant = attempt.grant
        if grant is not None:
            return self._read_secret(grant.key)
        access = self.worker.access
        if access is None or self.worker.is_command:  # a command has it in its environment
            return None
        attempt.access = access.open(attempt.item.id, attempt.number, attempt.usage_log, "")
        token: str = attempt.access.token
        return token

    def context_for(self, attempt: Attempt) -> Context:
        lease = attempt.item_lease() if isinstance(attempt, PooledAttempt) else None
        return Context(
            attempt.item.id,
            attempt.number,
            lease,
            self.shutdown.stopping,
            self.folder,
            attempt.item.index,
            attempt.usage_log,
            self.state.clients,
        )

    def check_still_wanted(self, attempt: Attempt) -> None:
        """Raise Interrupted if the attempt was abandoned during a wait."""
        if attempt.token not in self.state.scheduler.running or self.state.scheduler.phase is not Phase.RUNNING:
            raise Interrupted

    def build_cancellation(self, attempt: Attempt) -> Exception:
        """Return the error of an attempt that was cancelled."""
        if attempt.cancelled == "stop":
            return Interrupted()
        if attempt.cancelled == LOST:
            return Interrupted("this process was suspended for so long that its key was granted to another")
        return TimeoutError(f"timed out after {self.state.options.timeout:g}s")

    def has_lost_lease(self, attempt: Attempt) -> bool:
        """True if the attempt's key may have been granted to another process during a suspension of this one."""
        grant = attempt.grant
        if not isinstance(attempt, PooledAttempt) or grant is None:
            return False
        return attempt.pool.find_loss_reason(grant) is not None

    def credit_suspension(self, seconds: float) -> None:
        """Subtract *seconds* of suspension from the durations and timeouts of the running attempts."""
        with self.state.lock:
            now = self.state.clock.now()
            for attempt in self.state.scheduler.running.values():
                attempt.began_at += min(seconds, now - attempt.began_at)
                if attempt.cancelled is not None:
                    attempt.cancelled_at += min(seconds, now - attempt.cancelled_at)
        self.timers.wake()

    # -- the end of an attempt ----------------------------------------------------------------------------------

    def finish(
        self, attempt: Attempt, value: Any, error: BaseException | None, calls: StartedCalls | None = None
    ) -> Verdict:
        """Finish an attempt with a value or an error. Called by its engine, on the worker's own thread or task.

        It keeps its lease while *calls* that it started in other threads still run.
        """
        if attempt.access is not None:
            attempt.access.close()
        item, grant, recorder = attempt.item, attempt.grant, self.recorder
        state, publisher = self.state, self._publisher
        now = state.clock.now()
        name = row = trace = signal = trouble = encoded = None
        jitter = delay = 0.0
        if error is None:
            ended = AttemptEnd.VALUE
        else:
            signal = report_error(attempt, error, state.pool, state.clock.wall())
            ended, jitter = classify_error(attempt, error, state.options.retry_if, signal), SystemRandom().random()
            if isinstance(attempt, PooledAttempt) and grant is not None:
                attempt.pool.mark_unknown_outcome(grant)  # unless the outcome of its call is known by now
                item.token_shortfalls += ended is AttemptEnd.LIMIT and lacks_tokens(
                    signal or (attempt.lease and attempt.lease.signal)
                )
            if ended is not AttemptEnd.LIMIT or grant is None:  # else the pool cools down the key, not the item
                delay = find_requested_delay(error, signal, state.clock.wall())
        if grant is not None:
            name = grant.key.name
            if calls is None or not self._wait_for_calls(attempt, calls):
                self.shutdown.lingering_attempts.pop(attempt.token, None)
                if attempt.lease is not None:
                    attempt.lease.end_attempt()
                if self.dispatcher.requests:
                    self.dispatcher.release_lease(grant)
                else:
                    state.pool.give_back(grant)  # type: ignore[union-attr]
        # Code of the user's objects runs here, outside the lock.
        used = take_usage(attempt, value)
        if error is None and recorder.enabled:
            try:
                row, encoded = recorder.build_row(attempt, value, now)
            except ValueNotRecorded as unrecorded:
                error, ended = unrecorded, AttemptEnd.ERROR
        if error is None:
            result = WorkflowResult(item.id, True, None, now - attempt.began_at, {}, value, attempt.number, name)
            result.index, result.item, result.item_text = item.index, item.payload, item.text
            result.usage = item.usage
            if encoded is not None:  # as a resumed run returns it
                result.value, result.value_repr = encoded.value, encoded.repr
                result.value_type, result.redacted = encoded.type_name, encoded.redacted
        else:
            trouble = find_trouble(attempt, error, ended, signal)
            traced = ended is AttemptEnd.ERROR or ended is AttemptEnd.TRANSIENT  # a limit needs no traceback
            facts = build_failure_facts(error, signal, state.masked, with_traceback=traced)
            if trouble is not None:
                facts["trouble"] = trouble.value
            if ended is AttemptEnd.LIMIT and (wait := find_requested_delay(error, signal, state.clock.wall())):
                facts["until"] = round(state.clock.wall() + wait, 3)
            if self.worker.is_command:
                facts.setdefault("exit", None)  # agentos ended it, or it did not start
                facts.setdefault("signal", None)
            facts.update(attempt.facts)
            mismatch = find_mismatch(attempt)
            text = format_error(error) if mismatch is None else f"{mismatch} ({format_error(error)})"
            result = self._failure(attempt, state.masked(text), facts, now)
            if recorder.enabled:
                trace = encode_facts(facts, state.masked)
        lock, announcing = state.lock, self._announces or error is not None
        if not lock.acquire(False):
            acquire_contended(lock)
        try:
            in_a_row = item.limited
            if used:
                state.stats.usage += used
            quota = None if grant is None else grant.key.quota.name
            verdict = state.scheduler.finish(attempt, ended, quota, now, jitter, delay)
            if verdict is Verdict.DONE:
                if row is None:
                    publisher.note_success(result)
                else:
                    publisher.note_unpublished(item)
                    recorder.record_done(row, result)
            elif verdict is Verdict.FAILED:
                publisher.note_unpublished(item)
                if ended is AttemptEnd.LIMIT:
                    result.error = (
                        f"never fits: rate-limited {in_a_row + 1} times in a row, while others succeed; {result.error}"
                    )
                recorder.record_failed(attempt, result, trace)
            elif verdict is not Verdict.LATE:
                recorder.record_end(verdict.value, attempt, result.error, trace)
            logged = self._note_end(attempt, verdict.value, result) if verdict is not Verdict.LATE else None
            answers_again = self._note_network(verdict, trouble, signal, result, now)
            if announcing:
                publisher.announcing.append(None)
        finally:
            lock.release()
        if logged is not None and self._outputs is not None:
            self._outputs.write_ends(item.id, create=logged)
        if trouble is Trouble.UNREACHABLE:
            self.announce_unreachable()
        elif answers_again:
            publisher.emit("reachable", "the network answers again")
        try:
            if verdict is Verdict.LATE:
                recorder.record_late(attempt, value, result.error)
            if verdict is Verdict.DONE or verdict is Verdict.FAILED:
                if not recorder.enabled and (announcing or publisher.listening):
                    publisher.announce((result,))
                if state.options.halt is not None:
                    self._check_halt()
            else:
                self._requeue(verdict, attempt, result)
        finally:
            if announcing:
                publisher.announcing.pop()
        if state.scheduler.exhausted or state.closing:
            self.shutdown.finish_if_idle()
        if state.may_park and not self._running:
            self.timers.wake()
        return verdict

    def _note_end(self, attempt: Attempt, kind: str, result: WorkflowResult) -> bool | None:
        """Note how an attempt ended, for the log of its item. The result is for ``write_ends``; never blocks."""
        if self._outputs is None:
            return None
        return self._outputs.note_end(
            attempt.item.id,
            attempt.number,
            result.credential,
            kind,
            result.duration,
            result.error,
            result.metadata,
        )

    def _note_network(
        self, verdict: Verdict, trouble: Trouble | None, signal: Signal | None, result: WorkflowResult, now: float
    ) -> bool:
        """Count what stopped the attempt. Return whether the network answers again. The caller holds the lock."""
        stats, network = self.state.stats, self.state.network
        if trouble is not None and verdict is not Verdict.LATE:
            stats.limited += trouble is Trouble.LIMITED
            stats.rejected += trouble is Trouble.REJECTED
            stats.unreachable += trouble is Trouble.UNREACHABLE
        if trouble is Trouble.UNREACHABLE:
            network.on_unanswered(describe_result(result), now, self.state.clock.wall())
            return False
        if network.since is None:
            return False  # nearly always
        if not result.success and trouble is None and (signal is None or signal.status is None):
            return False  # an error that says nothing about the network
        stats.unreachable_since, stats.unreachable_why = None, ""
        return network.on_answer()

    def announce_unreachable(self) -> None:
        """Say that no answer comes, if it is time for that; else have the timer thread do it."""
        state, network = self.state, self.state.network
        with state.lock:
            since = network.since
            if since is None or state.clock.now() < network.due_at:
                due_at = network.due_at
                since = None
            else:
                network.said = True
                state.stats.unreachable_since, state.stats.unreachable_why = since, network.why
        if since is None:
            self.timers.schedule(due_at)
        else:
            self._publisher.emit("unreachable", describe_unreachable(since, network.why))

    def requeue(self, attempt: Attempt, why: str) -> bool:
        """Release the attempt's key and make its item the next to run, without using up a retry.

        There was no place to run it in, or its key was lost to another process. False: the attempt had been abandoned,
        or the run stops; then it is to be finished.
        """
        with self.state.lock:
            if not self.state.scheduler.requeue_attempt(attempt):
                return False
            self.state.stats.usage += take_usage(attempt)
            self.recorder.record_end("interrupted", attempt, why, None)
            self._note_end(attempt, "interrupted", self._failure(attempt, why, {}, self.state.clock.now()))
        self._release_late(attempt)
        if self.state.closing:
            self.shutdown.finish_if_idle()
        if self.state.may_park and not self._running:
            self.timers.wake()
        return True

    def _wait_for_calls(self, attempt: Attempt, calls: StartedCalls) -> bool:
        """Keep the lease until the calls that the attempt started in threads have ended. False: they have."""
        self.shutdown.lingering_attempts[attempt.token] = attempt
        if not calls.when_ended(partial(self._release_late, attempt)):
            return False
        if attempt.cancelled is not None:
            name, key = attempt.item.id, attempt.grant.key.name
            what = f"{name} has ended, but its threads have not; {key} stays leased until they do"
            self._publisher.emit("worker_left", what, name)
        return True

    def _release_late(self, attempt: Attempt) -> None:
        """Release the lease of an attempt from a thread that is not one of the run's workers."""
        self.shutdown.lingering_attempts.pop(attempt.token, None)
        if attempt.grant is not None:
            if attempt.lease is not None:
                attempt.lease.end_attempt()
            self.state.pool.give_back(attempt.grant)  # type: ignore[union-attr]

    @staticmethod
    def _failure(attempt: Attempt, text: str, facts: dict[str, Any], now: float) -> WorkflowResult:
        name = None if attempt.grant is None else attempt.grant.key.name
        return WorkflowResult(
            item_id=attempt.item.id,
            success=False,
            error=text,
            duration=now - attempt.began_at,
            metadata=facts,
            attempts=attempt.number,
            credential=name,
            outcome="failed",
            index=attempt.item.index,
            item=attempt.item.payload,
            item_text=attempt.item.text,
            usage=attempt.item.usage,
        )

    def _requeue(self, verdict: Verdict, attempt: Attempt, result: WorkflowResult) -> None:
        scheduler, stats = self.state.scheduler, self.state.stats
        if verdict is Verdict.LATE:
            self.timers.abandoned -= 1
            log.warning(
                "[COORDINATOR] %s returned after it had been abandoned; its result is recorded but does not count",
                attempt.item.id,
            )
            self.state.idle.wake(len(self.dispatcher.completions.completed))  # this worker ends, and will not take them
        elif verdict is Verdict.INTERRUPTED:
            stats.interrupted = scheduler.interrupted
        else:
            kind = "item_retried" if verdict is Verdict.RETRY else "item_limited"
            stats.retried = scheduler.retried
            if self._publisher.wants_items:
                self._publisher.emit(kind, result.error or "", attempt.item.id)
            self.timers.schedule(scheduler.next_due)

    def _check_halt(self) -> None:
        scheduler = self.state.scheduler
        with self.state.lock:
            reached = scheduler.phase is Phase.RUNNING and scheduler.is_halted()
        if reached and scheduler.halt is not None:
            self.shutdown.stop(f"halt at {scheduler.halt}", cause=Cause.HALT, force=scheduler.halt.now)

    # -- items that fail or end without a result --------------------------------------------------------------

    def refuse(self, item: Item, why: str) -> None:
        """Fail an item that was not run."""
        text = self.state.masked(why)
        self.recorder.encode_item(item)
        result = WorkflowResult(
            item.id,
            False,
            text,
            attempts=item.attempts,
            outcome="failed",
            index=item.index,
            item=item.payload,
            item_text=item.text,
            usage=item.usage,
        )
        with self.state.lock:
            self.state.scheduler.refuse(item)
            self._publisher.note_unpublished(item)
            self.recorder.record_refused(item, result)
            self._publisher.announcing.append(None)
        self._after_failure(result)

    def fail_overdue(self, attempt: Attempt, timeout: float) -> bool:
        """Fail the item of an attempt that timed out and cannot be stopped; abandon it. False: it had ended."""
        what = "its worker could not be stopped and was abandoned; it keeps its credential until it returns"
        text = f"timed out after {timeout:g}s; {what}"
        facts = {"error_type": "TimeoutError"}
        if attempt.access is not None:
            attempt.access.close()  # nobody wants what it asks for now
        result = self._failure(attempt, text, facts, self.state.clock.now())
        with self.state.lock:
            if not self.shutdown.abandon_attempt(attempt, failed=True):
                return False
            self.state.stats.usage += take_usage(attempt)
            result.usage = attempt.item.usage
            self._publisher.note_unpublished(attempt.item)
            self.recorder.record_failed(attempt, result, encode_facts(facts, self.state.masked))
            logged = self._note_end(attempt, "failed", result)
            self._publisher.announcing.append(None)
        if logged is not None and self._outputs is not None:
            self._outputs.write_ends(attempt.item.id, create=logged)
        log.warning("[COORDINATOR] %s %s", attempt.item.id, text)
        self._after_failure(result)
        return True

    def _after_failure(self, result: WorkflowResult) -> None:
        try:
            if not self.recorder.enabled:
                self._publisher.announce((result,))
            if self.state.options.halt is not None:
                self._check_halt()
        finally:
            self._publisher.announcing.pop()
        self.shutdown.finish_if_idle()

    def interrupt(self, attempt: Attempt) -> None:
        """Interrupt an attempt that the run does not wait for."""
        with self.state.lock:
            if not self.shutdown.abandon_attempt(attempt, failed=False):
                return
            self.state.stats.interrupted = self.state.scheduler.interrupted
            self.recorder.record_end("interrupted", attempt, f"interrupted: {self.state.stats.stopped_by}", None)
        self.shutdown.finish_if_idle()


def _build_secret_reader(pool: RunPool | None) -> Callable[[Any], str]:
    """Return the function that gives the secret of a key to a worker."""
    if pool is not None and hasattr(pool, "is_used_by_run"):  # our pool
        get_secret = pool.get_secret
        return lambda key: get_secret(key.name).reveal()
    return lambda key: key.secret.reveal()
