"""The timer thread of a run, so that workers sleep until they are woken, never for a time.

It handles the ends of limits and backoffs, attempts that time out, the deadline and the grace period.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import Protocol

from ..core.records import LOST, Attempt
from ..core.states import Cause, Phase
from ..engines.protocol import Engine
from .dispatcher import DEADLINE, Dispatcher
from .run_state import RunState

log = logging.getLogger("agentos")

# Seconds for cancelled attempts to clean up after a forced stop; then they are abandoned.
_CLEAN_UP_FORCED = 0.3
# Re-check interval for attempts that are blocked through no fault of their own, in seconds.
_RECHECK_INTERVAL = 0.5
# Seconds after a forced stop until results that are not recorded are given up.
_LAST_COMMIT = 0.3


class TimerShutdown(Protocol):
    """The part of the run's shutdown that the timer thread calls."""

    @property
    def is_forced(self) -> bool: ...

    @property
    def concluding(self) -> bool: ...

    def stop(self, reason: str, *, cause: Cause = ..., force: bool = ...) -> None: ...

    def on_internal_error(self, error: BaseException) -> None: ...

    def abandon_waiters(self) -> None: ...


class RunningAttempts(Protocol):
    """The operations by which the timer thread ends attempts that do not return."""

    def fail_overdue(self, attempt: Attempt, timeout: float) -> bool: ...

    def interrupt(self, attempt: Attempt) -> None: ...

    def announce_unreachable(self) -> None: ...


