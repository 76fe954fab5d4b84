"""Run coroutine workers as tasks on an event loop; each task fetches its next item itself."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

from ...errors import Interrupted
from ...pool.lease import CURRENT_ATTEMPT
from ...util.async_wakeup import AsyncWakeup
from ..core.records import Attempt
from ..core.states import Verdict
from ..execution.dispatcher import IDLE, Idle
from ..worker import refuse_awaitable
from .loop_executor import STARTED, StartedCalls, install_loop_executor

if TYPE_CHECKING:
    from ..execution.engine_run import EngineRun

log = logging.getLogger("agentos")

# A worker that never really waits would block the loop.
_ITEMS_PER_YIELD = 16


class AsyncioEngine:
    """Runs as many tasks as the run has workers, on the loop it is started in."""

    clean_up = 1.0
    suspension = None

    def __init__(self, run: EngineRun, loop: asyncio.AbstractEventLoop) -> None:
        self._run = run
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, workers: int) -> None:
        install_loop_executor(self._loop)
        for _ in range(workers):
            self._add()

    def _add(self) -> None:
        task = self._loop.create_task(self._work(), name="agentos-worker")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def replace(self) -> None:
        self._call_in_loop(self._add)

    def cancel(self, attempt: Attempt) -> bool:
        def cancel() -> None:
            if not attempt.ended and attempt.runner is not None:
                attempt.runner.cancel()

        return attempt.runner is not None and self._call_in_loop(cancel)

    def kill(self) -> None: ...

    def close(self) -> None:
        def cancel_all() -> None:
            for task in self._tasks:
                task.cancel()

        self._call_in_loop(cancel_all)

    def _call_in_loop(self, callback: Any) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False  # the loop is closed
        return True

    async def _work(self) -> None:
        run = self._run
        in_a_row = 0
        try:
            while True:
                attempt = run.next_attempt()
                if isinstance(attempt, Idle):
                    attempt = await self._wait()
                    if isinstance(attempt, Idle):
                        continue
                if attempt is None or await self._run_one(attempt) is Verdict.LATE:
                    return
                in_a_row += 1
                if in_a_row >= _ITEMS_PER_YIELD:
                    in_a_row = 0
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            log.exception("[COORDINATOR] a worker task of agentos itself failed")
            run.shutdown.on_internal_error(error)
            if not isinstance(error, Exception):
                raise  # the loop handles it

    async def _wait(self) -> Attempt | Idle | None:
        run, wakeup = self._run, AsyncWakeup(self._loop)
        run.state.idle.register(wakeup)
        attempt = run.next_attempt()
        if attempt is IDLE:
            try:
                await wakeup.wait()
            except BaseException:
                if not run.state.idle.unregister(wakeup):
                    run.state.idle.wake()  # woken for some work, and leaving
                raise
            return IDLE
        if not run.state.idle.unregister(wakeup):
            run.state.idle.wake()  # woken for other work
        return attempt

    async def _run_one(self, attempt: Attempt) -> Verdict:
        run = self._run
        worker = run.worker
        value: Any = None
        error: BaseException | None = None
        task = attempt.runner = asyncio.current_task()
        holding = CURRENT_ATTEMPT.set(attempt)
        calls = None if attempt.grant is None else StartedCalls()
        counting = STARTED.set(calls)
        cancelled_from_outside = False
        try:
            if attempt.cancelled is not None:
                raise run.build_cancellation(attempt)  # noqa: TRY301 - before there was a task to cancel
            if run.recorder.strict:
                await self._wait_for_start(attempt)
            if worker.wants_context:
                context = run.context_for(attempt)
                value = await worker.call(attempt.item.payload, run.secret_for(attempt), context=context)
            else:
                value = await worker.call(attempt.item.payload, run.secret_for(attempt))
            refuse_awaitable(value, in_coroutine=True)
        except asyncio.CancelledError as raised:
            if attempt.cancelled is None:
                cancelled_from_outside = task is not None and task.cancelling() > 0
                error = Interrupted("its task was cancelled") if cancelled_from_outside else raised
            else:
                error = run.build_cancellation(attempt)
        except BaseException as raised:  # noqa: BLE001 - any error of a worker fails its item, not the run
            value, error = None, raised
        CURRENT_ATTEMPT.reset(holding)
        STARTED.reset(counting)
        if attempt.cancelled is not None and task is not None and task.cancelling():
            task.uncancel()  # it was meant for the attempt; the task continues
        try:
            if cancelled_from_outside:
                run.shutdown.stop("the cancellation of its tasks", force=True)
            verdict = run.finish(attempt, value, error, calls)
        finally:
            error = None  # break the cycle with its traceback, which holds this frame
        if cancelled_from_outside:
            raise asyncio.CancelledError
        return verdict

    async def _wait_for_start(self, attempt: Attempt) -> None:
        on_disk = AsyncWakeup(self._loop)
        self._run.recorder.confirm_start(attempt, on_disk.wake)
        await on_disk.wait()
        self._run.check_still_wanted(attempt)


class AsyncioThreadEngine:
    """Runs an own event loop on a daemon thread, for a caller that has none."""

    clean_up = AsyncioEngine.clean_up
    suspension = None

    def __init__(self, run: EngineRun) -> None:
        self._loop = asyncio.new_event_loop()
        self._engine = AsyncioEngine(run, self._loop)
        self._thread = threading.Thread(target=self._run_loop, name="agentos-loop", daemon=True)

    def start(self, workers: int) -> None:
        self._loop.call_soon(self._engine.start, workers)
        self._thread.start()

    def replace(self) -> None:
        self._engine.replace()

    def cancel(self, attempt: Attempt) -> bool:
        return self._engine.cancel(attempt)

    def kill(self) -> None: ...

    def close(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:
            return
        self._thread.join(0.2)  # unless a coroutine blocks it; then it is abandoned

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()
