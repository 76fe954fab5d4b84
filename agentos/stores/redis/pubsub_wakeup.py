"""What the housekeeper waits on: rung by this process, or by others who publish to its channel at the server.

While it waits it also mends what is broken, the way to the server and its own subscription: here nobody is held up by
that. A call that is lost costs a little time: those who wait look for themselves, too.
"""

from __future__ import annotations

import selectors
import socket
import time
import uuid
from typing import Final

from ...errors import StoreError
from ...pool.store_protocol import TransientStoreError
from .errors import FAILURES
from .resp_connection import RespConnection
from .store_connection import StoreConnection

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_FOR_EVER: Final = float("inf")
_RING: Final = b"."
_MEND: Final = b"m"


class PubSubWakeup:
    """Wakes the one thread that waits on it (as on a ``Sleeper``)."""

    def __init__(self, link: StoreConnection) -> None:
        self.was_notified = False  # by another process, since whoever waits on it has looked
        self.name = uuid.uuid4().hex  # with which the ids of our sessions begin
        self._store_connection = link
        self._closed = False
        self._pause = _FIRST_PAUSE
        self._subscribe_at = 0.0
        self._connection: RespConnection | None = None
        self._here, self._rung = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._here.setblocking(False)
        self._rung.setblocking(False)
        self._selector.register(self._here, selectors.EVENT_READ)
        link.dropped, link.reconnects = self._wake_to_repair, self.release
        try:
            self._listen()
        except TransientStoreError:
            pass  # which may pass: it is tried again while somebody waits
        except BaseException:
            self.close()
            raise

    # -- waiting ----------------------------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait until it is rung. False: it was not, within *timeout* seconds."""
        deadline = _FOR_EVER if timeout < 0 else time.monotonic() + timeout
        wait = 0.0
        while not self._closed:
            if self._rang(wait):
                return True
            left = deadline - time.monotonic() if blocking else 0.0
            if left <= 0:
                return False
            if self._repair():
                return True
            wait = min(left, self._next_repair())
        return True  # whoever waits should look

    def _rang(self, wait: float) -> bool:
        try:
            ready = self._selector.select(None if wait == _FOR_EVER else wait)
        except (OSError, ValueError):
            return True  # it is being closed
        rang = False
        for key, _ in ready:
            rang = (self._drained() if key.fileobj is self._here else self._read_messages()) or rang
        return rang

    def _drained(self) -> bool:
        """Whether it was rung here; however often that was, once is enough."""
        rang = False
        try:
            while heard := self._here.recv(64):
                rang = rang or _RING in heard
        except OSError:
            pass
        return rang

    def _read_messages(self) -> bool:
        """Whether others have rung; once is enough, too."""
        wire = self._connection
        rang = False
        try:
            while wire is not None and wire.can_read():
                rang = wire.read_message()[0] == b"message" or rang
        except (*FAILURES, IndexError, TypeError):
            self._unsubscribe()
        self.was_notified = self.was_notified or rang
        return rang

    # -- mending ----------------------------------------------------------------------------------------------

    def _next_repair(self) -> float:
        mine = _FOR_EVER if self._connection is not None else max(0.0, self._subscribe_at - time.monotonic())
        return min(mine, self._store_connection.reconnect_delay())

    def _repair(self) -> bool:
        """Mend what is due. Whether whoever waits should look: something may have happened unheard."""
        mended = False
        if self._store_connection.reconnect_delay() <= 0 and self._store_connection.reconnect():
            self._unsubscribe()  # what was subscribed to may be a server that is gone
            self._subscribe_at = 0.0
            mended = True
        if self._connection is None and time.monotonic() >= self._subscribe_at and self._subscribe():
            self.was_notified = mended = True
        return mended

    def _subscribe(self) -> bool:
        try:
            self._listen()
        except (TransientStoreError, StoreError, OSError, ValueError):
            self._subscribe_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return False
        self._pause = _FIRST_PAUSE
        return True

    def _listen(self) -> None:
        """Raises StoreTrouble, and StoreError if this user may not."""
        wire = self._store_connection.connect()
        try:
            self._store_connection.query(
                lambda: wire.ask("SUBSCRIBE", self._store_connection.wakeup_channel(self.name))
            )
            self._selector.register(wire, selectors.EVENT_READ)
        except BaseException:
            wire.close()
            raise
        self._connection = wire

    def _unsubscribe(self) -> None:
        wire, self._connection = self._connection, None
        if wire is not None:
            self._subscribe_at = time.monotonic()
            try:
                self._selector.unregister(wire)
            except (KeyError, ValueError, AttributeError, OSError):
                self._register_anew()
            wire.close()

    def _register_anew(self) -> None:
        """The connection has closed its socket already, so that it cannot be told by it any more."""
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._here, selectors.EVENT_READ)

    # -- ringing ----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Wake whoever waits on it, in this process."""
        self._send(_RING)

    def _wake_to_repair(self) -> None:
        """The way to the server is broken: whoever waits on this need not know, but has to mend it."""
        self._send(_MEND)

    def _send(self, word: bytes) -> None:
        try:
            self._rung.send(word)
        except OSError:
            pass  # it has been rung often enough, or is closed

    def close(self) -> None:
        self._closed = True
        self._unsubscribe()
        self._selector.close()
        self._here.close()
        self._rung.close()
