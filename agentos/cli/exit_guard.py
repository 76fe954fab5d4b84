"""A watchdog process that kills the command when its interpreter is blocked.

A worker function may be in a C call that does not release the interpreter (a regular expression with endless
backtracking). Then no thread of the command runs, including the one that handles signals. The C-level signal handler
still writes each signal as a byte into a socket, and this process sees whether the byte is read. If a second signal, or
a SIGTERM whose grace period is over, is not handled within a second, it kills the command and its child processes.

It runs as a script and uses the standard library only. Its arguments: the descriptor where signals arrive, a control
descriptor on which the command reports ("1": the first signal was handled, "2": the command exits within a second), the
process id of the command, its grace period, and the number of seconds within which two SIGTERM count as one. It exits
with the command.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator

_LIMIT = 0.9  # from the second signal to the end
_LIMIT_IF_HANDLED = 2.0  # the command exits by itself after a second; this is the limit if it does not
_POLL_INTERVAL = 0.05
_EXISTENCE_CHECK_INTERVAL = 5.0  # how often to check that the command exists, without pidfd
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_SHOW_CURSOR = b"\x1b[?25h"


class ExitGuard:
    """Counts handled and pending signals of a command, and computes when it must have exited."""

    def __init__(self, grace: float, term_window: float) -> None:
        self._grace = grace
        self._term_window = term_window
        self._handled = 0
        self._unread = 0
        self._counted = 0
        self._last_term = -term_window
        self.due: float | None = None

    def on_handled(self, handled: int, now: float) -> None:
        """Note that the command has handled *handled* signals. After the second it exits by itself."""
        if handled > self._handled:
            self._handled = handled
            self._counted = max(self._counted, handled)
            self._unread = 0
        if handled > 1:
            self.due = now + _LIMIT_IF_HANDLED
        elif self._counted < 2:
            self.due = None  # the command runs, and enforces its grace period itself

    def on_pending(self, unread: bytes, now: float) -> None:
        """Note the bytes that the command has not read yet."""
        signals = [number & 0x7F for number in unread if number & 0x7F in _SIGNALS]
        for signum in signals[self._unread :]:
            self._arrived(signum, now)
        self._unread = len(signals)

    def _arrived(self, signum: int, now: float) -> None:
        if signum == signal.SIGTERM:
            same = now < self._last_term + self._term_window
            self._last_term = now
            if same:
                return
        self._counted += 1
        if self._counted == 1 and signum != signal.SIGINT:
            self.due = now + self._grace + _LIMIT
        elif self._counted == 2:
            self.due = now + _LIMIT


def watch(arrivals: socket.socket, control: int, command: int, guard: ExitGuard) -> bool:
    """Wait until the command has exited (False), or should have exited (True)."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(arrivals, select.POLLIN)
    try:
        poll.register(os.pidfd_open(command), select.POLLIN)
    except (AttributeError, OSError):
        pass  # then the end of the control pipe shows it, and the parent's id
    peeking = False  # signals are pending: check periodically, because poll would return at once
    while os.getppid() == command:
        now = time.monotonic()
        if guard.due is not None and now >= guard.due:
            return True
        timeout = _POLL_INTERVAL if peeking else _EXISTENCE_CHECK_INTERVAL
        if guard.due is not None:
            timeout = min(timeout, guard.due - now)
        ready = {fd for fd, _ in poll.poll(timeout * 1000 + 1)}
        now = time.monotonic()
        if control in ready:
            report = os.read(control, 64)
            if not report:
                return False
            guard.on_handled(max(report) - ord("0"), now)
        if arrivals.fileno() in ready or peeking:
            unread = _peek(arrivals)
            guard.on_pending(unread, now)
            if bool(unread) != peeking:
                peeking = bool(unread)
                poll.unregister(arrivals) if peeking else poll.register(arrivals, select.POLLIN)
    return False


def _peek(arrivals: socket.socket) -> bytes:
    try:
        return arrivals.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def list_children(parent: int) -> Iterator[int]:
    """Yield the running child processes of *parent*. Needs /proc."""
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not entry.isdecimal():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                state, found = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has ended
        if int(found) == parent and state != b"Z":
            yield int(entry)


def kill_children(parent: int, but: Collection[int]) -> None:
    """Kill the children of *parent* except *but*; twice, for those that are just being started."""
    for _ in range(2):
        for pid in list_children(parent):
            if pid not in but:
                kill(pid)


def kill(pid: int) -> None:
    """Send SIGKILL to *pid* if it exists."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def main() -> None:
    """Watch the command that started this process."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    arrivals, control, command = (int(text) for text in sys.argv[1:4])
    with socket.socket(fileno=arrivals) as reader:
        if watch(reader, control, command, ExitGuard(float(sys.argv[4]), float(sys.argv[5]))):
            kill_children(command, {os.getpid()})
            kill(command)
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)


if __name__ == "__main__":
    main()
