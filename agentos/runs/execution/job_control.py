"""Suspend the process on Ctrl-Z (SIGTSTP): notify the runs and the display first, and again after SIGCONT.

This takes two steps, because none of it may be done in a signal handler. The watcher thread of ``signals`` notifies the
runs and the display, which stop their commands and clear the terminal. Then it wakes the main thread, whose handler
stops the process with the default action of SIGTSTP. It wakes it by SIGCONT, which has no effect on a running process.
The kernel does not stop an orphaned process group; then everything continues at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("agentos")

JOB_CONTROL = () if sys.platform == "win32" else (signal.SIGTSTP, signal.SIGCONT)

_STOPS_WITHIN = 1.0  # the main thread may be in a long call; then the process is stopped without it


class Suspendable(Protocol):
    """An object that acts before the process is stopped by SIGTSTP, and after it was continued."""

    def before_stop(self) -> None:
        """Prepare for the stop, on the watcher thread. The process stops when all listeners have returned."""
        ...

    def after_continue(self) -> None:
        """Continue, on the watcher thread, after each ``before_stop``. Must not block."""
        ...


class JobControl:
    """Stops the process on SIGTSTP. *continued* is called in a handler after SIGCONT; ``resume`` must follow it."""

    def __init__(self, continued: Callable[[], object]) -> None:
        self.due = False  # all listeners were notified: the main thread must stop the process
        self._listeners: list[Suspendable] = []
        self._notified: list[Suspendable] | None = None  # until the process is continued
        self._by = 0.0
        self._handled = False  # the handler of SIGTSTP has run since the process was last stopped
        self._continued = continued

    def add(self, each: Suspendable) -> None:
        self._listeners.append(each)

    def remove(self, each: Suspendable) -> None:
        if each in self._listeners:
            self._listeners.remove(each)

    def stop_if_due(self, signum: int) -> bool:
        """Stop the process if all listeners were notified. Called in the handler of *signum*, in the main thread.

        Returns True after the process was continued.
        """
        if sys.platform == "win32":
            return False
        if signum == signal.SIGTSTP:
            self._handled = True
        # Of two pending signals the interpreter calls the handler of SIGCONT first; the handler of SIGTSTP follows, and
        # must
        # still be installed then.
        if not self.due or not self._handled:
            return False
        self.due = self._handled = False
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        # The process is stopped here until SIGCONT.
        signal.signal(signal.SIGTSTP, ours)
        self._continued()
        return True

    # -- on the watcher thread --------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Notify all listeners of SIGTSTP. A second one before the process was continued is the same request."""
        if self._notified is not None:
            return
        self._notified = list(self._listeners)
        for each in self._notified:
            _call(each.before_stop)
        self._by = time.monotonic() + _STOPS_WITHIN
        self.due = True
        self.stop_in_main_thread()

    def stop_in_main_thread(self) -> None:
        """Make the main thread stop the process; stop it from here if the main thread does not respond."""
        if sys.platform == "win32":
            return
        if time.monotonic() < self._by:
            ident = threading.main_thread().ident
            assert ident is not None  # noqa: S101 - for the type checker
            signal.pthread_kill(ident, signal.SIGCONT)
            return
        self.due = False
        if _has_a_shell():
            os.kill(os.getpid(), signal.SIGSTOP)
        self.resume()

    def resume(self) -> None:
        """Notify all listeners that the process was continued, or will not be stopped."""
        self.due = False
        notified, self._notified = self._notified, None
        for each in reversed(notified or ()):
            _call(each.after_continue)

    def reset_in_child(self) -> None:
        """Reset in a forked child: the request to stop was for the parent."""
        self._listeners = []
        self._notified = None
        self.due = self._handled = False


def _call(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception:
        log.exception("[COORDINATOR] a listener failed before or after a suspension (SIGTSTP)")


def _has_a_shell() -> bool:
    """True if a shell can continue this process once it is stopped; else its process group is orphaned."""
    try:
        parent = os.getppid()
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgid(0)
    except OSError:
        return False
