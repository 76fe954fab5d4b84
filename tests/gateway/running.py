"""A gateway for tests, on a thread; raw clients of it; and a provider that records what it is sent."""

from __future__ import annotations

import json
import queue
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentos import Credential, CredentialCoordinator
from agentos.gateway import Gateway, GatewayRequest, GatewaySettings
from agentos.gateway.program_access import ProgramAccess
from agentos.gateway.thread import GatewayThread
from agentos.pool.protocols import runtime_of

CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
WITHIN = 30.0


def secret(number: int, provider: str = "openai") -> str:
    """A key that no text contains by chance."""
    stem = {"openai": "sk-proj-", "anthropic": "sk-ant-api03-", "gemini": "AIza"}[provider]
    return f"{stem}Zq7{number}vXw3Kp9{number}LmT4rYs8Bd{number}"


def make_pool(url: str, count: int = 1, provider: str = "openai", **options: Any) -> CredentialCoordinator:
    """A pool of keys whose provider is at *url*."""
    return CredentialCoordinator(
        [
            Credential(secret(number, provider), name=f"key-{number}", provider=provider, base_url=url, **options)
            for number in range(1, count + 1)
        ]
    )


class Served:
    """A running gateway, and the records of its requests."""

    def __init__(self, thread: GatewayThread, records: list[GatewayRequest]) -> None:
        self.thread = thread
        self.gateway: Gateway = thread.gateway
        self.records = records
        self.url = thread.gateway.url
        self.port = thread.gateway.port
        self.token = thread.gateway.token

    def wait_for(self, condition: Callable[[Gateway], bool]) -> None:
        """Wait until something is true of the gateway."""
        wait_until(lambda: condition(self.gateway))

    def connect(self) -> RawClient:
        return RawClient(self.port)

    def request(
        self,
        path: str = "/v1/chat/completions",
        body: Any = CHAT,
        *,
        method: str = "POST",
        headers: Mapping[str, str | None] | None = None,
        token: str | None = None,
    ) -> bytes:
        """The bytes of a request."""
        return make_request(self.port, token or self.token, path, body, method=method, headers=headers)

    def ask(self, *args: Any, **options: Any) -> Answer:
        """The answer to one request on a connection of its own."""
        with self.connect() as client:
            client.send(self.request(*args, **options))
            return client.answer()


def make_request(
    port: int,
    token: str,
    path: str = "/v1/chat/completions",
    body: Any = CHAT,
    *,
    method: str = "POST",
    headers: Mapping[str, str | None] | None = None,
) -> bytes:
    """The bytes of a request."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    given: dict[str, str | None] = {"host": f"127.0.0.1:{port}", "authorization": f"Bearer {token}"}
    given |= {"content-length": str(len(raw))} if body is not None else {}
    given.update(headers or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + raw


@contextmanager
def serving(pool: CredentialCoordinator, settings: GatewaySettings | None = None, **options: Any) -> Iterator[Served]:
    """A gateway over *pool*."""
    records: list[GatewayRequest] = []

    def make(on_request: Callable[[GatewayRequest], None]) -> Gateway:
        def both(request: GatewayRequest) -> None:
            records.append(request)
            on_request(request)

        return Gateway(runtime_of(pool), pool.async_transport, settings=settings, on_request=both, **options)

    with tempfile.TemporaryDirectory() as folder:
        thread = GatewayThread(make, lambda url: ProgramAccess(url, Path(folder), {"HOME": folder}))
        try:
            yield Served(thread, records)
        finally:
            thread.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until *condition* is true; fail after a time that no busy machine needs."""
    until = time.monotonic() + WITHIN
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("it did not happen")
        time.sleep(0.002)


@dataclass
class Answer:
    """An answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """A client that sends bytes and reads bytes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def head(self) -> tuple[int, dict[str, str]]:
        """Read the status and the headers of the next answer."""
        first = self._file.readline()
        if not first:
            raise ConnectionError("closed")
        headers = {}
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return int(first.split()[1]), headers

    def piece(self) -> bytes:
        """Read the next chunk; empty at the end."""
        size = int(self._file.readline(), 16)
        data = self._file.read(size)
        self._file.readline()
        return data

    def answer(self, *, without_body: bool = False) -> Answer:
        """Read a whole answer."""
        status, headers = self.head()
        body = b""
        if without_body:
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            while piece := self.piece():
                body += piece
        elif "content-length" in headers:
            body = self._file.read(int(headers["content-length"]))
        else:
            body = self._file.read()
        return Answer(status, headers, body)

    def is_closed(self) -> bool:
        """Read to the end; True if the other side closed the connection without another byte."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True


@dataclass
class Received:
    """A request as the provider got it."""

    head: bytes
    body: bytes
    connection: socket.socket = field(repr=False)
    closed: threading.Event = field(repr=False)

    @property
    def key(self) -> str:
        for name in ("authorization", "x-api-key", "x-goog-api-key"):
            if name in self.headers:
                return self.headers[name].removeprefix("Bearer ")
        return ""

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}

    def reply(self, data: bytes) -> None:
        self.connection.sendall(data)

    def json(self, body: bytes = b'{"ok": true}', *, status: int = 200, headers: str = "") -> None:
        """Answer with JSON."""
        lines = f"content-type: application/json\r\n{headers}content-length: {len(body)}\r\n"
        self.reply(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)

    def is_closed(self) -> bool:
        """Wait until the gateway closes this connection."""
        return self.closed.wait(WITHIN)

    def cut(self) -> None:
        """Close the connection."""
        self.connection.shutdown(socket.SHUT_RDWR)


class Provider:
    """A provider that does what a test says: each request is queued, and the test answers it."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests: queue.Queue[Received] = queue.Queue()
        self.seen: list[Received] = []
        self.reply: Callable[[Received], None] | None = None  # answers at once, if set
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def next(self) -> Received:
        """Return the next request that arrived."""
        return self.requests.get(timeout=WITHIN)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._read, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self, connection: socket.socket) -> None:
        closed = threading.Event()
        try:
            with connection.makefile("rb") as file:
                while True:
                    head = b""
                    while not head.endswith(b"\r\n\r\n"):
                        line = file.readline()
                        if not line:
                            return
                        head += line
                    received = Received(head, b"", connection, closed)
                    received.body = file.read(int(received.headers.get("content-length", "0")))
                    self.seen.append(received)
                    if self.reply is not None:
                        self.reply(received)
                    else:
                        self.requests.put(received)
        except (OSError, ValueError):
            return
        finally:
            closed.set()

    def close(self) -> None:
        self._listening.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
        for thread in self._threads[1:]:
            thread.join(WITHIN)


@contextmanager
def provider(reply: Callable[[Received], None] | None = None) -> Iterator[Provider]:
    """A provider; with *reply* it answers each request at once."""
    made = Provider()
    made.reply = reply
    try:
        yield made
    finally:
        made.close()
