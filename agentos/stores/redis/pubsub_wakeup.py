"""PubSubWakeup: what the maintenance thread waits on, woken by this process or by others through PUBLISH.

While it waits it also restores the store's connection and its own subscription, because it blocks no other thread
there. A lost notification costs only a little time: waiting processes also refresh at intervals.
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
_WAKE: Final = b"."
_REPAIR: Final = b"m"


class PubSubWakeup:
    """Wakes the one thread that waits on it (as on a ``Sleeper``)."""

    def __init__(self, connection: StoreConnection) -> None:
        self.was_notified = False  # by another process, since the waiting thread last looked
        self.name = uuid.uuid4().hex  # prefix of our sessions' ids
        self._store_connection = connection
        self._closed = False
        self._pause = _FIRST_PAUSE
        self._subscribe_at = 0.0
        self._connection: RespConnection | None = None
        self._receiver, self._sender = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._selector.register(self._receiver, selectors.EVENT_READ)
        connection.dropped, connection.reconnects = self._wake_to_repair, self.release
        try:
            self._listen()
        except TransientStoreError:
            pass  # tried again in ``acquire``
        except BaseException:
            self.close()
            raise

    # -- waiting ----------------------------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait for a wake-up. Return False if none came within *timeout* seconds."""
        deadline = _FOR_EVER if timeout < 0 else time.monotonic() + timeout
        wait = 0.0
        while not self._closed:
            if self._read_wakeups(wait):
                return True
            left = deadline - time.monotonic() if blocking else 0.0
            if left <= 0:
                return False
            if self._repair():
                return True
            wait = min(left, self._next_repair())
        return True  # closed: the waiting thread should look

    def _read_wakeups(self, wait: float) -> bool:
        try:
            ready = self._selector.select(None if wait == _FOR_EVER else wait)
        except (OSError, ValueError):
            return True  # it is being closed
        woken = False
        for key, _ in ready:
            woken = (self._drain() if key.fileobj is self._receiver else self._read_messages()) or woken
        return woken

    def _drain(self) -> bool:
        """Read all local wake-ups; return whether there was one."""
        woken = False
        try:
            while data := self._receiver.recv(64):
                woken = woken or _WAKE in data
        except OSError:
            pass
        return woken

    def _read_messages(self) -> bool:
        """Read all messages of the subscription; return whether there was a notification."""
        resp = self._connection
        woken = False
        try:
            while resp is not None and resp.can_read():
                woken = resp.read_message()[0] == b"message" or woken
        except (*FAILURES, IndexError, TypeError):
            self._unsubscribe()
        self.was_notified = self.was_notified or woken
        return woken

    # -- reconnecting -----------------------------------------------------------------------------------------

    def _next_repair(self) -> float:
        mine = _FOR_EVER if self._connection is not None else max(0.0, self._subscribe_at - time.monotonic())
        return min(mine, self._store_connection.reconnect_delay())

    def _repair(self) -> bool:
        """Reconnect what is due. Return whether the waiting thread should look, since notifications may be lost."""
        repaired = False
        if self._store_connection.reconnect_delay() <= 0 and self._store_connection.reconnect():
            self._unsubscribe()  # the subscription may be on the former server
            self._subscribe_at = 0.0
            repaired = True
        if self._connection is None and time.monotonic() >= self._subscribe_at and self._subscribe():
            self.was_notified = repaired = True
        return repaired

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
        """Subscribe to our channel. Raises TransientStoreError, or StoreError if this user may not."""
        resp = self._store_connection.connect()
        try:
            self._store_connection.query(
                lambda: resp.execute("SUBSCRIBE", self._store_connection.wakeup_channel(self.name))
            )
            self._selector.register(resp, selectors.EVENT_READ)
        except BaseException:
            resp.close()
            raise
        self._connection = resp

    def _unsubscribe(self) -> None:
        resp, self._connection = self._connection, None
        if resp is not None:
            self._subscribe_at = time.monotonic()
            try:
                self._selector.unregister(resp)
            except (KeyError, ValueError, AttributeError, OSError):
                self._replace_selector()
            resp.close()

    def _replace_selector(self) -> None:
        """Make a new selector: the connection has closed its socket, and cannot be unregistered."""
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._receiver, selectors.EVENT_READ)

    # -- waking -----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Wake the waiting thread, from this process."""
        self._send(_WAKE)

    def _wake_to_repair(self) -> None:
        """Let the waiting thread reconnect, without ending its wait."""
        self._send(_REPAIR)

    def _send(self, word: bytes) -> None:
        try:
            self._sender.send(word)
        except OSError:
            pass  # its buffer is full of wake-ups, or it is closed

    def close(self) -> None:
        self._closed = True
        self._unsubscribe()
        self._selector.close()
        self._receiver.close()
        self._sender.close()
