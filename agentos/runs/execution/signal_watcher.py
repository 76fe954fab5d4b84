"""Deliver SIGINT and SIGTERM to every run of the process, from one watcher thread.

A signal handler may do almost nothing: ``Event.set``, ``Queue.put``, a log line or a print can deadlock with the code
that was interrupted. And the handler runs late, or never, while the main thread is in a long call. So the interpreter
writes each signal's number into a pipe when it arrives (``signal.set_wakeup_fd``), and a watcher thread reads them
there and notifies the runs.

A signal must be counted once: the first drains a run, the second ends it. A process has only one wake-up descriptor,
and an event loop with its own handlers may have it, or may take it later. Then the numbers do not reach our pipe, and
our handler, which does run, writes them there itself. It checks the owner of the descriptor each time, so that exactly
one of the two writes.

Only the main thread can set handlers. A run that joined there and left from another thread leaves our handlers
installed; with no run to notify, the handler restores the previous ones and raises the signal again.

SIGTSTP and SIGCONT arrive the same way and are handled by ``job_control``.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from .job_control import JOB_CONTROL, JobControl

log = logging.getLogger("agentos")

_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Bytes in the pipe: numbers of signals as the interpreter writes them, the same plus _BY_HANDLER, and four of ours.
_BY_HANDLER = 0x80
_CHECK = 0  # the state has changed
_MARK = 0x7F  # a thread waits until this byte is read
_BEGIN = 0x7E  # earlier bytes were for runs that have left
_CONTINUED = 0x7D  # the process was stopped and continued

# A signal that arrives as the main thread is about to block does not wake it; so one of ours is sent again.
_SEND_AGAIN_AFTER = 0.05
_OWN_ARRIVES_WITHIN = 1.0
_CATCH_UP_WITHIN = 1.0


class Stoppable(Protocol):
    """A run that is notified of signals."""

    def on_signal(self, signum: int) -> None:
        """Handle a signal. Called on the watcher thread, never in a handler, once for each signal. Must not block."""
        ...


class SignalWatch:
    """Notifies the joined runs of SIGINT and SIGTERM. A process has one, ``WATCH``.

    Our handlers are installed only while a run is joined from the main thread, and only for signals that were not
    ignored. A signal reaches every joined run, including those joined from other threads.
    """

    def __init__(self) -> None:
        # Re-entrant: a finalizer may make an abandoned run leave while its thread holds the lock.
        self._lock = threading.RLock()
        self._runs: dict[int, tuple[Stoppable, bool]] = {}  # by id; True if it joined from the main thread
        self._on_main = 0
        self._handler = self._handle  # one object, so that ``is`` recognizes it
        self._previous: dict[int, _Handler] = {}  # not empty: our handlers are installed
        self._before: dict[int, _Handler] = {}  # the handlers restored last, for a host that still calls ours
        self._reader: socket.socket | None = None
        self._writer: socket.socket | None = None
        self._wakeup_is_ours = False
        self._watcher: threading.Thread | None = None
        self._taken_over = 0  # number of take-overs, and how many of them the watcher has read
        self._begun = 0
        self._noticed = False  # the handler left something to the watcher
        self._own: dict[int, tuple[int, float]] = {}  # our pending signals: in which take-over sent, and when
        self._catching_up: deque[threading.Lock] = deque()
        self._error: tuple[BaseException, int] | None = None  # to be raised in the main thread
        self._forking = threading.local()
        self.job_control = JobControl(lambda: self._write(_CONTINUED))
        self.meanings: dict[int, int] = {}  # other signals that count as SIGINT or SIGTERM, from the next run on

    def join(self, run: Stoppable) -> None:
        """Notify *run* of signals from now on.

        Call it inside the ``try`` whose ``finally`` calls ``leave``: a signal may arrive half-way, and raise.
        """
        on_main = _in_main_thread()
        with self._lock:
            if id(run) in self._runs:
                return
            if on_main and not self._on_main:
                self._put_back()  # left installed by a run that ended on another thread
            self._runs[id(run)] = (run, on_main)
            self._on_main += on_main
            if on_main and not self._previous:
                self._take_over()

    def leave(self, run: Stoppable) -> None:
        """Stop notifying *run*. May be called from any thread, repeatedly.

        In the main thread, *run* has been notified of every earlier signal when this returns. An error that waits to be
        raised there is dropped when the last run of the main thread leaves.
        """
        try:
            self._leave(run)
        except BaseException:
            self._leave(run)  # a signal's exception interrupted it: finish, then re-raise
            raise

    @property
    def arrivals(self) -> int | None:
        """The descriptor where signals arrive as bytes, while our handlers are installed. Others may poll, not read."""
        return None if self._reader is None or not self._previous else self._reader.fileno()

    def raise_in_main(self, error: BaseException, signum: int) -> bool:
        """Make the main thread raise *error*, asleep or at work; in a long C call, after that call.

        *signum* is a signal we watch: it is sent to the main thread and not counted as the user's. False: our handler
        for it is not installed, and nothing is done.
        """
        with self._lock:
            if not self._on_main or not self._is_ours(signum):
                return False
            self._error = (error, signum)
            self._wake_main(signum)
        self._write(_CHECK)
        return True

    # -- the handlers, in the main thread ---------------------------------------------------------------------

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        # No lock, no log: the interrupted code may be in the middle of either.
        if not self._is_ours(signum):
            self._handle_for_host(signum, frame)
            return
        if not self._on_main:
            self._put_back()
            self._write(_CHECK)
            signal.raise_signal(signum)
            return
        if signum in JOB_CONTROL:
            # During a fork these signals are blocked, and the process would not stop here.
            stopped = not self._forking.__dict__ and self.job_control.stop_if_due(signum)
            if not stopped and not self._interpreter_wrote():
                self._write(signum | _BY_HANDLER)
            return
        self._noticed = True
        if not self._interpreter_wrote():
            self._write(signum | _BY_HANDLER)
        waiting = self._error
        # An exception raised during a fork would be lost; it will be sent again.
        if waiting is not None and not self._forking.__dict__:
            self._error = None
            raise waiting[0]

    def _handle_for_host(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal for a host whose handler replaced ours and calls it."""
        if self._on_main:
            self._noticed = True
            self._write(signum | _BY_HANDLER)
            return
        before = self._before.get(signum)
        if callable(before):
            before(signum, frame)

    def _interpreter_wrote(self) -> bool:
        """True if the current signal is in our pipe already."""
        if not self._wakeup_is_ours or self._writer is None:
            return False
        found = self._claim_wakeup(self._writer)
        self._wakeup_is_ours = found in (-1, self._writer.fileno())
        return found == self._writer.fileno()

    def _claim_wakeup(self, writer: socket.socket) -> int:
        """Take the wake-up descriptor unless another owner has it. Returns the previous one."""
        found = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if found not in (-1, writer.fileno()):
            try:
                signal.set_wakeup_fd(found)
            except (ValueError, OSError):
                return -1  # its owner closed it
        return found

    def _is_ours(self, signum: int) -> bool:
        return signal.getsignal(signum) is self._handler

    def _take_over(self) -> None:
        handlers = {number: signal.getsignal(number) for number in (*_SIGNALS, *self.meanings)}
        wanted: dict[int, _Handler] = {n: each for n, each in handlers.items() if each not in (None, signal.SIG_IGN)}
        if not wanted:
            return
        found: dict[int, _Handler] = {number: signal.getsignal(number) for number in JOB_CONTROL}
        if all(each is signal.SIG_DFL for each in found.values()):  # else the host handles Ctrl-Z, or it is ignored
            wanted |= found
        if self._reader is None or self._writer is None:
            # Kept until the process ends: others may remember the descriptor, and set it again after we left.
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
        self._before = wanted
        self._error = None
        self._noticed = False
        self._taken_over += 1
        if not self._write(_BEGIN):
            self._begun += 1
        for number, each in wanted.items():
            self._previous[number] = each
            signal.signal(number, self._handler)
        self._wakeup_is_ours = self._claim_wakeup(self._writer) in (-1, self._writer.fileno())
        if self._watcher is None:
            self._watcher = threading.Thread(
                target=self._watch, args=(self._reader,), name="agentos-signals", daemon=True
            )
            self._watcher.start()

    def _put_back(self) -> None:
        """Restore the previous handlers. May be interrupted by a signal that calls it again."""
        self._error = None
        # The descriptor first: its system calls let a pending signal of our own arrive at our handler.
        if self._previous and self._wakeup_is_ours and self._writer is not None:
            found = signal.set_wakeup_fd(-1)
            if found not in (-1, self._writer.fileno()):
                signal.set_wakeup_fd(found)
            self._wakeup_is_ours = False
        for number, each in list(self._previous.items()):
            if self._is_ours(number):
                signal.signal(number, each)
            self._previous.pop(number, None)

    def _leave(self, run: Stoppable) -> None:
        in_main = _in_main_thread()
        if in_main and self._previous and sys.platform != "win32":
            # A signal that another thread received while the main thread slept is in the pipe already, but its handler
            # may run only now. Let it run while there is a run to notify; later it would be passed on to the host.
            signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if in_main and self._noticed and self._previous and not sys.is_finalizing():  # else the watcher is dead
            self._noticed = False
            self._catch_up()
        with self._lock:
            _, on_main = self._runs.pop(id(run), (None, False))
            self._on_main -= on_main
            if in_main and not self._on_main and self._previous:
                self._put_back()
                self._write(_CHECK)

    # -- the watcher ------------------------------------------------------------------------------------------

    def _watch(self, reader: socket.socket) -> None:
        while True:
            try:
                waits = self._error is not None or self.job_control.due
                reader.settimeout(_SEND_AGAIN_AFTER if waits else None)
                # Peek first: while another thread holds the interpreter, a signal that cannot be handled yet stays
                # visible
                # to other readers.
                reader.recv(1, socket.MSG_PEEK)
                arrived = reader.recv(4096)
            except TimeoutError:
                arrived = bytes([_CHECK])
                self._send_again()
            except OSError:
                return  # closed: the process ends
            for number in arrived:
                if number == _MARK:
                    # Only those waiting now: a released thread may wait again at once, for a signal not yet delivered.
                    for _ in range(len(self._catching_up)):
                        self._catching_up.popleft().release()
                elif number == _BEGIN:
                    self._begun += 1
                elif number == _CONTINUED:
                    self.job_control.resume()
                elif self._counts(number):
                    signum = number & ~_BY_HANDLER
                    if signum not in JOB_CONTROL:
                        self._notify_runs(self.meanings.get(signum, signum))
                    elif signum == signal.SIGTSTP:  # SIGCONT is our own wake-up, or has no information
                        self.job_control.prepare()
            if _CHECK in arrived:
                with self._lock:
                    if not self._previous and self._watcher is threading.current_thread():
                        self._watcher = None
                        return

    def _counts(self, number: int) -> bool:
        """True if this is another signal of the user, and for the runs."""
        signum = number & ~_BY_HANDLER
        if signum not in _SIGNALS and signum not in self.meanings and signum not in JOB_CONTROL:
            return False
        by_handler = bool(number & _BY_HANDLER)
        if self._is_own(signum, by_handler) or self._begun != self._taken_over:
            return False
        return by_handler or (self._wakeup_is_ours and self._is_ours(signum))

    def _is_own(self, signum: int, by_handler: bool) -> bool:
        if not self._is_under_way(signum, self._begun):
            return False
        if not by_handler:
            self._own.pop(signum, None)  # the interpreter writes each signal; the handler may see several as one
        return True

    def _is_under_way(self, signum: int, since: int) -> bool:
        sent_in, sent_at = self._own.get(signum, (0, 0.0))
        return sent_in == since and time.monotonic() - sent_at < _OWN_ARRIVES_WITHIN

    def _notify_runs(self, signum: int) -> None:
        with self._lock:
            runs = list(self._runs.values()) if self._on_main else []
        errors = []
        for run, _ in runs:
            try:
                run.on_signal(signum)
            except Exception as error:  # noqa: BLE001 - the other runs must still be notified
                errors.append(error)
        for each in errors:
            log.error("[COORDINATOR] a run failed to handle signal %d", signum, exc_info=each)

    def _catch_up(self) -> None:
        """Wait until the runs were notified of everything in the pipe."""
        done = threading.Lock()
        done.acquire()
        self._catching_up.append(done)
        if self._write(_MARK):
            done.acquire(timeout=_CATCH_UP_WITHIN)

    def _wake_main(self, signum: int) -> None:
        if self._wakeup_is_ours and self._is_under_way(signum, self._taken_over):
            return  # the kernel might merge the two, and the user's next signal would be taken for ours
        self._own[signum] = (self._taken_over, time.monotonic())
        if sys.platform == "win32":
            import _thread

            _thread.interrupt_main(signum)
        else:
            ident = threading.main_thread().ident
            assert ident is not None  # noqa: S101 - for the type checker
            signal.pthread_kill(ident, signum)

    def _send_again(self) -> None:
        if self.job_control.due:
            if self._previous:
                self.job_control.stop_in_main_thread()
            else:
                self.job_control.resume()  # the last run has left meanwhile
        with self._lock:
            if self._error is None:
                return
            signum = self._error[1]
            if self._is_ours(signum):
                self._wake_main(signum)
            else:
                self._error = None

    def _write(self, number: int) -> bool:
        try:
            return self._writer is not None and self._writer.send(bytes([number])) == 1
        except OSError:
            return False  # full: thousands of signals are waiting there

    # -- fork and exit ----------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Block signals until the child has closed our pipe; its own would be written into its parent's."""
        if self._previous and sys.platform != "win32":
            self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _all_of(self.meanings))

    def after_fork(self) -> None:
        """Unblock signals."""
        mask = self._forking.__dict__.get("mask")
        if mask is not None and sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            del self._forking.mask

    def after_fork_in_child(self) -> None:
        """Reset: the runs, the watcher and the pipe belong to the parent."""
        self._lock = threading.RLock()
        self._runs = {}
        self._on_main = 0
        self._put_back()
        self.close()
        self._watcher = None
        self._begun = self._taken_over
        self._own.clear()
        self._catching_up.clear()
        self.job_control.reset_in_child()
        self.after_fork()

    def close(self) -> None:
        """Close the pipe, if our handlers are not installed."""
        if self._reader is not None and self._writer is not None and not self._previous:
            self._reader.close()
            self._writer.close()
            self._reader = self._writer = None


def _all_of(meanings: dict[int, int]) -> set[int]:
    return {*_SIGNALS, *JOB_CONTROL, *meanings}


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


WATCH = SignalWatch()
atexit.register(WATCH.close)
if sys.platform != "win32":
    os.register_at_fork(
        before=WATCH.before_fork,
        after_in_parent=WATCH.after_fork,
        after_in_child=WATCH.after_fork_in_child,
    )
