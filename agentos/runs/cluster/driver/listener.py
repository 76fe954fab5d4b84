"""Where workers connect to the driver: few connections at a time that have not identified themselves.

Everybody who reaches the port can connect to it and then say nothing. Each connection takes a file descriptor, which
the rest of the driver needs, too. So one that has not identified itself in time is cut, and of more than
`MAX_UNIDENTIFIED` the oldest: a worker identifies itself within milliseconds, and is let in however many others are
silent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from ..wire.certificate import DriverIdentity
from .worker_connection import WorkerConnection

log = logging.getLogger("agentos")

MAX_UNIDENTIFIED = 256  # connections that have not identified themselves
IDENTIFY_TIMEOUT = 10.0  # seconds, for the handshake and the greeting after it
_BETWEEN = 0.001  # seconds between two that are accepted beyond the limit: so each has 256 of these at least
_AFTER_A_FAILURE = 1.0  # seconds; the system may be out of file descriptors
_QUEUE = 128  # connections that the system holds until they are accepted


class Listener:
    """Makes connections, by *connect*, of those who connect to its port. For one event loop, and only there.

    A connection that is closed ends within *to_close* seconds.
    """

    def __init__(self, connect: Callable[[], WorkerConnection], identity: DriverIdentity, *, to_close: float) -> None:
        self._connect = connect
        self._identity = identity
        self._to_close = to_close
        self._socket: socket.socket | None = None
        self._unidentified: dict[asyncio.Task[None], None] = {}  # the oldest first

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen there; returns the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, place = found[0]
        self._socket = socket.create_server((place[0], place[1]), family=family, backlog=_QUEUE)
        self._socket.setblocking(False)
        self._resume()
        address: tuple[str, int] = self._socket.getsockname()[:2]
        return address

    def close(self) -> None:
        """Listen no more. Whoever was accepted stays."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _resume(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept, self._socket)

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(seconds, self._resume)

    def _accept(self, listening: socket.socket) -> None:
        """Accept one; the others when the loop has done what else is due."""
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # it left while it was in the queue
        except OSError as error:
            log.warning("[COORDINATOR] no worker can connect for now: %s", error)
            self._pause(listening, _AFTER_A_FAILURE)
            return
        task = asyncio.get_running_loop().create_task(self._connect_accepted(accepted))
        self._unidentified[task] = None
        task.add_done_callback(lambda done: self._unidentified.pop(done, None))
        if len(self._unidentified) > MAX_UNIDENTIFIED:
            oldest = next(iter(self._unidentified))
            del self._unidentified[oldest]
            oldest.cancel()
            self._pause(listening, _BETWEEN)

    async def _connect_accepted(self, accepted: socket.socket) -> None:
        """Until it has identified itself, or has to go."""
        connection = self._connect()
        try:
            async with asyncio.timeout(IDENTIFY_TIMEOUT):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=self._identity.server,
                    ssl_handshake_timeout=IDENTIFY_TIMEOUT,
                    ssl_shutdown_timeout=self._to_close,
                )
                await connection.identified.wait()
        except (OSError, TimeoutError) as error:
            log.debug("[COORDINATOR] a connection has not identified itself: %s", error)
            connection.abort()
        except asyncio.CancelledError:
            connection.abort()
            raise
