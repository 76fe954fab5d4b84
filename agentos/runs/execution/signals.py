"""SIGINT and SIGTERM, brought to every run of the process by a thread of its own.

Almost nothing may be done in a signal handler: ``Event.set``, ``Queue.put``, a log line or a print can deadlock with
the very code that was interrupted. And the handler itself runs late, or never, while the main thread is inside a long
call. So the interpreter writes each signal's number into a pipe the moment it arrives (``signal.set_wakeup_fd``), and
a watcher thread reads them there and tells the runs.

A signal must be counted once: the first one drains a run, the second one ends it. There is only one wake-up descriptor
in a process, and an event loop with handlers of its own may have it, or may take it from us later. Then the numbers do
not reach our pipe, and our handler, which does run, writes them there itself. It looks whose descriptor it is each
time, so that exactly one of the two writes.

Only the main thread can set handlers. A run that began there and left from elsewhere leaves ours behind; with nobody
to tell, the handler puts back what was there before and sends the signal on.

SIGTSTP and SIGCONT come the same way; what is done about them is in ``job_control``.
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

# What is in the pipe: numbers of signals as the interpreter writes them, the same plus _BY_HANDLER, and four of ours.
_BY_HANDLER = 0x80
_CHECK = 0  # things have changed
_MARK = 0x7F  # somebody waits until you have come this far
_BEGIN = 0x7E  # what came before was for runs that have left
_CONTINUED = 0x7D  # the process was stopped, and goes on

# A signal that arrives as the main thread is about to block does not wake it; so one of ours is sent again.
_SEND_AGAIN_AFTER = 0.05
_OWN_ARRIVES_WITHIN = 1.0
_CATCH_UP_WITHIN = 1.0


class Stoppable(Protocol):
    """A run that wants to know of signals."""

    def on_signal(self, signum: int) -> None:
        """Called on the watcher thread, never in a handler, once for each signal. Must not block."""
        ...


class SignalWatch:
    """Tells the joined runs of SIGINT and SIGTERM. A process has one, ``WATCH``.

    Handlers are ours only while a run is on that joined from the main thread, and only for signals that were not
    ignored. A signal reaches every joined run, those that joined from other threads too.
    """

    def __init__(self) -> None:
        # Re-entrant: a finalizer may let an abandoned run leave while its thread is in here.
        self._lock = threading.RLock()
        self._runs: dict[int, tuple[Stoppable, bool]] = {}  # by id; whether it joined from the main thread
        self._on_main = 0
        self._handler = self._handle  # one object, to be known again by ``is``
        self._previous: dict[int, _Handler] = {}  # not empty: handlers are ours
        self._before: dict[int, _Handler] = {}  # the last that were put back, for a host that still calls ours
        self._reader: socket.socket | None = None
        self._writer: socket.socket | None = None
        self._wakeup_is_ours = False
        self._watcher: threading.Thread | None = None
        self._taken_over = 0  # how often; and how often the watcher has read that it was
        self._begun = 0
        self._noticed = False  # the handler left something to the watcher
        self._own: dict[int, tuple[int, float]] = {}  # signals of ours under way: in which take-over sent, and when
        self._catching_up: deque[threading.Lock] = deque()
        self._error: tuple[BaseException, int] | None = None  # to be raised in the main thread
        self._forking = threading.local()
        self.job_control = JobControl(lambda: self._write(_CONTINUED))
        self.meanings: dict[int, int] = {}  # other signals that count, from the next run on, as one of the two

    def join(self, run: Stoppable) -> None:
        """Tell *run* of signals from now on.

        Call it inside the ``try`` whose ``finally`` leaves: a signal may arrive half-way, and raise.
        """
        on_main = _in_main_thread()
        with self._lock:
            if id(run) in self._runs:
                return
            if on_main and not self._on_main:
                self._put_back()  # left behind by a run that ended elsewhere
            self._runs[id(run)] = (run, on_main)
            self._on_main += on_main
            if on_main and not self._previous:
                self._take_over()

    def leave(self, run: Stoppable) -> None:
        """Tell *run* no more; from any thread, and as often as you like.

        In the main thread it has by then been told of every signal that came before. An error that waits to be raised
        there is dropped when the last run of the main thread leaves.
        """
        try:
            self._leave(run)
        except BaseException:
            self._leave(run)  # a signal's exception in the middle: finish, then let it go on
            raise

    @property
    def arrivals(self) -> int | None:
        """The descriptor where signals arrive as bytes, while handlers are ours. Others may look, and not read."""
        return None if self._reader is None or not self._previous else self._reader.fileno()

    def raise_in_main(self, error: BaseException, signum: int) -> bool:
        """Make the main thread raise *error* wherever it is, asleep or at work; in a long C call, after it.

        *signum* is a signal we watch: it is sent to the main thread and not counted as the user's. False: that signal
        is not ours to use now, and nothing is done.
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
        # No lock, no log, nothing that the interrupted code may be in the middle of.
        if not self._is_ours(signum):
            self._handle_for_host(signum, frame)
            return
        if not self._on_main:
            self._put_back()
            self._write(_CHECK)
            signal.raise_signal(signum)
            return
        if signum in JOB_CONTROL:
            # In the midst of a fork these signals are blocked, and the process would not stop here.
            stopped = not self._forking.__dict__ and self.job_control.stop_if_due(signum)
            if not stopped and not self._interpreter_wrote():
                self._write(signum | _BY_HANDLER)
            return
        self._noticed = True
        if not self._interpreter_wrote():
            self._write(signum | _BY_HANDLER)
        waiting = self._error
        # In the midst of a fork nobody would see it raised; it will be sent again.
        if waiting is not None and not self._forking.__dict__:
            self._error = None
            raise waiting[0]

    def _handle_for_host(self, signum: int, frame: FrameType | None) -> None:
        """The host's handler replaced ours, and calls it."""
        if self._on_main:
            self._noticed = True
            self._write(signum | _BY_HANDLER)
            return
        before = self._before.get(signum)
        if callable(before):
            before(signum, frame)

    def _interpreter_wrote(self) -> bool:
        """Whether the signal at hand is in our pipe already."""
        if not self._wakeup_is_ours or self._writer is None:
            return False
        found = self._claim_wakeup(self._writer)
        self._wakeup_is_ours = found in (-1, self._writer.fileno())
        return found == self._writer.fileno()

    def _claim_wakeup(self, writer: socket.socket) -> int:
        """Take the wake-up descriptor unless it is somebody else's. Returns what it was."""
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
        if all(each is signal.SIG_DFL for each in found.values()):  # else the host, or nobody, deals with Ctrl-Z
            wanted |= found
        if self._reader is None or self._writer is None:
            # Kept for the life of the process: others may remember the descriptor, and set it again after we left.
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
        """Leave everything as it was. May be interrupted by itself, and begun again."""
        self._error = None
        # The descriptor first: its system calls let a signal of our own that is still under way arrive at our handler.
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
            # may run only now. Let it run while there is somebody to tell; later it would be sent on to the host.
            signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if in_main and self._noticed and self._previous and not sys.is_finalizing():  # else the watcher is no more
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
                # First without taking it: what cannot be heeded now, since another thread keeps the interpreter, is
                # still there for others to see.
                reader.recv(1, socket.MSG_PEEK)
                arrived = reader.recv(4096)
            except TimeoutError:
                arrived = bytes([_CHECK])
                self._send_again()
            except OSError:
                return  # closed: the process ends
            for number in arrived:
                if number == _MARK:
                    # So many and no more: who is let go may wait again at once, for a signal that is still to be told.
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
                    elif signum == signal.SIGTSTP:  # SIGCONT is our own call of the main thread, or tells nothing new
                        self.job_control.prepare()
            if _CHECK in arrived:
                with self._lock:
                    if not self._previous and self._watcher is threading.current_thread():
                        self._watcher = None
                        return

    def _counts(self, number: int) -> bool:
        """Whether this is one more signal of the user's, and the runs' business."""
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
            self._own.pop(signum, None)  # the interpreter writes each signal; to the handler several may come as one
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
            except Exception as error:  # noqa: BLE001 - whatever it is, the other runs are told
                errors.append(error)
        for each in errors:
            log.error("[COORDINATOR] a run failed to heed signal %d", signum, exc_info=each)

    def _catch_up(self) -> None:
        """Wait until the runs were told of what is in the pipe."""
        done = threading.Lock()
        done.acquire()
        self._catching_up.append(done)
        if self._write(_MARK):
            done.acquire(timeout=_CATCH_UP_WITHIN)

    def _wake_main(self, signum: int) -> None:
        if self._wakeup_is_ours and self._is_under_way(signum, self._taken_over):
            return  # the kernel might make one of the two, and then we would take the user's next one for ours
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
            return False  # full: thousands are waiting there to be counted

    # -- the ends of the process ------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Until the child has let go of our pipe, a signal of its own would be written into its parent's."""
        if self._previous and sys.platform != "win32":
            self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _all_of(self.meanings))

    def after_fork(self) -> None:
        """Let signals in again."""
        mask = self._forking.__dict__.get("mask")
        if mask is not None and sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            del self._forking.mask

    def after_fork_in_child(self) -> None:
        """The runs, the watcher and the pipe are the parent's."""
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
        """Close the pipe, if no run is on."""
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
