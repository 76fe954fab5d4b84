"""One client's connection: requests one after the other, and no task per request.

A subclass answers each request, at once or later. While an answer is due, further requests wait in the buffer. When the
connection is lost, the subclass is told and ends what it does for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from email.utils import formatdate

from .request_parser import BadRequest, HttpRequest, RequestReader

Headers = Iterable[tuple[str, str]]

REASONS = {
    200: "OK",
    301: "Moved Permanently",
    302: "Found",
    307: "Temporary Redirect",
    308: "Permanent Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    417: "Expectation Failed",
    426: "Upgrade Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    529: "Overloaded",
}
# A client that sends more than this while its answer is due is not read until then.
_MOST_BUFFERED = 64 * 1024
_LINGER = 2.0


class HttpDate:
    """The value of the Date header; computed once a second."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second, self._text = 0, ""

    def text(self, wall: float | None = None) -> str:
        """Return the header's value at *wall*, epoch seconds; by default now."""
        second = int(time.time() if wall is None else wall)
        if self._second != second:
            self._second, self._text = second, formatdate(second, usegmt=True)
        return self._text


class HttpConnection(asyncio.Protocol):
    """Base of a server's connections. A subclass has :meth:`on_request`, :meth:`on_bad_request`, :meth:`on_lost`."""

    __slots__ = ("_busy", "_hopeless", "_lingering", "_reader", "_serving", "is_full", "loop", "transport")

    def __init__(self, loop: asyncio.AbstractEventLoop, reader: RequestReader) -> None:
        self.loop = loop
        self.transport: asyncio.Transport | None = None
        self.is_full = False  # the client does not read what was written
        self._reader = reader
        self._busy = False  # an answer is due: the next request waits
        self._serving = False
        self._hopeless = False  # it sent an invalid request: discard the rest
        self._lingering: asyncio.TimerHandle | None = None

    # For the subclass.

    def on_request(self, request: HttpRequest) -> None:
        """Answer *request*; call :meth:`begin` first if that takes time, and :meth:`finished` after it."""
        raise NotImplementedError

    def on_bad_request(self, error: BadRequest) -> bytes:
        """Return the answer to bytes that are no request. The connection is closed after it."""
        raise NotImplementedError

    def on_lost(self) -> None:
        """End what was begun: the connection was closed by either side."""

    def on_drained(self) -> None:
        """Continue writing: the client reads again."""

    def begin(self) -> None:
        """Note that an answer is due: the next request waits."""
        self._busy = True

    def finished(self) -> None:
        """Note that the answer is complete, and serve the next request."""
        self._busy = False
        self._serve()

    @property
    def is_busy(self) -> bool:
        """Return True while an answer is due."""
        return self._busy

    @property
    def is_reading(self) -> bool:
        """Return True if a request has begun to arrive and is not complete."""
        return not self._busy and self._reader.in_request

    @property
    def is_reading_body(self) -> bool:
        """Return True if the head of a request has come and its body is not complete."""
        return not self._busy and self._reader.in_body

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def refuse(self, error: BadRequest) -> None:
        """Answer with the error and keep reading a little: closing with unread bytes would discard the answer."""
        transport = self.transport
        if transport is None or self._hopeless:
            return
        self._hopeless = self._busy = True
        self._reader.close()
        transport.write(self.on_bad_request(error))
        transport.write_eof()
        self._lingering = self.loop.call_at(self.loop.time() + _LINGER, transport.abort)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a new connection."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse received bytes: a request, part of one, or several."""
        if self._hopeless:
            return
        self._reader.feed(data)
        if not self._busy:
            self._serve()
        if self._busy and self.transport is not None and self._reader.waiting > _MOST_BUFFERED:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """Treat the end of input as a client that has left."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End what was begun for a connection that was closed by either side."""
        self.transport = None
        self._reader.close()
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self.on_lost()

    def pause_writing(self) -> None:
        """Start nothing new for a client that does not read."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Continue when the client reads again."""
        self.is_full = False
        self.on_drained()
        self._serve()

    # Requests, one after the other.

    def _serve(self) -> None:
        if self._serving:
            return  # an immediate answer: the loop below is still running and continues by itself
        self._serving = True
        try:
            while not self._busy and not self.is_full and self.transport is not None:
                if self.transport.is_closing():
                    return
                request = self._reader.next_request()
                if request is None:
                    if self._reader.expects_continue:
                        self._reader.expects_continue = False
                        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    break
                self.on_request(request)
        except BadRequest as error:
            self.refuse(error)
        finally:
            self._serving = False
        if self.transport is not None and not self._busy:
            self.transport.resume_reading()


def build_head(status: int, headers: Headers, *, date: str, keep_alive: bool, http10: bool) -> bytes:
    """Return the status line and the headers of an answer, with those that tell whether the connection stays open."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\ndate: {date}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers]
    if not keep_alive:
        lines.append("connection: close\r\n")
    elif http10:
        lines.append("connection: keep-alive\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")


class HttpListener:
    """A listening server and its connections."""

    def __init__(self, server: asyncio.Server, connections: set[HttpConnection]) -> None:
        self._server = server
        self._connections = connections

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port of a TCP listener."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """Return the address of a TCP listener as a URL without a path."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop_accepting(self) -> None:
        """Accept no further connection and release the port; connections that exist stay. Idempotent."""
        loop = asyncio.get_running_loop()
        for listening in self._server.sockets:
            loop.remove_reader(listening)
        # A client accepted in this turn of the loop belongs to the server in the next, and is one of our connections in
        # the one after. A server closed before that would report an error, or wait for it forever.
        for _ in range(2):
            await asyncio.sleep(0)
        self._server.close()

    async def close(self) -> None:
        """Close every connection and release the port."""
        await self.stop_accepting()
        while self._connections:
            for connection in tuple(self._connections):
                connection.abort()
            await asyncio.sleep(0)  # each connection is notified on the next turn of the loop
        await self._server.wait_closed()
