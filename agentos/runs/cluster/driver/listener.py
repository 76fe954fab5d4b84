"""Accept connections of workers, with a bound on connections that have not identified themselves.

Any machine that reaches the port can connect and then send nothing, and each connection takes a file descriptor that
the rest of the driver needs. So a connection that has not identified itself in time is closed, and so is the oldest of
more than `MAX_UNIDENTIFIED`. A worker identifies itself within milliseconds, so silent connections do not keep it out.
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
IDENTIFY_TIMEOUT = 10.0  # seconds, for the TLS handshake and the HELLO frame
_BETWEEN = 0.001  # seconds between accepts beyond the limit, so that each connection has at least 256 times that
_AFTER_A_FAILURE = 1.0  # seconds; the system may be out of file descriptors
_QUEUE = 128  # backlog of connections that the system holds until they are accepted


class Listener:
    """Accepts connections on a port and attaches each to a protocol made by *connect*.

    Belongs to one event loop. A closed connection ends within *to_close* seconds.
    """

    def __init__(self, connect: Callable[[], WorkerConnection], identity: DriverIdentity, *, to_close: float) -> None:
        self._connect = connect
        self._identity = identity
        self._to_close = to_close
        self._socket: socket.socket | None = None
        self._unidentified: dict[asyncio.Task[None], None] = {}  # oldest first

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen on *host* and *port* and return the address. Raise OSError if that fails."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, place = found[0]
        self._socket = socket.create_server((place[0], place[1]), family=family, backlog=_QUEUE)
        self._socket.setblocking(False)
        self._resume()
        address: tuple[str, int] = self._socket.getsockname()[:2]
        return address

    def close(self) -> None:
        """Stop listening. Accepted connections stay open."""
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
        """Accept one connection; the next when the event loop has run what else is due."""
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # the peer left while it was queued
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
        """Wait until the connection has identified itself, or close it."""
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
