"""How one process wakes another that waits: a datagram to a port of this machine. It says nothing but: look.

One that is lost, or sent where nobody can hear it, costs a little time: those who wait look for themselves, too.

Every program of the machine can send to that port. A call carries the id of the session it is for, which only those
know who can read the store. Any other datagram only makes this process look, as it may have displaced a call. The port
is then left alone for `PAUSE` seconds, in which the system drops what its small buffer has no room for. So a flood
costs a hundred cheap looks a second, and delays a call by one pause at most.
"""

from __future__ import annotations

import hmac
import socket
import threading
import time
from collections.abc import Callable

from ...util.clock import Sleeper

WakeupTarget = tuple[int, str]  # whom to call: the port of its process, and the id of its session

_LOOPBACK = "127.0.0.1"
_NUDGE = b"."
_LONGEST = 64  # bytes that are read of a datagram: more than a session's id has
_BUFFER = 16_384  # bytes: room for some tens of datagrams
_BATCH = 1_000  # datagrams that are read at once: more than the buffer has room for
PAUSE = 0.01  # seconds without a look at the port, after a datagram that is no call
_NO_WAIT = getattr(socket, "MSG_DONTWAIT", 0)  # Windows has none; there a datagram to oneself does not wait either


class UdpWakeup:
    """Wakes the one thread that waits on it (as on a ``Sleeper``), from this process or from another."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.was_notified = False  # by another process, since whoever waits on it has looked
        self.session = ""  # whose id a call carries; until there is one nobody calls
        self._nudged = threading.Event()  # by this process: heard even if its datagram finds no room
        self._now = now
        self._read_at = now()  # nothing is read before
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            self._socket.bind((_LOOPBACK, 0))
            self.port: int = self._socket.getsockname()[1]
        except BaseException:
            self._socket.close()
            raise

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait until it is rung. False: it was not, within *timeout* seconds."""
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
            return True  # it is closed: whoever waits should look
        self._read_all(first)
        return True

    def _was_nudged(self, wait: float) -> bool:
        nudged = self._nudged.wait(wait)
        self._nudged.clear()
        return nudged

    def _read_all(self, datagram: tuple[bytes, tuple[str, int]]) -> None:
        """However often it was rung, once is enough."""
        self._nudged.clear()
        by_strangers = False
        try:
            self._socket.settimeout(0.0)
            for _ in range(_BATCH):
                said, (_host, port) = datagram
                if self.session and hmac.compare_digest(said, self.session.encode()):
                    self.was_notified = True
                else:
                    by_strangers = by_strangers or port != self.port
                datagram = self._socket.recvfrom(_LONGEST)
        except OSError:
            pass
        if by_strangers:
            self._read_at = self._now() + PAUSE

    def release(self) -> None:
        """Wake whoever waits on it, in this process."""
        self._nudged.set()
        self._send(_NUDGE, self.port)

    def notify_peers(self, port: int, session: str) -> None:
        """Ring the bell of another process, which is at that port for that session. It never waits, and never fails."""
        self._send(session.encode(), port)

    def _send(self, what: bytes, port: int) -> None:
        try:
            self._socket.sendto(what, _NO_WAIT, (_LOOPBACK, port))
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()


class LocalWakeup:
    """For where there are no sockets: rung by this process only."""

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
            pass  # it has been rung

    def notify_peers(self, port: int, session: str) -> None:
        pass

    def close(self) -> None:
        self.release()


def create_wakeup() -> UdpWakeup | LocalWakeup:
    """A bell that other processes can ring, where that is possible."""
    try:
        return UdpWakeup()
    except OSError:
        return LocalWakeup()
