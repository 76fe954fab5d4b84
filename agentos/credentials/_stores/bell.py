"""How one process wakes another that waits: a datagram to a port of this machine. It says nothing but: look.

One that is lost, or sent where nobody can hear it, costs a little time: those who wait look for themselves, too.
"""

from __future__ import annotations

import socket
import threading

from ..clock import Sleeper

_LOOPBACK = "127.0.0.1"
_CALL, _NUDGE = b"!", b"."
_NO_WAIT = getattr(socket, "MSG_DONTWAIT", 0)  # Windows has none; there a datagram to oneself does not wait either


class Bell:
    """Wakes the one thread that waits on it (as on a ``Sleeper``), from this process or from another."""

    def __init__(self) -> None:
        self.called = False  # by another process, since whoever waits on it has looked
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((_LOOPBACK, 0))
            self.port: int = self._socket.getsockname()[1]
        except BaseException:
            self._socket.close()
            raise

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait until it is rung. False: it was not, within *timeout* seconds."""
        bell = self._socket
        try:
            bell.settimeout(0.0 if not blocking else None if timeout < 0 else timeout)
            self._heard(bell.recv(1))
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            return True  # it is closed: whoever waits should look
        self._drain()
        return True

    def _drain(self) -> None:
        """However often it was rung, once is enough."""
        try:
            self._socket.settimeout(0.0)
            while True:
                self._heard(self._socket.recv(1))
        except OSError:
            pass

    def _heard(self, said: bytes) -> None:
        self.called = self.called or said == _CALL

    def release(self) -> None:
        """Wake whoever waits on it, in this process."""
        self._send(_NUDGE, self.port)

    def call(self, port: int) -> None:
        """Ring the bell of another process. It never waits, and never fails."""
        self._send(_CALL, port)

    def _send(self, what: bytes, port: int) -> None:
        try:
            self._socket.sendto(what, _NO_WAIT, (_LOOPBACK, port))
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()


class DeafBell:
    """For where there are no sockets: rung by this process only."""

    port = 0

    def __init__(self) -> None:
        self.called = False
        self._lock: Sleeper = threading.Lock()
        self._lock.acquire()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it has been rung

    def call(self, port: int) -> None:
        pass

    def close(self) -> None:
        self.release()


def make_bell() -> Bell | DeafBell:
    """A bell that other processes can ring, where that is possible."""
    try:
        return Bell()
    except OSError:
        return DeafBell()
