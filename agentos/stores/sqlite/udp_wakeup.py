"""UdpWakeup: wake a waiting process of the same machine with a datagram.

A lost datagram costs only a little time: waiting processes also refresh at intervals.

Every program of the machine can send to the port. A notification carries the id of the session it is for, which only
readers of the store know. Any other datagram just makes this process refresh, as it may have displaced a notification.
The port is then not read for `PAUSE` seconds, in which the system drops what exceeds its small buffer. So a flood costs
a hundred cheap refreshes a second, and delays a notification by one pause at most.
"""

from __future__ import annotations

import hmac
import socket
import threading
import time
from collections.abc import Callable

from ...util.clock import Sleeper

WakeupTarget = tuple[int, str]  # port of the process, id of its session

_LOOPBACK = "127.0.0.1"
_NUDGE = b"."
_LONGEST = 64  # bytes read of a datagram: more than a session's id has
_BUFFER = 16_384  # bytes: some tens of datagrams
_BATCH = 1_000  # datagrams read at once: more than the buffer holds
PAUSE = 0.01  # seconds for which the port is not read after an unknown datagram
_NO_WAIT = getattr(socket, "MSG_DONTWAIT", 0)  # Windows has none; there a datagram to oneself does not block


class UdpWakeup:
    """Wakes the one thread that waits on it (as on a ``Sleeper``), from this process or from another."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.was_notified = False  # by another process, since the waiting thread last looked
        self.session = ""  # the id that a notification carries; "" until we have a session
        self._nudged = threading.Event()  # by this process: works even if the buffer is full
        self._now = now
        self._read_at = now()  # not before this instant
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            self._socket.bind((_LOOPBACK, 0))
            self.port: int = self._socket.getsockname()[1]
        except BaseException:
            self._socket.close()
            raise

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait for a wake-up. Return False if none came within *timeout* seconds."""
        pause = self._read_at - self._now()
        if pause > 0:
            if not blocking or 0 <= timeout <= pause:
                return self._was_nudged(timeout if blocking else 0.0)
            if self._was_nudged(pause):
                return True
            timeout = timeout if timeout < 0 else timeout - pause
        try:
            self._socket.settimeout(0.0 if not blocking else None if timeout < 0 else timeout)
            first = self._socket.recvfrom(_LONGEST)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            return True  # closed: the waiting thread should look
        self._read_all(first)
        return True

    def _was_nudged(self, wait: float) -> bool:
        nudged = self._nudged.wait(wait)
        self._nudged.clear()
        return nudged

    def _read_all(self, datagram: tuple[bytes, tuple[str, int]]) -> None:
        """Read all queued datagrams: they count as one wake-up."""
        self._nudged.clear()
        by_strangers = False
        try:
            self._socket.settimeout(0.0)
            for _ in range(_BATCH):
                data, (_host, port) = datagram
                if self.session and hmac.compare_digest(data, self.session.encode()):
                    self.was_notified = True
                else:
                    by_strangers = by_strangers or port != self.port
                datagram = self._socket.recvfrom(_LONGEST)
        except OSError:
            pass
        if by_strangers:
            self._read_at = self._now() + PAUSE

    def release(self) -> None:
        """Wake the waiting thread, from this process."""
        self._nudged.set()
        self._send(_NUDGE, self.port)

    def notify_peers(self, port: int, session: str) -> None:
        """Notify the process at that port for that session. Never blocks, never fails."""
        self._send(session.encode(), port)

    def _send(self, what: bytes, port: int) -> None:
        try:
            self._socket.sendto(what, _NO_WAIT, (_LOOPBACK, port))
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()


class LocalWakeup:
    """Replacement where sockets are not available: woken by this process only."""

    port = 0

    def __init__(self) -> None:
        self.was_notified = False
        self.session = ""
        self._lock: Sleeper = threading.Lock()
        self._lock.acquire()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # already woken

    def notify_peers(self, port: int, session: str) -> None:
        pass

    def close(self) -> None:
        self.release()


def create_wakeup() -> UdpWakeup | LocalWakeup:
    """Create a wake-up that other processes can use, where that is possible."""
    try:
        return UdpWakeup()
    except OSError:
        return LocalWakeup()
