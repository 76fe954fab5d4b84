"""Run workers on daemon threads. A thread cannot be stopped; as a daemon it does not block the process exit."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ...pool.lease import CURRENT_ATTEMPT
from ...util.wakeup import ThreadWakeup
from ..core.records import Attempt
from ..core.states import Verdict
from ..execution.dispatcher import IDLE, Idle
from ..execution.job_control import Suspendable
from ..worker import refuse_awaitable

if TYPE_CHECKING:
    from ..execution.engine_run import EngineRun

log = logging.getLogger("agentos")


class ThreadEngine:
    """Runs as many threads as the run has workers."""

    clean_up = 1.0
    suspension: Suspendable | None = None

    def __init__(self, run: EngineRun) -> None:
        self._run = run
        self._started = 0

    def start(self, workers: int) -> None:
        for _ in range(workers):
            try:
                self.replace()
            except RuntimeError:
                if not self._started:
                    raise
                log.warning("[COORDINATOR] only %d of %d threads could be started", self._started, workers)
                return

    def replace(self) -> None:
        name = f"agentos-worker-{self._started + 1}"
        threading.Thread(target=self._work, name=name, daemon=True).start()
        self._started += 1

    def cancel(self, attempt: Attempt) -> bool:
        return False

    def kill(self) -> None: ...

    def close(self) -> None: ...

    def _work(self) -> None:
        run = self._run
        try:
            while True:
                attempt = run.next_attempt()
                if isinstance(attempt, Idle):
                    attempt = self._wait()
                    if isinstance(attempt, Idle):
                        continue
                if attempt is None or self._run_one(attempt) is Verdict.LATE:
                    return
        except BaseException as error:
            log.exception("[COORDINATOR] a worker thread of agentos itself failed")
            run.shutdown.on_internal_error(error)

    def _wait(self) -> Attempt | Idle | None:
        """Sleep until there may be something to do; check once more after registering."""
        wakeup = ThreadWakeup()
        attempt = self._recheck(wakeup)
        if attempt is IDLE:
            wakeup.wait()
        return attempt

    def _recheck(self, wakeup: ThreadWakeup) -> Attempt | Idle | None:
        """Look for work once more. If there is none, *wakeup* is registered first, so that no wake-up is lost."""
        run = self._run
        run.state.idle.register(wakeup)
        attempt = run.next_attempt()
        if attempt is not IDLE:
            self._unregister(wakeup)
        return attempt

    def _unregister(self, wakeup: ThreadWakeup) -> None:
        """Unregister a wake-up that is no longer needed."""
        if not self._run.state.idle.unregister(wakeup):
            self._run.state.idle.wake()  # woken for other work

    def _run_one(self, attempt: Attempt) -> Verdict:
        run = self._run
        worker = run.worker
        value = error = None
        holding = CURRENT_ATTEMPT.set(attempt)
        try:
            if attempt.cancelled is not None:
                raise run.build_cancellation(attempt)  # noqa: TRY301 - before it started
            if run.recorder.strict:
                self._wait_for_start(attempt)
            if worker.wants_context:
                value = worker.call(attempt.item.payload, run.secret_for(attempt), context=run.context_for(attempt))
            else:
                value = worker.call(attempt.item.payload, run.secret_for(attempt))
            refuse_awaitable(value)
        except BaseException as raised:  # noqa: BLE001 - any error of a worker fails its item, not the run
            value, error = None, raised
        CURRENT_ATTEMPT.reset(holding)
        try:
            return run.finish(attempt, value, error)
        finally:
            error = None  # break the cycle with its traceback, which holds this frame

    def _wait_for_start(self, attempt: Attempt) -> None:
        on_disk = ThreadWakeup()
        self._run.recorder.confirm_start(attempt, on_disk.wake)
        on_disk.wait()
        self._run.check_still_wanted(attempt)
