"""Run a list of items in parallel with the credentials of a pool."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ...pool.protocols import has_runtime, runtime_of
from ...runs.engines.choose import build_engine, check_worker
from ...runs.engines.protocol import Engine
from ...runs.execution.error_policy import RetryRule, is_transient
from ...runs.execution.item_source import ItemSource
from ...runs.execution.lease_source import build_run_pool, is_empty, select_labels
from ...runs.execution.run import Run
from ...runs.journal import Journal
from ...runs.options import CostFunction, Deadline, Duration, NameFunction, RunOptions, read_duration
from ...runs.progress import Progress
from ...runs.results import ProgressStats, WorkflowResult
from ...runs.worker import Worker, WorkerFunction, inspect_worker
from ...transport.run_clients import RunClients
from ...util.clock import Clock, SystemClock
from ...util.event_loop import running_loop
from ...util.wakeup import ThreadWakeup
from .run_scope import SignalScope, feed_input

__all__ = ["ParallelCoordinator", "ProgressStats", "WorkflowResult"]

log = logging.getLogger("agentos")

IdFunction = Callable[[Any], Any]


class _DefaultInt(int):
    """A default that differs from the same number given by the user."""


class ParallelCoordinator:
    """Run items in parallel, each with a credential of its own, and account for every one of them.

    ``max_workers`` items run at once: 3 by default, at most ``max_parallelism``; the latter alone sets both. With
    ``lease="item"`` each item is started with a lease of the pool; with ``lease="call"`` its worker takes its own.
    Items use the credentials of one provider: ``provider``, or the only one there (``"any"``: of all).

    ``journal`` names a run folder or file: outcomes are then written to disk before they are reported, and the same
    call again continues where the last one ended, even after a crash. ``retries`` are for errors that a retry may fix
    (``retry_if`` decides which); waiting for rate limits does not count. ``timeout`` is for one attempt; ``grace`` is
    the time that SIGTERM leaves to running items (another SIGTERM within ``term_window`` counts as the same); ``halt``
    stops early (``"soon,fail=10%"``); after ``deadline``, seconds or a datetime, nothing starts. A run waits for rate
    limits as long as they last; with ``max_wait`` it ends when nothing runs and no credential is due within that many
    seconds. A duration is a number of seconds, or text such as ``"5m"``.

    ``retry_failed`` runs failed items of an earlier call again. ``reopen`` (ids) and ``reopen_changed`` (items whose
    content changed) run items of a list again even if they are done, and no others. Unless ``results_file`` is False,
    results are also written to ``results.jsonl`` beside the journal.

    ``cost_func``, ``model_func`` and ``affinity_func`` return the arguments of an item's lease. ``start="strict"``
    writes each start to disk before it happens. ``engine`` is where items run: an executor of ``concurrent.futures``,
    ``"dask://host:port"``, a ``distributed.Client`` or ``agentos.Dask(...)``; by default this process. Secrets leave
    this machine only with ``ship_secrets``; otherwise workers find theirs by name where they run. ``on_begin`` is
    called before anything starts, when the journal is open and all checks have passed. docs/runs.md has the details. An
    object can be used again, and from several threads.
    """

    DEFAULT_PARALLELISM = 3
    MAX_PARALLELISM = 10

    def __init__(
        self,
        max_workers: int | None = None,
        credential_coordinator: Any = None,
        *,
        max_parallelism: int = _DefaultInt(MAX_PARALLELISM),
        lease: str = "item",
        provider: str | None = None,
        journal: str | os.PathLike[str] | None = None,
        retries: int = 2,
        retry_if: RetryRule = is_transient,
        timeout: Duration | None = None,
        grace: Duration = 8.0,
        term_window: Duration = 0.0,
        halt: str | None = None,
        deadline: Deadline | str = None,
        max_wait: Duration | None = None,
        worker_version: str | None = None,
        retry_failed: bool = False,
        reopen: Collection[str] = (),
        reopen_changed: bool = False,
        results_file: bool = True,
        accept_loss: bool = False,
        accept_worker: bool = False,
        start: str = "queued",
        cost_func: CostFunction = None,
        model_func: NameFunction = None,
        affinity_func: NameFunction = None,
        engine: Any = None,
        ship_secrets: bool = False,
        on_begin: Callable[[], object] | None = None,
        on_progress: Callable[[Progress], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        is_explicit = not isinstance(max_parallelism, _DefaultInt)
        self.max_parallelism = _at_least_one(
            "max_parallelism", max_parallelism if is_explicit else self.MAX_PARALLELISM
        )
        self.max_workers = self._cap_workers(max_workers, is_explicit=is_explicit)
        self.credential_coordinator = credential_coordinator
        self._clock: Clock = SystemClock() if clock is None else clock
        self._options = RunOptions(
            max_workers=self.max_workers,
            lease=lease,
            provider=provider,
            journal=journal,
            retries=retries,
            retry_if=retry_if,
            timeout=read_duration("timeout", timeout),
            grace=read_duration("grace", grace),
            term_window=read_duration("term_window", term_window),
            halt=halt,
            deadline=read_duration("deadline", deadline),
            max_wait=read_duration("max_wait", max_wait),
            worker_version=worker_version,
            retry_failed=retry_failed,
            reopen=reopen,
            reopen_changed=reopen_changed,
            results_file=results_file,
            accept_loss=accept_loss,
            accept_worker=accept_worker,
            start=start,
            cost_func=cost_func,
            model_func=model_func,
            affinity_func=affinity_func,
            on_progress=on_progress,
            engine=engine,
            ship_secrets=ship_secrets,
        )
        self._on_begin = on_begin
        build_run_pool(credential_coordinator, self._clock)  # reject an object that is not a pool now, not hours later
        self._lock = threading.Lock()
        self._running: list[Run] = []
        self._stops = 0
        self._has_warned_of_loop = False
        self._checkpoints: list[str] = []
        self._stats: ProgressStats | None = None

    def _cap_workers(self, wanted: int | None, *, is_explicit: bool) -> int:
        if wanted is None:
            return int(self.max_parallelism) if is_explicit else min(self.DEFAULT_PARALLELISM, self.max_parallelism)
        _at_least_one("max_workers", wanted)
        if wanted > self.max_parallelism:
            log.warning(
                "[COORDINATOR] Requested parallelism %d exceeds maximum %d. Capping to %d; max_parallelism=%d lifts it",
                wanted,
                self.max_parallelism,
                self.max_parallelism,
                wanted,
            )
            return int(self.max_parallelism)
        return wanted

    # -- running ----------------------------------------------------------------------------------------------

    def execute_parallel(
        self, items: Iterable[Any], worker_func: WorkerFunction, item_id_func: IdFunction, dry_run: bool = False
    ) -> tuple[ProgressStats, list[WorkflowResult]]:
        """Run every item and return the counts and the results, in order of completion.

        ``worker_func(item, credential)``, a function or a coroutine function, gets the plain secret, and a ``context``
        if it has a parameter of that name. After a first signal, a halt or the deadline, partial results are returned;
        after a second signal the journal is closed and KeyboardInterrupt or SystemExit raised. *dry_run* prints the
        ids.
        """
        if dry_run:
            return self._print_ids(items, item_id_func), []
        worker, source = inspect_worker(worker_func), self._source(items, item_id_func)
        self._warn_inside_loop("execute_parallel()", "await execute_async()")
        stops = self._stops
        run = self._prepare(worker, source, ThreadWakeup())
        with SignalScope(run):
            try:
                self._start(run, build_engine(run.attempts), stops)
                while not run.is_over:
                    run.wakeup.wait()
            finally:
                self._end(run)
        results = run.publisher.take_results()
        run.raise_error(results)
        return run.stats, results

    def stream(
        self, items: Iterable[Any], worker_func: WorkerFunction, item_id_func: IdFunction
    ) -> Iterator[WorkflowResult]:
        """Run every item of any iterable, even an endless one, and yield each result as soon as it is durable.

        Memory stays constant: while the results are not taken, no items are started. Leaving the loop early stops the
        run: running items may finish within ``grace``. ``stats`` has the counts.
        """
        worker, source = inspect_worker(worker_func), self._source(items, item_id_func)
        self._warn_inside_loop("stream()", "async for ... in stream_async()")
        return self._stream(worker, source)

    def _stream(self, worker: Worker, source: ItemSource) -> Iterator[WorkflowResult]:
        stops = self._stops
        run = self._prepare(worker, source, ThreadWakeup(), streamed=True)
        with SignalScope(run):
            deferred = False
            try:
                self._start(run, build_engine(run.attempts), stops)
                while True:
                    yield from run.publisher.take_results()
                    if run.publisher.request_wakeup():
                        run.wakeup.wait()
                    elif run.is_over and not run.publisher.has_results:
                        break
            except GeneratorExit:
                deferred = threading.current_thread().name.startswith("agentos-")
                if deferred:
                    # Collected as garbage on a thread of a run, which must not block here.
                    threading.Thread(
                        target=self._drain_and_end, args=(run,), name="agentos-leaving", daemon=True
                    ).start()
                    raise
                self._drain(run)
                if isinstance(run.shutdown.error, (KeyboardInterrupt, SystemExit)) and not run.shutdown.raised:
                    raise run.shutdown.error from None
                raise
            finally:
                if not deferred:
                    self._end(run)
        run.raise_error(None)

    def _drain(self, run: Run) -> None:
        run.stop("the end of the loop over its results", grace=self._options.grace)
        while not run.is_over:
            run.wakeup.wait()

    def _drain_and_end(self, run: Run) -> None:
        self._drain(run)
        self._end(run)

    async def execute_async(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        worker_func: WorkerFunction,
        item_id_func: IdFunction,
        dry_run: bool = False,
    ) -> tuple[ProgressStats, list[WorkflowResult]]:
        """Do the same as ``execute_parallel`` without blocking the running loop; coroutine workers run on it.

        Cancelling it cancels its coroutines; unfinished items are interrupted.
        """
        if dry_run and not isinstance(items, AsyncIterable):
            return self._print_ids(items, item_id_func), []
        worker, source = inspect_worker(worker_func), self._source(items, item_id_func)
        if dry_run:
            return await _print_ids_async(source), []
        from .async_run import AsyncRun  # avoids importing asyncio where it is not used

        async with AsyncRun(self, worker, source) as run:
            while not run.is_over:
                await run.wakeup.wait()
        results = run.publisher.take_results()
        run.raise_error(results)
        return run.stats, results

    async def stream_async(
        self, items: Iterable[Any] | AsyncIterable[Any], worker_func: WorkerFunction, item_id_func: IdFunction
    ) -> AsyncIterator[WorkflowResult]:
        """Do the same as ``stream`` in a running loop, also for async iterables. Leaving it early cancels its tasks."""
        from .async_run import AsyncRun

        worker, source = inspect_worker(worker_func), self._source(items, item_id_func)
        async with AsyncRun(self, worker, source, streamed=True) as run:
            while True:
                for result in run.publisher.take_results():
                    yield result
                if run.publisher.request_wakeup():
                    await run.wakeup.wait()
                elif run.is_over and not run.publisher.has_results:
                    break
        run.raise_error(None)

    # -- stopping and inspecting ------------------------------------------------------------------------------

    def shutdown(self, force: bool = False) -> None:
        """Stop the runs of this object, from any thread: no items start, running ones may finish.

        With *force* running items are not awaited: coroutines are cancelled, threads abandoned, their items
        interrupted. The call returns at once; the run then returns the results so far.
        """
        with self._lock:
            self._stops += 1  # also for a run that is being prepared
            running = list(self._running)
        for run in running:
            run.stop("shutdown()", force=force)

    def get_checkpoints(self) -> list[str]:
        """Return a copy of the ids of the items that did not finish in the last run, or not yet in the current one."""
        with self._lock:
            running = self._running[-1] if self._running else None
            if running is None:
                return list(self._checkpoints)
        return running.unfinished()

    def get_running(self) -> list[tuple[str, float]]:
        """Return the running items, the oldest first, with the seconds each has been running."""
        with self._lock:
            running = list(self._running)
        now = self._clock.now()
        return [(item_id, now - began_at) for run in running for item_id, began_at in run.list_running()]

    def get_waiting(self) -> int:
        """Return how many idle workers wait for a credential; at most as many as there are items to start."""
        with self._lock:
            running = list(self._running)
        return sum(run.waiting_workers() for run in running)

    @property
    def stats(self) -> ProgressStats | None:
        """The counts of the current run, or of the last one."""
        return self._stats

    # -- one run ----------------------------------------------------------------------------------------------

    def _warn_inside_loop(self, called: str, instead: str) -> None:
        """Warn once if the caller's thread has a running event loop, which the run would block."""
        if running_loop() is not None and not self._has_warned_of_loop:
            self._has_warned_of_loop = True
            log.warning(
                "[COORDINATOR] %s blocks the running event loop until the run ends; use `%s` in a coroutine",
                called,
                instead,
            )

    def _source(self, items: Any, item_id_func: IdFunction) -> ItemSource:
        if not callable(item_id_func):
            raise ValueError("item_id_func must be a function of the item")
        return ItemSource(items, item_id_func, with_fingerprints=self._options.journal is not None)

    def _prepare(
        self,
        worker: Worker,
        source: ItemSource,
        bell: Any,
        *,
        streamed: bool = False,
        on_main_thread: bool | None = None,
    ) -> Run:
        if on_main_thread is None:
            on_main_thread = threading.current_thread() is threading.main_thread()
        if source.is_async and isinstance(bell, ThreadWakeup):
            raise ValueError("items is an async iterable: use `await execute_async()` or `stream_async()`")
        options = replace(self._options, max_workers=_at_least_one("max_workers", self.max_workers))
        check_worker(worker, options)
        # the thread or loop that takes the leases must not block
        must_not_block = worker.is_async or options.engine is not None
        credentials = self.credential_coordinator
        pool = build_run_pool(credentials, self._clock, on_loop=must_not_block)
        clients = RunClients(runtime_of(credentials)) if has_runtime(credentials) else None
        if pool is not None and is_empty(pool):
            raise ValueError(
                "credential_coordinator has no credentials, so no item could start: add some before the run, or leave "
                "credential_coordinator out to run the items without"
            )
        labels = select_labels(pool, options.lease, options.provider)
        journal = None
        if options.journal is not None:
            name = options.worker_version or (worker.name if pool is None else pool.masked(worker.name))
            journal = Journal.open(
                options.journal,
                worker=name,
                total=source.total,
                accept_loss=options.accept_loss,
                accept_worker=options.accept_worker,
            )
        try:
            run = Run(
                worker,
                source,
                options,
                pool if options.lease == "item" else None,
                self._clock,
                wakeup=bell,
                secrets=pool,
                labels=labels,
                clients=clients,
                journal=journal,
                streamed=streamed,
                on_main_thread=on_main_thread,
            )
            run.compare_with_journal()
        except BaseException:
            if journal is not None:
                journal.close(5.0)
            raise
        return run

    def _start(self, run: Run, engine: Engine, stops: int) -> None:
        """Start the run, unless a stop was requested since *stops* was read."""
        with self._lock:
            self._running.append(run)
            self._stats = run.stats
            stopped = stops != self._stops
        if stopped:
            run.stop("shutdown()")
        if self._on_begin is not None:
            self._on_begin()
        run.open_results()
        must_not_block = run.worker.is_async or run.state.options.engine is not None
        if must_not_block and run.source.total is None and not run.source.is_async:
            # An input that blocks would block the loop, or the thread that hands items over.
            run.source.is_pushed = True
            threading.Thread(target=feed_input, args=(run,), name="agentos-input", daemon=True).start()
        run.begin(engine)

    def _end(self, run: Run) -> None:
        """Conclude the run however it ended, and remember the unfinished items."""
        try:
            if not run.is_over:
                run.stop("an exception in the thread that ran it", force=True)
            run.conclude()
        finally:
            # Also if a second signal is raised in here, as it is if the main thread seemed stuck.
            try:
                run.close_engine()
            finally:
                with self._lock:
                    if run in self._running:
                        self._running.remove(run)
                    self._checkpoints = run.unfinished()

    def _print_ids(self, items: Iterable[Any], item_id_func: IdFunction) -> ProgressStats:
        """Print the ids of the items to standard output."""
        source = ItemSource(items, item_id_func)
        if source.ids is not None:
            print(f"[COORDINATOR] Dry run mode - would process {len(source.ids)} items:")  # noqa: T201
            for item_id in source.ids:
                print(f"  - {item_id}")  # noqa: T201
            return ProgressStats(total=len(source.ids))
        print("[COORDINATOR] Dry run mode - would process these items:")  # noqa: T201
        count = 0

        def show(item: Any) -> None:
            nonlocal count
            count += 1
            print(f"  - {item.id}")  # noqa: T201

        while source.take(show):
            pass
        return ProgressStats(total=count)


async def _print_ids_async(source: ItemSource) -> ProgressStats:
    print("[COORDINATOR] Dry run mode - would process these items:")  # noqa: T201
    count = 0
    async for payload in source.async_items:
        count += 1
        print(f"  - {source.make(payload).id}")  # noqa: T201
    return ProgressStats(total=count)


def _at_least_one(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value
