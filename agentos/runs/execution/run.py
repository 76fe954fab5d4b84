"""One run: build and connect the parts that read the input, lease credentials, run items and publish results."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ...errors import InputFailed
from ...pool.protocols import RunPool
from ...pool.requests import NO_LABELS, Labels
from ...util.clock import Clock
from ...util.private_folder import PrivateFolder
from ..context import CheckpointFolder, HttpClients
from ..core.item_scheduler import ItemScheduler
from ..core.records import Attempt
from ..core.states import Cause
from ..engines.protocol import Engine
from ..exports.results_file import open_results
from ..journal import Journal
from ..options import RunOptions
from ..results import ProgressStats, WorkflowResult
from ..worker import Worker
from .attempt import PooledAttempt
from .engine_run import EngineRun
from .item_source import ItemSource
from .journal_writer import JournalRecorder, NoJournal, Recorder
from .publisher import ResultPublisher
from .run_state import RunState
from .shutdown import Shutdown
from .timers import TimerThread


class Run:
    """A run, as the caller that waits for it sees it."""

    def __init__(
        self,
        worker: Worker,
        source: ItemSource,
        options: RunOptions,
        pool: RunPool | None,
        clock: Clock,
        *,
        wakeup: Any,
        secrets: RunPool | None = None,
        labels: Labels = NO_LABELS,
        clients: HttpClients | None = None,
        journal: Journal | None = None,
        streamed: bool = False,
        on_main_thread: bool = False,
    ) -> None:
        is_our_pool = pool is not None and hasattr(pool, "is_used_by_run")
        if is_our_pool:
            pool.is_used_by_run = True  # type: ignore[union-attr]
        scheduler = ItemScheduler(
            retries=options.retries,
            halt=options.halt_clause,
            total=source.total,
            last_token=0 if journal is None else journal.last_token,
            pool=pool,
            attempt=partial(PooledAttempt, reporter=worker.label) if is_our_pool else Attempt,
        )
        if journal is None:
            folder = CheckpointFolder(None)
        else:
            folder = CheckpointFolder(journal.files.checkpoints, inside=journal.files.folder)
        self.stats = ProgressStats(total=source.total, start_time=clock.wall())
        self.state = RunState(
            options, self.stats, clock, scheduler, pool=pool, secrets=secrets, labels=labels, clients=clients
        )
        self.wakeup = wakeup  # wakes the caller that waits for the run
        self.publisher = ResultPublisher(self.state, wakeup, folder, streamed=streamed)
        self.timers = TimerThread(self.state)
        self.shutdown = Shutdown(
            self.state,
            self.publisher,
            self.timers,
            kill_commands=self._kill_commands,
            on_main_thread=on_main_thread,
        )
        self.recorder: Recorder = NoJournal(self.publisher.note_published)
        if journal is not None:
            self.recorder = JournalRecorder(journal, self.state, self.publisher, self.shutdown)
        self.attempts = EngineRun(worker, source, self.state, self.publisher, self.recorder, self.shutdown, self.timers)
        self.dispatcher = self.attempts.dispatcher
        self.shutdown.attach(self.dispatcher, self.recorder)
        self.worker = worker
        self.source = source
        self._end_pool_run: Callable[[], None] = getattr(pool or secrets, "end_run", lambda: None)
        self._engine: Engine | None = None
        self._stopped_at = 0.0
        self._journal = journal
        self._results_folder: PrivateFolder | None = None

    # -- start ------------------------------------------------------------------------------------------------

    def compare_with_journal(self) -> None:
        """Compare a list with the journal, and record it as the run's plan."""
        ids = self.source.ids
        options = self.state.options
        if ids is None and (options.reopen or options.reopen_changed):
            raise ValueError("reopen and reopen_changed need a list of items, whose ids are known before the run")
        if isinstance(self.recorder, JournalRecorder) and ids is not None:
            if self.recorder.resumes:
                self.source.unchanged = self.recorder.compare_list(ids, self.source.payloads)
            self.recorder.record_plan(ids)

    def open_results(self) -> None:
        """Write the results of earlier runs to the results file beside the journal, to which this run adds its own."""
        state = self.state
        if self._journal is None or not state.options.results_file:
            return
        files = self._journal.files
        self._results_folder = folder = PrivateFolder.at(files.db.parent)
        self.publisher.results_file = open_results(files, folder, retry_failed=state.options.retry_failed)

    def _close_results(self) -> None:
        file, self.publisher.results_file = self.publisher.results_file, None
        if file is not None:
            file.close(repair=not self.shutdown.is_forced)
        folder, self._results_folder = self._results_folder, None
        if folder is not None:
            folder.close()

    def begin(self, engine: Engine) -> None:
        """Start the workers."""
        self._engine = engine
        options, clock = self.state.options, self.state.clock
        self.state.scheduler.deadline = options.deadline_at(clock.now(), clock.wall())
        total = self.source.total
        count = "" if total is None else f" of {total} item{'' if total == 1 else 's'}"
        workers = options.max_workers if total is None else max(1, min(options.max_workers, total))
        unchanged = self.source.unchanged
        message = f"Starting parallel execution{count} with {options.max_workers} workers"
        self.publisher.emit("run_started", "Nothing to run" if unchanged and 0 not in unchanged else message)
        self.timers.start(engine, self.dispatcher, self.shutdown, self.attempts)
        engine.start(workers)

    def close_engine(self) -> None:
        if self.state.clients is not None:
            self.state.clients.close()
        if self._engine is not None:
            self._engine.close()

    def _kill_commands(self) -> None:
        if self._engine is not None:
            self._engine.kill()

    # -- end ----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.state.is_over

    def stop(self, reason: str, *, cause: Cause = Cause.ASKED, force: bool = False, grace: float | None = None) -> None:
        """Start nothing more; wait for running attempts, up to *grace* seconds if given; with *force* do not wait."""
        self.shutdown.stop(reason, cause=cause, force=force, grace=grace)

    def on_signal(self, signum: int) -> None:
        self.shutdown.on_signal(signum)

    def conclude(self) -> None:
        """Record unfinished items, close the journal, publish the last event. Only the first call has an effect."""
        try:
            self.shutdown.conclude()
        finally:
            self._close_results()
        self._end_pool_run()

    def raise_error(self, results: list[WorkflowResult] | None) -> None:
        """Raise the error that ended the run, or that its input raised, if there is one."""
        error, input_error = self.shutdown.error, self.shutdown.input_error
        if error is not None:
            raise error
        if input_error is not None:
            reason = f"{type(input_error).__name__}: {self.state.masked(str(input_error))}"
            raise InputFailed(reason=reason, stats=self.stats, results=results) from input_error

    # -- Ctrl-Z -------------------------------------------------------------------------------------------------

    def before_stop(self) -> None:
        """Prepare for the process being stopped."""
        self._stopped_at, self.state.suspended = time.monotonic(), True
        if self._engine is not None and self._engine.suspension is not None:
            self._engine.suspension.before_stop()

    def after_continue(self) -> None:
        """Continue after the process was stopped."""
        if self._engine is not None and self._engine.suspension is not None:
            self._engine.suspension.after_continue()
        else:
            self.attempts.credit_suspension(time.monotonic() - self._stopped_at)
        self.state.suspended = False

    # -- inspection ---------------------------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Return the ids of the items that are neither done nor failed, in order."""
        return self.publisher.unfinished(self.source.ids)

    def list_running(self) -> list[tuple[str, float]]:
        """Return the ids of the running items and when they started, the oldest first."""
        with self.state.lock:
            return [(attempt.item.id, attempt.began_at) for attempt in self.state.scheduler.running.values()]

    def waiting_workers(self) -> int:
        """Return how many idle workers have an item and only lack a credential."""
        return min(len(self.state.idle), self._count_startable()) if self.dispatcher.requests else 0

    def _count_startable(self) -> int:
        """Return how many items could start now with a lease; the number of workers, if unknown."""
        scheduler, source = self.state.scheduler, self.source
        ready = len(scheduler.fresh) + len(scheduler.retry_ready) + len(scheduler.admitted) + scheduler.deferred_count
        if scheduler.exhausted:
            return ready
        if source.total is None:
            return self.state.options.max_workers
        if source.unchanged is not None:
            return ready + source.unchanged.count(0, scheduler.taken)  # the others have recorded results
        return ready + source.total - scheduler.taken