class TimerThread:
    """Sleeps until the next due instant, then runs what is due."""

    _engine: Engine
    _dispatcher: Dispatcher
    _shutdown: TimerShutdown
    _attempts: RunningAttempts

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._sleeper = threading.Lock()
        self._sleeper.acquire()
        self._until = math.inf
        self._ended = False
        self.grace_until = math.inf
        self.forced_at = math.inf
        self.abandoned = 0
        self._in_order = True  # running attempts began in the order of their starts, as far as their timeouts count it

    def start(self, engine: Engine, dispatcher: Dispatcher, shutdown: TimerShutdown, attempts: RunningAttempts) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._shutdown = shutdown
        self._attempts = attempts
        threading.Thread(target=self._run_loop, name="agentos-timers", daemon=True).start()

    def wake(self) -> None:
        try:
            self._sleeper.release()
        except RuntimeError:
            pass  # it is awake already, and will check everything

    def schedule(self, instant: float) -> None:
        """Wake up if *instant* is earlier than planned, or possibly later than the run may wait."""
        if instant < self._until or self._state.may_park:
            self.wake()

    def end(self) -> None:
        self._ended = True
        self.wake()

    def _run_loop(self) -> None:
        state = self._state
        try:
            while not self._ended:
                # Reset before computing: a thread that schedules an earlier instant meanwhile wakes us.
                self._until = math.inf
                self._until = until = self._next_instant()
                state.clock.wait(self._sleeper, until)
                self._until = -math.inf
                self._run_due_timers(state.clock.now())
        except Exception as error:
            log.exception("[COORDINATOR] the timer thread of the run failed")
            self._shutdown.on_internal_error(error)

    def _next_instant(self) -> float:
        state = self._state
        with state.lock:
            phase = state.scheduler.phase
            due = state.scheduler.next_due if phase is Phase.RUNNING else math.inf
            overdue = self._next_overdue()
        instants = [self._dispatcher.completions.armed_at, due, overdue]
        if phase is Phase.RUNNING:
            instants += [state.scheduler.deadline, state.network.due_at]
        if phase is Phase.DRAINING:
            instants.append(self.grace_until)
        if phase is Phase.FORCED and not state.is_over:
            instants.append(self.forced_at + _CLEAN_UP_FORCED + (_LAST_COMMIT if state.scheduler.is_settled else 0.0))
        if self._shutdown.is_forced and not self._shutdown.concluding:
            instants.append(self.forced_at if state.is_over else self.forced_at + _CLEAN_UP_FORCED + _LAST_COMMIT)
        return min(instants)

    def _next_overdue(self) -> float:
        timeout = self._state.options.timeout
        if timeout is None or self._state.scheduler.phase is Phase.FORCED:
            return math.inf
        earliest, now = math.inf, self._state.clock.now()
        for attempt in self._state.scheduler.running.values():  # the oldest first
            if attempt.cancelled is None:
                overdue = attempt.began_at + timeout
                if overdue <= now and self._is_stopped(attempt):
                    overdue = now + _RECHECK_INTERVAL
                earliest = min(earliest, overdue)
                if self._in_order:
                    return earliest  # later ones started later
                continue
            if attempt.cancelled == LOST:
                continue  # it is being killed
            given_up_at = attempt.cancelled_at + self._engine.clean_up
            if _is_excused(attempt):
                look_again_at = now + _RECHECK_INTERVAL
                given_up_at = look_again_at if _is_blocked_on_output(attempt) else max(given_up_at, look_again_at)
            earliest = min(earliest, given_up_at)
        # Nothing runs, or all of it was cancelled: an attempt that starts later is not overdue before this.
        return min(earliest, now + timeout)

    def _run_due_timers(self, now: float) -> None:
        state = self._state
        with state.lock:
            # Before the pool's timer may grant a key: an item due for a retry must be first to get it.
            woken = state.scheduler.release_due(now) if state.scheduler.phase is Phase.RUNNING else 0
        if now >= self._dispatcher.completions.armed_at:
            self._dispatcher.on_timer()
        if now >= state.scheduler.deadline and state.scheduler.phase is Phase.RUNNING:
            self._shutdown.stop(DEADLINE, cause=Cause.DEADLINE)
        if now >= self.grace_until and state.scheduler.phase is Phase.DRAINING:
            self._shutdown.stop("the end of the grace period", force=True)
        if now >= state.network.due_at:
            self._attempts.announce_unreachable()
        if woken:
            state.idle.wake(woken)
        if state.may_park:
            self._check_parked(now)
        if state.options.timeout is not None:
            self._stop_overdue(now, state.options.timeout)
        if state.scheduler.phase is Phase.FORCED:
            self._stop_all(now)
        if self._shutdown.is_forced and state.is_over and not self._shutdown.concluding:
            self._shutdown.abandon_waiters()

    def _check_parked(self, now: float) -> None:
        """Stop the run if nothing runs and the next credential is due after the deadline or the longest wait."""
        state = self._state
        if (
            self._dispatcher.may_begin_work
        ):  # checked first: an item that a worker was handling may be running or queued by now
            return
        wakes_at = min(self._dispatcher.completions.armed_at, state.scheduler.next_due)
        longest = state.options.max_wait
        last = min(state.scheduler.deadline, math.inf if longest is None else now + longest)
        if last < wakes_at < math.inf and not state.scheduler.running and state.scheduler.phase is Phase.RUNNING:
            state.stats.wakes_at = state.clock.wall() + wakes_at - now
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.stats.wakes_at))
            self._shutdown.stop(f"limits that last until {when}", cause=Cause.PARKED)

    # -- timeouts ---------------------------------------------------------------------------------------------

    def _stop_overdue(self, now: float, timeout: float) -> None:
        state = self._state
        with state.lock:
            running = list(state.scheduler.running.values())
        for attempt in running:
            if attempt.cancelled is None:
                if attempt.began_at + timeout > now or self._is_stopped(attempt) or self._has_waited(attempt, now):
                    if self._in_order:
                        break  # later ones started later; while they are stopped, no time counts
                    continue
                self._cancel(attempt, "timeout", now)
            elif _is_blocked_on_output(attempt):
                attempt.cancelled_at = now  # its clean-up time has not started yet
            given_up_at = attempt.cancelled_at + self._engine.clean_up
            is_stuck = given_up_at <= now and not _is_excused(attempt)
            if attempt.cancelled == "timeout" and (attempt.runner is None or is_stuck):
                self._abandon_worker(attempt, timeout)

    def _is_stopped(self, attempt: Attempt) -> bool:
        """True if no time counts for the attempt now: a suspension of this process has not been credited yet."""
        return self._state.suspended or getattr(attempt.runner, "is_stopped", False)

    def _has_waited(self, attempt: Attempt, now: float) -> bool:
        """Leave out the time in which its calls waited for keys. False: there was none since the last look."""
        waited: float = getattr(attempt.runner, "take_waits", float)()
        if waited <= 0.0:
            return False
        attempt.began_at += min(waited, now - attempt.began_at)
        self._in_order = False
        return True

    def _cancel(self, attempt: Attempt, why: str, now: float) -> None:
        attempt.cancelled = why
        attempt.cancelled_at = now
        if not self._engine.cancel(attempt):
            attempt.runner = None  # it cannot be stopped, only abandoned

    def _abandon_worker(self, attempt: Attempt, timeout: float) -> None:
        state = self._state
        if not self._attempts.fail_overdue(attempt, timeout):
            return
        self.abandoned += 1
        if self.abandoned > state.options.max_workers:
            self._shutdown.stop(f"{self.abandoned} workers that did not return", cause=Cause.FAULT, force=True)
        else:
            self._engine.replace()

    # -- a forced stop ----------------------------------------------------------------------------------------

    def _stop_all(self, now: float) -> None:
        state = self._state
        with state.lock:
            running = list(state.scheduler.running.values())
        for attempt in running:
            if attempt.cancelled != "stop":
                self._cancel(attempt, "stop", now)
            if attempt.runner is None or now >= self.forced_at + _CLEAN_UP_FORCED:
                self._attempts.interrupt(attempt)
        if now >= self.forced_at + _CLEAN_UP_FORCED + _LAST_COMMIT:
            self._shutdown.abandon_waiters()


def _is_excused(attempt: Attempt) -> bool:
    """True if the attempt is blocked through no fault of its worker.

    The reader of our own output blocks it; or its worker process lost contact, and will soon be declared lost.
    """
    return _is_blocked_on_output(attempt) or getattr(attempt.runner, "kill_unconfirmed", False)


def _is_blocked_on_output(attempt: Attempt) -> bool:
    """True if the reader of our own output blocks the attempt."""
    return getattr(attempt.runner, "writing", False)
