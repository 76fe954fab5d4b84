"""Heartbeats to the helper process, so that commands are suspended together with this process.

A suspended process does not renew its leases, and when those expire others get its keys. So its commands are suspended
too: at once on SIGTSTP (``before_stop``), otherwise when the helper has received no heartbeat for a third of the lease
time. They are resumed only after their leases were checked.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection

from .helper_client import HelperClient

log = logging.getLogger("agentos")

_BEATS = 3  # heartbeats per the silence after which the helper suspends the commands


def compute_max_silence(lease_ttl: float | None) -> float | None:
    """Return the seconds of silence after which the helper suspends commands; None if leases end with the process."""
    return None if lease_ttl is None else lease_ttl / 3


class Heartbeat:
    """A thread that sends heartbeats as often as *helper* requires.

    *find_lost_leases* is called before suspended commands are resumed, with the seconds of their suspension. It returns
    the marks of those that must not resume.
    """

    def __init__(self, helper: HelperClient, find_lost_leases: Callable[[float], Collection[str]]) -> None:
        self._helper = helper
        self._find_lost_leases = find_lost_leases
        self._every = None if helper.within is None else helper.within / _BEATS
        self._stopping = False  # by SIGTSTP: nothing is resumed before ``after_continue``
        self._lock = threading.Lock()  # between before_stop() and the resumption of commands
        self._counted_until = 0.0  # end of the suspension time reported so far
        self._closed = False
        self._wake: socket.socket | None = None  # its thread waits on the other end

    def start(self) -> None:
        wakes, self._wake = socket.socketpair()
        wakes.setblocking(False)
        self._wake.setblocking(False)
        threading.Thread(target=self._run, args=(wakes, self._wake), name="agentos-heartbeat", daemon=True).start()

    def before_stop(self) -> None:
        """Suspend the commands: this process is about to be suspended."""
        with self._lock:
            self._stopping = True
            self._helper.suspend()

    def after_continue(self) -> None:
        """Resume the commands that may go on: this process was continued."""
        self._stopping = False
        self._nudge()

    def close(self) -> None:
        self._closed = True
        self._nudge()

    def _nudge(self) -> None:
        if self._wake is None:
            return  # never started
        try:
            self._wake.send(b"!")
        except OSError:
            pass  # awake already, or ended

    def _run(self, wakes: socket.socket, wake: socket.socket) -> None:
        helper = self._helper
        try:
            while not self._closed:
                since = helper.stopped_since()
                if not self._stopping:
                    if helper.within is not None:
                        helper.beat(time.monotonic() + helper.within)
                    if since is not None:
                        self._resume_commands(since)
                helper.wait_for_helper(wakes.fileno(), self._every)
                try:
                    wakes.recv(4096)
                except BlockingIOError:
                    pass
        finally:
            wakes.close()
            wake.close()

    def _resume_commands(self, since: float) -> None:
        within, asked_at = self._helper.within, time.monotonic()
        stopped_for = asked_at - max(since, self._counted_until)
        self._counted_until = asked_at
        try:
            lost = self._find_lost_leases(stopped_for)
        except Exception:
            log.exception("[COORDINATOR] the leases of suspended commands could not be checked; trying again")
            return
        with self._lock:
            if not self._stopping:
                self._helper.resume(lost, None if within is None else asked_at + within)
