"""Exit of the command within a second of a second signal, regardless of its threads and child processes.

The run shuts down as after any forced stop: commands are killed, results committed, the journal closed. Then leases are
returned, the terminal is restored, and ``os._exit`` ends the process, because an ordinary exit would wait for every
thread that a worker has started. If a step hangs, a separate thread runs the remaining steps and exits when the second
is over. If no Python code can run, a watchdog process kills this one (``exit_guard``).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ..runs.execution import process_exit
from .exit_codes import ExitCode
from .exit_guard import kill_children

_HURRY_AFTER = 0.7  # from here on the last steps run without waiting for those before them
_END_AFTER = 0.95
_GUARD = Path(__file__).with_name("exit_guard.py")
_NEEDED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # to start Python at all


class ForcedExit:
    """Ends this process on behalf of its runs (see ``ProcessExitOwner``). ``entry`` makes one per process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may run while it is held
        self._begun_at: float | None = None
        self._code = int(ExitCode.INTERRUPTED)
        self._awake = threading.Event()
        self._guard: int | None = None  # its control descriptor
        self.must_exit = False  # threads may be left that must not be waited for
        self.restore_terminal: Callable[[], object] = int

    # -- for runs ---------------------------------------------------------------------------------------------

    def on_first_signal(self) -> None:
        """Report to the watchdog that the first signal was handled."""
        self._tell_guard(b"1")

    def begin(self, signum: int) -> None:
        """Start the last second of the process."""
        self._begin(int(ExitCode.INTERRUPTED if signum == signal.SIGINT else ExitCode.TERMINATED))

    def _begin(self, code: int) -> None:
        with self._lock:
            if self._begun_at is not None:
                return
            self._begun_at = time.monotonic()
            self._code = code
            self.must_exit = True
        self._awake.set()
        self._tell_guard(b"2")

    def on_workers_abandoned(self) -> None:
        """Kill the child processes that workers have started themselves."""
        self.must_exit = True
        kill_own_children()

    # -- for the command --------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Start the exit threads before a run begins."""
        # Started now: when they are needed, the system may refuse a new thread.
        for each in (self._hurry, self._end_in_time):
            threading.Thread(target=each, name="agentos-exit", daemon=True).start()

    def watch_signals(self, grace: float, term_window: float) -> None:
        """Start the watchdog process, because functions that run in this process may block the interpreter."""
        import subprocess

        from ..runs.execution.signal_watcher import WATCH

        arrivals = WATCH.arrivals
        if arrivals is None or self._guard is not None:
            return
        theirs, mine = os.pipe()
        words = [str(theirs), str(os.getpid()), str(grace), str(term_window)]
        try:
            guard = subprocess.Popen(  # noqa: S603 - a file of this package
                [sys.executable, "-I", "-S", str(_GUARD), str(arrivals), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if os.isatty(2) else subprocess.DEVNULL,
                cwd="/",
                pass_fds=[arrivals, theirs],
                start_new_session=True,
                env={name: os.environ[name] for name in _NEEDED if name in os.environ},
            )
        except OSError:
            os.close(mine)  # without a watchdog, only Python code ends this process
        else:
            process_exit.OWN_CHILDREN.add(guard.pid)
            guard.returncode = 0  # it outlives this process for a moment, and is not waited for
            self._guard = mine
        finally:
            os.close(theirs)

    def exit(self, code: int) -> NoReturn:
        """Exit with *code*: at once if workers were abandoned, else like any other Python program."""
        if self.must_exit:
            self.exit_now(code)
        sys.exit(code)  # waits for threads that workers have started

    def end_on_signal(self) -> None:
        """Make a signal exit the process from now on: the run is over, and only threads of workers are waited for."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._on_signal)

    def _on_signal(self, signum: int, _frame: object) -> None:
        self.begin(signum)
        self.exit_now(self._code)

    def exit_now(self, code: int) -> NoReturn:
        """Run the last steps and exit."""
        self._begin(code)
        self._last_steps()
        os._exit(code)

    # -- the threads ------------------------------------------------------------------------------------------

    def _last_steps(self) -> None:
        for step in (kill_own_children, return_leases, self.restore_terminal, sys.stdout.flush, sys.stderr.flush):
            try:
                step()
            except Exception:  # noqa: BLE001, S112 - the next step must run in any case
                continue

    def _hurry(self) -> None:
        """Run the last steps from this thread if the main thread hangs."""
        self._sleep(_HURRY_AFTER)
        self._last_steps()

    def _end_in_time(self) -> None:
        self._sleep(_END_AFTER)
        os._exit(self._code)

    def _sleep(self, seconds: float) -> None:
        self._awake.wait()
        assert self._begun_at is not None  # noqa: S101 - for the type checker
        time.sleep(max(0.0, self._begun_at + seconds - time.monotonic()))

    def _tell_guard(self, word: bytes) -> None:
        if self._guard is not None:
            try:
                os.write(self._guard, word)
            except OSError:
                pass  # the watchdog has exited


def kill_own_children() -> None:
    """Kill the child processes of this one, except those that are part of agentos or clean up by themselves."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    kill_children(os.getpid(), {*process_exit.OWN_CHILDREN, getattr(tracker, "_pid", None) or 0})


def return_leases() -> None:
    """Return all leases of this process."""
    runtime = sys.modules.get("agentos.pool.runtime.pool_runtime")
    if runtime is not None:
        runtime.release_all_at_exit()


def find_current() -> ForcedExit | None:
    """Return the ForcedExit of this process, or None if another program called the command."""
    return process_exit.owner if isinstance(process_exit.owner, ForcedExit) else None
