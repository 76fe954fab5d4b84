"""Keeps the helper informed that this process runs, and lets stopped commands go on when their keys are still theirs.

A process that was stopped does not renew its leases, and after their time others have its keys. So its commands are
stopped, too: at once on SIGTSTP, of which ``before_stop`` tells; otherwise after a third of the lease time, when the
helper has not heard a beat. What the helper stopped goes on only after the leases were looked at.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection

from .helper_client import HelperClient

log = logging.getLogger("agentos")

_BEATS = 3  # in the time after which the helper stops the commands


def compute_max_silence(lease_ttl: float | None) -> float | None:
    """For how long the helper may hear nothing before it stops the commands; None: leases end with the process."""
    return None if lease_ttl is None else lease_ttl / 3


class Heartbeat:
    """A thread that beats as often as *spawner* has promised.

    *look_at_leases* is called when commands have been stopped, with the seconds since then, before they go on. It
    returns the marks of those that must not.
    """

    def __init__(self, spawner: HelperClient, look_at_leases: Callable[[float], Collection[str]]) -> None:
        self._helper = spawner
        self._find_lost_leases = look_at_leases
        self._every = None if spawner.within is None else spawner.within / _BEATS
        self._stopping = False  # by SIGTSTP: nothing goes on before ``after_continue``
        self._lock = threading.Lock()  # between that and what makes commands go on
        self._counted_until = 0.0  # of the time in which they were stopped
        self._closed = False
        self._wake: socket.socket | None = None  # its thread waits on the other end

    def start(self) -> None:
        wakes, self._wake = socket.socketpair()
        wakes.setblocking(False)
        self._wake.setblocking(False)
        threading.Thread(target=self._run, args=(wakes, self._wake), name="agentos-heartbeat", daemon=True).start()

    def before_stop(self) -> None:
        """Stop the commands: this process is about to be stopped."""
        with self._lock:
            self._stopping = True
            self._helper.suspend()

    def after_continue(self) -> None:
        """Let the commands go on that may: this process was continued."""
        self._stopping = False
        self._nudge()

    def close(self) -> None:
        self._closed = True
        self._nudge()

    def _nudge(self) -> None:
        if self._wake is None:
            return  # it was never started
        try:
            self._wake.send(b"!")
        except OSError:
            pass  # it is awake already, or has ended

    def _run(self, wakes: socket.socket, wake: socket.socket) -> None:
        spawner = self._helper
        try:
            while not self._closed:
                since = spawner.stopped_since()
                if not self._stopping:
                    if spawner.within is not None:
                        spawner.beat(time.monotonic() + spawner.within)
                    if since is not None:
                        self._resume_commands(since)
                spawner.wait_for_helper(wakes.fileno(), self._every)
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
            log.exception("[COORDINATOR] the leases of stopped commands could not be looked at; trying again")
            return
        with self._lock:
            if not self._stopping:
                self._helper.resume(lost, None if within is None else asked_at + within)
