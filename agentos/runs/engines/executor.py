"""Run items on any ``concurrent.futures.Executor``, using only ``submit`` and its futures.

One dispatch thread takes attempts while there is room, submits them and processes their results. The executor's own
threads only notify it that a future has ended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import Interrupted, NotPicklable, WorkerLost
from ...pool.lease import CURRENT_ATTEMPT
from ...util.wakeup import ThreadWakeup
from ..core.records import Attempt
from ..core.states import Cause, Verdict
from ..execution.dispatcher import IDLE, Idle
from ..execution.error_policy import format_error
from ..remote.apply_report import apply_report
from ..remote.assignment import AssignmentBuilder
from ..remote.attempt_report import AttemptReport
from ..remote.pickled import PickledObject, pack
from ..remote.worker_call import agentos_item
from ..worker import refuse_awaitable
from .executor_kinds import ExecutorKind, classify_executor

if TYPE_CHECKING:
    from ..execution.engine_run import EngineRun
    from ..worker import Worker

log = logging.getLogger("agentos")

_RESUME_HINT = "start the run again with another: with a journal it continues where it stopped"


def check_executor(executor: Executor, worker: Worker, *, ship_secrets: bool) -> None:
    """Raise ValueError or ``NotPicklable`` if the executor cannot run *worker* with these options."""
    if worker.is_command:
        raise ValueError(
            "engine: an executor runs functions and coroutines, not commands; leave engine out, which runs "
            'commands on this machine, or use "dask://host:port"'
        )
    kind = classify_executor(executor)
    if kind.scheduled and ship_secrets:
        raise ValueError(
            "ship_secrets: an executor of Dask would send secrets through its scheduler, where others can read them; "
            'use engine=<the Client> or "dask://host:port", which has its own encrypted connection, or leave '
            "ship_secrets out: then each key is found by its name on the worker's machine"
        )
    _pack_worker(worker, kind)


def _pack_worker(worker: Worker, kind: ExecutorKind) -> PickledObject:
    """Return the pickled worker function; empty where it stays in this process."""
    return PickledObject(b"") if kind.in_process else pack(worker.call, "the worker function", same_main=kind.same_main)


class ExecutorEngine:
    """Runs items on the user's own executor, as many at once as the run has workers. Never shuts it down.

    An item that cannot be stopped keeps its place in the executor, and its credential, until it returns. On an executor
    of an unknown class no item can be stopped.
    """

    clean_up = 1.0
    suspension = None

    def __init__(self, run: EngineRun, executor: Executor) -> None:
        kind = classify_executor(executor)
        self._run = run
        self._executor = executor
        self._kind = kind
        self._send = self._submit_local if kind.in_process else self._submit_remote
        self._function = _pack_worker(run.worker, kind)
        ship = kind.local or run.state.options.ship_secrets
        self._assigner = AssignmentBuilder(run, ship_secrets=ship, same_main=kind.same_main, scheduled=kind.scheduled)
        pool: Any = run.state.pool
        lease_ttl = None if kind.local else getattr(pool, "lease_ttl", None)  # of a shared store
        if lease_ttl is not None:
            pool.delegate(self, lease_ttl)  # remote attempts cannot be stopped when this process ends
        self._wakeup = ThreadWakeup()
        self._callbacks: deque[Callable[[], None]] = deque()  # callbacks of other threads, for the dispatch thread
        self._lock = threading.Lock()
        self._workers = 0
        self._running = 0  # submitted, and waited for
        self._abandoned = 0  # submitted, and abandoned

    # -- for the run ------------------------------------------------------------------------------------------

    def start(self, workers: int) -> None:
        self._workers = workers
        if self._kind.size < workers:
            log.info("[COORDINATOR] the executor has %d workers: at most that many items run at once", self._kind.size)
        threading.Thread(target=self._dispatch, name="agentos-dispatcher", daemon=True).start()

    def replace(self) -> None:
        with self._lock:
            self._running -= 1
            self._abandoned += 1
            stuck = self._abandoned >= self._kind.size
        if stuck:
            why = f"{self._abandoned} items that did not return, which hold every worker of the executor"
            self._run.shutdown.stop(why, cause=Cause.FAULT, force=True)
        self._wakeup.wake()

    def cancel(self, attempt: Attempt) -> bool:
        # A foreign future may report itself cancelled while its call continues, as Dask's do, and its running state is
        # unknown: the credential would be granted while in use. So the attempt is abandoned, as on a thread.
        return self._kind.local and attempt.runner is not None and bool(attempt.runner.cancel())

    def kill(self) -> None: ...

    def close(self) -> None: ...

    def disconnect_workers(self) -> None:
        """Do nothing: the workers have no connection to this process."""

    # -- the dispatch thread ----------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        try:
            while self._start_one():
                pass
            # Even when the run is over: abandoned attempts release their credentials as they return.
            while self._running + self._abandoned:
                self._wakeup.wait()
                self._run_callbacks()
        except BaseException as error:
            log.exception("[COORDINATOR] the dispatcher of agentos itself failed")
            self._run.shutdown.on_internal_error(error)

    def _start_one(self) -> bool:
        """Submit one more attempt, or sleep until that may be possible. False: there will be no more."""
        self._run_callbacks()
        if self._room() < 1:
            self._wakeup.wait()
            return True
        attempt = self._run.next_attempt()
        if isinstance(attempt, Idle):
            attempt = self._wait()
            if isinstance(attempt, Idle):
                return True
        if attempt is None:
            return False
        self._begin(attempt)
        return True

    def _room(self) -> float:
        with self._lock:
            return min(self._workers, self._kind.size - self._abandoned) - self._running

    def _run_callbacks(self) -> None:
        while self._callbacks:
            self._callbacks.popleft()()

    def _wait(self) -> Attempt | Idle | None:
        """Sleep until there may be something to do; check once more after registering."""
        run, wakeup = self._run, self._wakeup
        places = range(min(int(self._room()), self._workers))
        for _ in places:
            run.state.idle.register(wakeup)  # one per free place: waiting workers are counted by registrations
        attempt = run.next_attempt()
        if attempt is IDLE and not self._callbacks:
            wakeup.wait()
        for _ in places:
            if not run.state.idle.unregister(wakeup):
                break  # woken, which removed the others; everything is checked anyway
        return attempt

    def _notify(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        self._wakeup.wake()

    # -- one attempt ------------------------------------------------------------------------------------------

    def _begin(self, attempt: Attempt) -> None:
        with self._lock:
            self._running += 1
        if self._run.recorder.strict:
            started = partial(self._notify, partial(self._submit, attempt))
            self._run.recorder.confirm_start(attempt, started)
        else:
            self._submit(attempt)

    def _submit(self, attempt: Attempt) -> None:
        try:
            if self._run.recorder.strict:
                self._run.check_still_wanted(attempt)
            if attempt.cancelled == "stop":
                raise Interrupted  # noqa: TRY301 - before there was a future to cancel
            future = self._send(attempt)
        except (Interrupted, NotPicklable) as error:
            self._finish(attempt, None, error)
        except Exception as error:  # noqa: BLE001 - any error means that the executor accepts nothing more
            self._finish(attempt, None, self._on_broken_executor(error))
        else:
            attempt.runner = future
            future.add_done_callback(lambda ended: self._notify(partial(self._process_result, attempt, ended)))

    def _submit_remote(self, attempt: Attempt) -> Future[Any]:
        assignment = self._assigner.build(attempt)
        return self._executor.submit(agentos_item, self._function, assignment, self._run.worker.is_async)

    def _submit_local(self, attempt: Attempt) -> Future[Any]:
        return self._executor.submit(_call, self._run, attempt)

    def _process_result(self, attempt: Attempt, future: Future[Any]) -> None:
        try:
            value, error = self._outcome(attempt, future)
            self._finish(attempt, value, error)
        finally:
            error = None  # break the cycle with its traceback, which holds this frame

    def _outcome(self, attempt: Attempt, future: Future[Any]) -> tuple[Any, BaseException | None]:
        if future.cancelled():
            if attempt.cancelled is None:
                return None, self._on_broken_executor(
                    RuntimeError("it was shut down, and its queued calls were cancelled")
                )
            return None, self._run.build_cancellation(attempt)
        failed = future.exception()
        if failed is None:
            result = future.result()
            return apply_report(self._run, attempt, result) if isinstance(result, AttemptReport) else result
        if isinstance(failed, (BrokenExecutor, ImportError)):
            return None, self._on_broken_executor(failed)
        # Not the worker's error, which would be in its report: the executor could not run it, or lost it.
        return None, WorkerLost(f"the executor lost it: {_describe_error(failed)}")

    def _on_broken_executor(self, error: BaseException) -> Interrupted:
        """Start nothing more. The executor's items are not at fault: they run again another time."""
        why = f"an executor that cannot be used ({self._run.state.masked(_describe_error(error))})"
        if not self._run.state.closing:
            self._run.shutdown.stop(f"{why}; {_RESUME_HINT}", cause=Cause.FAULT)
        return Interrupted(f"stopped by {why}")

    def _finish(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        verdict = self._run.finish(attempt, value, error)
        attempt.runner = None  # break a cycle: an error in it has a traceback that holds the attempt
        with self._lock:
            if verdict is Verdict.LATE:
                self._abandoned -= 1
            else:
                self._running -= 1


def _describe_error(error: BaseException) -> str:
    """Return the error's type and message on one line: some executors write paragraphs."""
    return f"{type(error).__name__}: {' '.join(format_error(error).split())}"


async def _run_to_end(run: EngineRun, worker: Any) -> Any:
    """Await the worker on a loop of its own, and close the connections that it made there."""
    try:
        return await worker
    finally:
        if run.state.clients is not None:
            await run.state.clients.close_loop()


def _call(run: EngineRun, attempt: Attempt) -> tuple[Any, BaseException | None]:
    """Call the worker on a thread of this process, with its lease and a live context; nothing is pickled."""
    worker = run.worker
    value: Any = None
    holding = CURRENT_ATTEMPT.set(attempt)
    try:
        more = {"context": run.context_for(attempt)} if worker.wants_context else {}
        value = worker.call(attempt.item.payload, run.secret_for(attempt), **more)
        if worker.is_async:
            value = asyncio.run(_run_to_end(run, value))
        refuse_awaitable(value, in_coroutine=worker.is_async)
    except BaseException as error:  # noqa: BLE001 - any error of a worker fails its item, not the executor
        return None, error
    finally:
        CURRENT_ATTEMPT.reset(holding)
    return value, None
