"""End a run: when it is complete, on request, on a signal or after a failure; record and announce the end."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping

from ...errors import EngineUnavailable, InvariantViolated, JournalUnavailable
from ..core.records import Attempt
from ..core.states import Cause, Phase
from . import process_exit
from .dispatcher import Dispatcher
from .error_policy import format_error
from .journal_writer import Recorder
from .publisher import MAX_SHOWN, ResultPublisher
from .run_state import RunState
from .signal_watcher import WATCH
from .timers import TimerThread

log = logging.getLogger("agentos")

_PATIENCE = 0.15  # seconds for the caller that waits, after a second signal
_LAST_COMMIT = 3.0  # seconds to close the journal after an error or a forced stop; a second signal ends the wait
_LAST_WORDS = 5.0  # seconds for the log and on_progress to receive the last events
_LONGEST_CONCLUSION = 10.0


class Shutdown:
    """The phases of a run: running, draining, forced, over. Any thread may request the next one.

    *kill_commands* kills the processes that workers started through agentos, and waits until they are reaped.
    """

    _dispatcher: Dispatcher
    _recorder: Recorder

    def __init__(
        self,
        state: RunState,
        publisher: ResultPublisher,
        timers: TimerThread,
        *,
        kill_commands: Callable[[], None],
        on_main_thread: bool,
    ) -> None:
        self._state = state
        self._stats = state.stats
        self._publisher = publisher
        self._timers = timers
        self._kill_commands = kill_commands
        self.stopping = threading.Event()
        self.error: BaseException | None = None  # raised to the caller that waits for the run
        self.input_error: BaseException | None = None
        self.lingering_attempts: dict[int, Attempt] = {}  # by token: over for the run, while their workers still run
        self._signals = 0
        self._last_signal = 0
        self._terminated_at = -math.inf
        self.raised = False  # the error was raised in the main thread
        self._on_main_thread = on_main_thread
        self._came_back = False  # the caller that waits for the run has come to conclude it
        self._concluding = threading.Event()
        self._concluded = threading.Event()
        self._conclusion = threading.Lock()

    def attach(self, dispatcher: Dispatcher, recorder: Recorder) -> None:
        """Set the parts that are made after this one: both may stop the run, and are closed by it."""
        self._dispatcher = dispatcher
        self._recorder = recorder

    # -- requests to stop -------------------------------------------------------------------------------------

    def stop(self, reason: str, *, cause: Cause = Cause.ASKED, force: bool = False, grace: float | None = None) -> None:
        """Start nothing more; wait for running attempts, up to *grace* seconds if given; with *force* do not wait."""
        scheduler = self._state.scheduler
        if force and self._signals and process_exit.owner is not None:
            process_exit.owner.begin(self._last_signal)
        with self._state.lock:
            if self._state.is_over:
                return
            first = scheduler.phase is Phase.RUNNING
            if first:
                if not scheduler.is_settled:  # else only its last results are not recorded yet
                    self._stats.stopped_by, self._stats.cause = reason, cause
                scheduler.phase = Phase.DRAINING
            if grace is not None:
                self._timers.grace_until = min(self._timers.grace_until, self._state.clock.now() + grace)
            self._state.closing = True
            running = [attempt.item.id for attempt in scheduler.running.values()]
        if first:
            self.stopping.set()
            self._dispatcher.withdraw_requests()
        self._announce_stop(reason, running, force, grace)
        if force:  # last: the caller that waits for the run may end the process right after this
            with self._state.lock:
                if scheduler.phase is Phase.DRAINING:
                    scheduler.phase = Phase.FORCED
                    self._timers.forced_at = self._state.clock.now()
        self._state.idle.wake_all()
        self._state.on_room()
        self._timers.wake()
        self.finish_if_idle()

    def _announce_stop(self, reason: str, running: list[str], force: bool, grace: float | None) -> None:
        count = f"{len(running)} running item{'' if len(running) == 1 else 's'}"
        shown = ", ".join(running[:MAX_SHOWN]) + (" ..." if len(running) > MAX_SHOWN else "")
        if force:
            what = f"not waiting for {count}: {shown}" if running else "nothing was running"
        elif running:
            limit = "" if grace is None else f" for up to {grace:g}s"
            what = f"nothing more starts; waiting{limit} for {count}: {shown}"
            if self._stats.cause is Cause.SIGNAL:
                what += " (once more to stop at once: they are then interrupted, and run again next time)"
        else:
            what = "nothing more starts"
        why = reason.partition("; ")[0]  # the advice after it is printed at the end
        self._publisher.emit("stopping", f"Stopping because of {why}: {what}", running=tuple(running[:MAX_SHOWN]))

    def on_signal(self, signum: int) -> None:
        """Handle a signal, on the watcher thread. The first drains the run, the second ends it."""
        now = time.monotonic()
        if signum == signal.SIGTERM and now < self._terminated_at + self._state.options.term_window:
            return  # `timeout` and some supervisors send it to a process and then to its whole group
        if signum == signal.SIGTERM:
            self._terminated_at = now
        self._signals += 1
        self._last_signal = signum
        name = signal.Signals(signum).name
        if process_exit.owner is not None:
            process_exit.owner.begin(signum) if self._signals > 1 else process_exit.owner.on_first_signal()
        if self._signals == 1:
            grace = self._state.options.grace if signum == signal.SIGTERM else None
            self.stop(name, cause=Cause.SIGNAL, grace=grace)
        elif self.error is None:
            self.error = KeyboardInterrupt() if signum == signal.SIGINT else SystemExit(128 + signum)
            self.stop(f"a second signal, {name}", cause=Cause.SIGNAL, force=True)
            self._timers.forced_at = min(self._timers.forced_at, self._state.clock.now())
            self._timers.wake()

    @property
    def is_forced(self) -> bool:
        """True after a second signal: the run must end at once."""
        return self._signals > 1

    @property
    def concluding(self) -> bool:
        return self._concluding.is_set()

    @property
    def concluded(self) -> bool:
        return self._concluded.is_set()

    # -- failures -------------------------------------------------------------------------------------------------

    def on_input_error(self, error: Exception) -> None:
        """Note that reading the input failed. Items read so far are finished; then the caller gets the error."""
        self.input_error = error
        self._stats.stopped_by = (
            f"an error of the input: {type(error).__name__}: {self._state.masked(format_error(error))}"
        )
        self._stats.cause = Cause.FAULT
        log.error("[COORDINATOR] the input failed (%s); the items read so far are finished", self._stats.stopped_by)

    def on_internal_error(self, error: BaseException) -> None:
        """End the run after an error of agentos itself."""
        if self.error is None:
            self.error = error
        self.stop(f"an internal error: {type(error).__name__}", cause=Cause.FAULT, force=True)
        self.abandon_waiters()

    def on_engine_unavailable(self, error: BaseException) -> None:
        """End the run because its engine cannot be used. Nothing has started, and nothing will.

        Called on its own thread: results of an earlier run are published first.
        """
        self._dispatcher.count_recorded()
        if self.error is None:
            self.error = error
        # The error itself has the rest of the message.
        reason = f"{error.place}, which cannot be used" if isinstance(error, EngineUnavailable) else format_error(error)
        self.stop(self._state.masked(reason), cause=Cause.FAULT, force=True)

    def on_journal_trouble(self, what: str | None) -> None:
        """Pause the run while the journal cannot be written; *what* None: it can be written again."""
        if what is not None:
            self._state.pause_reason = what
            self._dispatcher.withdraw_requests()
            self._publisher.emit("held", f"{what}; nothing more starts until it can be written again")
            return
        self._state.pause_reason = None
        self._publisher.emit("going_on", "the journal can be written again; continuing")
        self._state.idle.wake_all()
        self._state.on_room()

    def on_journal_lost(self, error: JournalUnavailable) -> None:
        """End the run: the journal will not be writable again. Results that are not recorded cannot be published."""
        if self.error is None:
            self.error = error
        self.stop(str(error), cause=Cause.FAULT, force=True)
        if self._stats.stopped_by is None:
            self._stats.stopped_by, self._stats.cause = str(error), Cause.FAULT

    # -- the end ----------------------------------------------------------------------------------------------

    def finish_if_idle(self) -> None:
        """If nothing runs and nothing more will: end the workers; if all is published too, wake the caller."""
        scheduler = self._state.scheduler
        with self._state.lock:
            settled = scheduler.is_settled
            if settled:
                self._state.closing = True
                # A thread that still announces an end checks again after it: its event must precede the last one.
                self._state.is_over = self._state.is_over or (
                    self._publisher.unpublished <= 0 and not self._publisher.announcing
                )
        if settled:
            self._state.idle.wake_all()
            if self._state.is_over or self._publisher.listening:
                self._publisher.wakeup.wake()
            if scheduler.phase is Phase.FORCED:
                self._timers.wake()

    def abandon_waiters(self) -> None:
        """Give up everything that is not recorded by now, and wake the caller."""
        with self._state.lock:
            self._state.closing = self._state.is_over = True
        self._state.idle.wake_all()
        self._publisher.wakeup.wake()
        if self.is_forced and not self._concluding.wait(_PATIENCE):
            # The caller that waits for the run is busy elsewhere, or its loop is stuck: end the run without it.
            self.conclude(instead=True)
            # If it came back meanwhile it raises the error itself, after its clean-up.
            if self._on_main_thread and self.error is not None and not self._came_back:
                signum = signal.SIGINT if isinstance(self.error, KeyboardInterrupt) else signal.SIGTERM
                self.raised = True  # set first: the main thread may raise it before the call returns
                self.raised = WATCH.raise_in_main(self.error, signum)

    def conclude(self, *, instead: bool = False) -> None:
        """Record unfinished items, close the journal, publish the last event.

        Only the first call does it; a later one waits until it is done. *instead*: not called by the run's caller.
        """
        with self._conclusion:
            first = not self._concluding.is_set()
            self._concluding.set()
            self._came_back = self._came_back or not instead
        if not first:
            self._concluded.wait(_LONGEST_CONCLUSION)
            return
        try:
            self._conclude()
        finally:
            self._concluded.set()

    def _conclude(self) -> None:
        scheduler, stats = self._state.scheduler, self._stats
        forced = scheduler.phase is Phase.FORCED
        with self._state.lock:
            for attempt in list(scheduler.running.values()):
                if self.abandon_attempt(attempt, failed=False):
                    self._recorder.record_end("interrupted", attempt, f"interrupted: {stats.stopped_by}", None)
            scheduler.phase = Phase.OVER
            parked = scheduler.park()
            for item in parked:
                self._recorder.record_item("parked", item)
            if scheduler.unservable and stats.stopped_by is None:
                stats.stopped_by, stats.cause = self._dispatcher.unservable_reason, Cause.CREDENTIALS
            if stats.stopped_by is not None:
                self._recorder.record_note(f"stopped by {stats.stopped_by}")
        stats.parked = len(parked)
        stats.interrupted = scheduler.interrupted
        stats.retried = scheduler.retried
        network = self._state.network
        if network.since is not None and not (stats.success_count > stats.cached or stats.limited or stats.rejected):
            stats.unreachable_since, stats.unreachable_why = network.since, network.why  # no answer in the whole run
        if stats.total is None:
            stats.total = scheduler.taken
        if forced and process_exit.owner is not None:
            self._kill_commands()
            process_exit.owner.on_workers_abandoned()
        self._close_recorder()
        if forced and process_exit.owner is None:
            self._abandon_leases()
        self._dispatcher.wait_for_withdrawal(_LAST_COMMIT, hurry=lambda: self.is_forced)
        stats.end_time = self._state.clock.wall()
        self._timers.end()
        self._publisher.folder.on_run_end()
        self._check_counts()
        self._publisher.emit("run_finished", "")
        self._publisher.progress.close(_LAST_WORDS, hurry=lambda: self.is_forced)

    def abandon_attempt(self, attempt: Attempt, *, failed: bool) -> bool:
        """Decide the attempt's item while its worker still runs. False: it had ended. The caller holds the lock."""
        if not self._state.scheduler.abandon_attempt(attempt, failed=failed):
            return False
        if attempt.grant is not None:
            self.lingering_attempts[attempt.token] = attempt
        return True

    def _abandon_leases(self) -> None:
        """Stop renewing the leases of workers that still run and are not awaited."""
        left = list(self.lingering_attempts.values())
        if not left or self._state.pool is None:
            return
        within = self._state.pool.abandon([attempt.grant for attempt in left])
        when = "when it returns" if within is None else f"when it returns, and at the latest in {within:g}s"
        for attempt in left:
            name, key = attempt.item.id, attempt.grant.key.name
            what = f"{name} was stopped and its worker still runs with {key}, which is released {when}"
            self._publisher.emit("worker_left", what, name)

    def _close_recorder(self) -> None:
        """Close the journal; while it cannot be written, keep trying until a second signal."""
        patience = 0.0
        while not self._recorder.close(0.3):
            patience += 0.3
            stopped = self._state.clock.now() >= min(self._timers.forced_at, self._timers.grace_until)
            if self.is_forced or (patience >= _LAST_COMMIT and (stopped or self.error is not None)):
                self._recorder.abandon()
                if self._publisher.unpublished > 0:
                    count = self._publisher.unpublished
                    log.error("[COORDINATOR] %d results could not be recorded; those items run again", count)
                return

    def _check_counts(self) -> None:
        """Check that every item is in exactly one state; if not, agentos has a bug and the counts are unreliable."""
        scheduler, stats = self._state.scheduler, self._stats
        with self._state.lock:
            if self._dispatcher.may_read_more or scheduler.admitted:
                return  # these change while we count
            counts = {
                "done": scheduler.done,
                "failed": scheduler.failed,
                "interrupted": scheduler.interrupted,
                "cached": stats.cached,
                "waiting": sum(1 for _ in scheduler.waiting_items()),
            }
            wrong = j2_counts_add_up(scheduler.taken, counts)
        if wrong is not None:
            # Logged, not raised: the results must not be lost because of it.
            log.error("[COORDINATOR] %s", InvariantViolated(name="J2", detail=wrong))


def j2_counts_add_up(taken: int, counts: Mapping[str, int]) -> str | None:
    """Return an error if the items taken from the input are not each counted once."""
    if sum(counts.values()) != taken:
        return f"{taken} items were taken, and {dict(counts)} are {sum(counts.values())}"
    return None
