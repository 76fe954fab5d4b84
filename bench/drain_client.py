"""The HTTP clients of the contenders: the least that can be called one, and httpx2 as people use it.

What a contender costs is to be seen beside its client, so the first is light: POST over connections that are kept, on
asyncio and nothing else, about 100 us of CPU a call. It speaks as much HTTP/1.1 as the simulator answers with (a
length, or chunks), to one address, without TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """What came back. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpClient(Protocol):
    """What contenders need of a client."""

    async def post(self, path: str, secret: str, body: bytes) -> Answer: ...

    async def close(self) -> None: ...


class Client:
    """Calls to one server. Each call has a connection to itself, an idle one if there is one.

    ``post`` raises ConnectionError if the server cannot be reached or hangs up, and TimeoutError after *timeout*
    seconds. For one event loop.
    """

    def __init__(self, base_url: str, *, timeout: float = 30.0) -> None:
        parts = urlsplit(base_url)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._timeout = timeout
        self._heads: dict[str, bytes] = {}
        self._path = parts.path.rstrip("/")
        self._authority = parts.netloc
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def post(self, path: str, secret: str, body: bytes) -> Answer:
        """Send *body*, which is JSON, with *secret* as the bearer token."""
        head = self._heads.get(secret)
        if head is None:
            head = self._heads[secret] = (
                f"POST {self._path}{path} HTTP/1.1\r\nhost: {self._authority}\r\nauthorization: Bearer {secret}\r\n"
                "content-type: application/json\r\ncontent-length: "
            ).encode("latin-1")
        connection = self._idle.pop() if self._idle else await self._connect()
        answer = await connection.exchange(b"%b%d\r\n\r\n%b" % (head, len(body), body), self._timeout)
        if connection.reusable:
            self._idle.append(connection)
        return answer

    async def close(self) -> None:
        """Hang up, whatever is under way."""
        while self._all:
            for connection in tuple(self._all):
                connection.abort()
            await asyncio.sleep(0)  # each is told of its end on the next turn of the loop

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        made = loop.create_connection(lambda: _Connection(self, loop), self._host, self._port)
        _, connection = await asyncio.wait_for(made, self._timeout)
        self._all.add(connection)
        return connection

    def lost(self, connection: _Connection) -> None:
        """The server has hung up."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _Connection(asyncio.Protocol):
    """One connection, with at most one call under way."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._received = b""
        self._head: tuple[int, dict[str, str], int] | None = None  # status, headers, where the body starts
        self.reusable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.reusable = False
        self._client.lost(self)
        self._fail(ConnectionResetError("the server hung up"))

    async def exchange(self, request: bytes, timeout: float) -> Answer:
        if self._transport is None:
            raise ConnectionResetError("the server hung up")
        self._received, self._head, self.reusable = b"", None, False
        waiting: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting = waiting
        timer = self._loop.call_later(timeout, self._fail, TimeoutError(f"no answer in {timeout:g} s"))
        try:
            self._transport.write(request)
            return await waiting
        finally:
            timer.cancel()
            self._waiting = None
            if not self.reusable:
                self.abort()  # also when the caller is cancelled: what comes later would be taken for the next answer

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        if self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = (*_parse(self._received[:end].decode("latin-1")), end + 4)
        status, headers, start = self._head
        if "content-length" in headers:
            end = start + int(headers["content-length"])
            body = self._received[start:end] if len(self._received) >= end else None
        else:
            body = _joined(self._received, start)
        if body is not None and self._waiting is not None and not self._waiting.done():
            self.reusable = headers.get("connection") != "close"
            self._waiting.set_result(Answer(status, headers, body))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


def _parse(head: str) -> tuple[int, dict[str, str]]:
    first, *lines = head.split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(first[9:12]), headers


def _joined(received: bytes, at: int) -> bytes | None:
    """The chunks from *at* on as one; None while the last has not come."""
    pieces: list[bytes] = []
    while (end := received.find(b"\r\n", at)) >= 0:
        size = int(received[at:end].partition(b";")[0], 16)
        if size == 0:
            return b"".join(pieces) if received.endswith(b"\r\n\r\n") else None
        pieces.append(received[end + 2 : end + 2 + size])
        at = end + 4 + size
    return None


class Httpx2Client:
    """The same by httpx2."""

    def __init__(self, base_url: str) -> None:
        import httpx2

        self._errors = httpx2.TransportError
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        # Without TLS there are no certificates to load, which would take a part of the first second.
        self._client: Any = httpx2.AsyncClient(base_url=base_url, timeout=30.0, limits=limits, verify=False)

    async def post(self, path: str, secret: str, body: bytes) -> Answer:
        headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
        try:
            answer = await self._client.post(path, content=body, headers=headers)
        except self._errors as error:
            raise ConnectionError(str(error)) from error
        return Answer(answer.status_code, dict(answer.headers), answer.content)

    async def close(self) -> None:
        await self._client.aclose()


CLIENTS: dict[str, Callable[[str], HttpClient]] = {"light": Client, "httpx2": Httpx2Client}
