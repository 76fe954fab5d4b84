"""Ctrl-Z (SIGTSTP): whoever has to act before the process stops is told first, and again when it goes on.

It takes two steps, because nothing of that may be done in a signal handler. The watcher of ``signals`` tells the runs
and the display, which stop their commands and clear the terminal. Only then it calls the main thread, whose handler
stops the process with the default action of SIGTSTP. It calls it by SIGCONT, which does nothing to a process that runs.
The system does not stop a process group that no shell could continue; then everything goes on at once.
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
    """Something that has to act before the process is stopped by SIGTSTP, and after it was continued."""

    def before_stop(self) -> None:
        """Called on the watcher thread. The process stops when all have returned."""
        ...

    def after_continue(self) -> None:
        """Called on the watcher thread, after each ``before_stop``. Must not block."""
        ...


class JobControl:
    """Stops the process on SIGTSTP. *continued* is called in a handler when it goes on: ``resume`` must follow it."""

    def __init__(self, continued: Callable[[], object]) -> None:
        self.due = False  # all have been told: the main thread is to stop the process
        self._listeners: list[Suspendable] = []
        self._notified: list[Suspendable] | None = None  # until the process was continued
        self._by = 0.0
        self._handled = False  # the handler of SIGTSTP has run, since the process was last stopped
        self._continued = continued

    def add(self, each: Suspendable) -> None:
        """Tell it from now on."""
        self._listeners.append(each)

    def remove(self, each: Suspendable) -> None:
        """Tell it no more; if it was never told, nothing happens."""
        if each in self._listeners:
            self._listeners.remove(each)

    def stop_if_due(self, signum: int) -> bool:
        """In the handler of *signum*, in the main thread: stop the process if all have been told.

        True when it goes on again.
        """
        if sys.platform == "win32":
            return False
        if signum == signal.SIGTSTP:
            self._handled = True
        # Of two signals at once the interpreter calls the handler of SIGCONT first; that of SIGTSTP follows it, and
        # must find itself in its place then.
        if not self.due or not self._handled:
            return False
        self.due = self._handled = False
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        # Here the process stands still, until SIGCONT.
        signal.signal(signal.SIGTSTP, ours)
        self._continued()
        return True

    # -- on the watcher thread --------------------------------------------------------------------------------

    def prepare(self) -> None:
        """SIGTSTP came: tell everybody. A second one before the process was continued is the same request."""
        if self._notified is not None:
            return
        self._notified = list(self._listeners)
        for each in self._notified:
            _call(each.before_stop)
        self._by = time.monotonic() + _STOPS_WITHIN
        self.due = True
        self.stop_in_main_thread()

    def stop_in_main_thread(self) -> None:
        """Have the main thread stop the process; or stop it from here, if that does not come to it."""
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
        """The process was continued, or is not to be stopped any more: tell everybody."""
        self.due = False
        told, self._notified = self._notified, None
        for each in reversed(told or ()):
            _call(each.after_continue)

    def reset_in_child(self) -> None:
        """In a forked child: it was the parent that was told to stop."""
        self._listeners = []
        self._notified = None
        self.due = self._handled = False


def _call(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception:
        log.exception("[COORDINATOR] something failed on the way to or from a stop (SIGTSTP)")


def _has_a_shell() -> bool:
    """Whether somebody can continue this process once it is stopped: else its process group is an orphaned one."""
    try:
        parent = os.getppid()
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgid(0)
    except OSError:
        return False
