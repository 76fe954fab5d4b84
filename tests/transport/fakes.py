"""A provider that answers as a test tells it, without a network, and the four ways of calling it through a pool."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import httpx
import httpx2
import pytest

from agentos import Credential, CredentialCoordinator
from agentos.testing import FakeClock

HOST = "api.example.com"
URL = f"https://{HOST}/v1/chat/completions"
ASKED: dict[str, Any] = {"model": "a-model", "messages": []}


def secret_of(name: str) -> str:
    """The secret of the credential that ``pool_of`` makes under this name."""
    return f"planted-{name}-0123456789"


def credential(name: str, **facts: Any) -> Credential:
    facts.setdefault("hosts", [HOST])
    return Credential(secret_of(name), name=name, **facts)


def pool_of(clock: FakeClock, *names: str, **facts: Any) -> CredentialCoordinator:
    """A pool that checks its promises at every step, of credentials that go to the fake provider alone."""
    return CredentialCoordinator([credential(name, **facts) for name in names], clock=clock, debug=True)


def leased(pool: CredentialCoordinator) -> list[str]:
    """The credentials that somebody has a lease on."""
    return [row.name for row in pool.snapshot() if row.leases]


def states(pool: CredentialCoordinator) -> dict[str, str]:
    return {row.name: row.state for row in pool.snapshot()}


def wait_in_line(pool: CredentialCoordinator, count: int = 1) -> None:
    """Let the other threads run until so many requests stand in line."""
    while pool._runtime.core.waiting < count:
        time.sleep(0)


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream, httpx.SyncByteStream, httpx.AsyncByteStream):
    """Pieces of an answer; where one of them is an exception, the connection breaks off with it."""

    def __init__(self, *pieces: bytes | BaseException) -> None:
        self.pieces = pieces
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


@dataclass(frozen=True)
class Says:
    """One answer. A body that is no bytes and no ``Body`` is sent as JSON."""

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, Any] = field(default_factory=dict)

    def answer_to(self, request: Any) -> Any:
        library = httpx2 if isinstance(request, httpx2.Request) else httpx
        headers, body = dict(self.headers), self.body
        if isinstance(body, (dict, list)):
            headers.setdefault("content-type", "application/json")
            body = json.dumps(body).encode()
        if isinstance(body, bytes):
            headers.setdefault("content-length", str(len(body)))
            body = Body(body)
        return library.Response(self.status, headers=headers, stream=body, extensions=dict(self.extensions))


WELL = Says(body={"usage": {"prompt_tokens": 10, "completion_tokens": 5}})

Line = Says | BaseException | Callable[[Any], Says]


class Provider:
    """Stands where the transport is that really sends. Says its lines in order, and the last one again and again.

    A line may be an answer, an exception to raise, or a function of the request. ``seen`` are the requests as they
    would have left the machine.
    """

    def __init__(self, *lines: Line) -> None:
        self._lines = list(lines or (WELL,))
        self.seen: list[Any] = []
        self.closed = 0

    def handle_request(self, request: Any) -> Any:
        self.seen.append(request)
        line = self._lines.pop(0) if len(self._lines) > 1 else self._lines[0]
        if isinstance(line, BaseException):
            raise line
        if not isinstance(line, Says):
            line = line(request)
        return line.answer_to(request)

    async def handle_async_request(self, request: Any) -> Any:
        return self.handle_request(request)

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1

    @property
    def keys(self) -> list[str]:
        """The names of the credentials it was called with, in order."""
        return [_name_in(request.headers) for request in self.seen]


def _name_in(headers: Any) -> str:
    sent = [value for name, value in headers.items() if value.removeprefix("Bearer ").startswith("planted-")]
    assert len(sent) == 1, f"{len(sent)} headers with a key"
    return str(sent[0]).split("-")[1]


@dataclass(frozen=True)
class Way:
    """One of the two libraries, in a thread or in a loop. A test calls it the same way: it blocks until it is over."""

    library: Any
    in_a_loop: bool

    def __str__(self) -> str:
        return f"{self.library.__name__}-{'async' if self.in_a_loop else 'sync'}"

    def transport(self, pool: CredentialCoordinator, provider: Any = None, **arguments: Any) -> Any:
        return (pool.async_transport if self.in_a_loop else pool.transport)(provider, **arguments)

    def ask(self, transport: Any, url: str = URL, *, method: str = "POST", hooks: Any = None, **asked: Any) -> Any:
        """Make a call and read all of its answer. Nobody looks at the clock unless a ``timeout`` is given."""
        if not {"content", "data", "files", "json"} & asked.keys() and method == "POST":
            asked["json"] = ASKED
        asked.setdefault("timeout", None)
        if not self.in_a_loop:
            client = self.library.Client(transport=transport, event_hooks=hooks)
            return client.request(method, url, **asked)

        async def story() -> Any:
            client = self.library.AsyncClient(transport=transport, event_hooks=hooks)
            return await client.request(method, url, **asked)

        return asyncio.run(story())

    def pieces(self, transport: Any, most: int, url: str = URL, **asked: Any) -> list[bytes]:
        """Begin a streamed call, take so many pieces of its answer, and leave it."""
        asked = {**ASKED, **asked}
        if not self.in_a_loop:
            client = self.library.Client(transport=transport)
            with client.stream("POST", url, json=asked, timeout=None) as response:
                return list(islice(response.iter_raw(), most))

        async def story() -> list[bytes]:
            client = self.library.AsyncClient(transport=transport)
            async with client.stream("POST", url, json=asked, timeout=None) as response:
                taken: list[bytes] = []
                async for piece in response.aiter_raw():
                    taken.append(piece)
                    if len(taken) == most:
                        break
                return taken

        return asyncio.run(story())


WAYS = tuple(Way(library, in_a_loop) for library in (httpx2, httpx) for in_a_loop in (False, True))
LIBRARIES = tuple(Way(library, in_a_loop=False) for library in (httpx2, httpx))

in_every_way = pytest.mark.parametrize("way", WAYS, ids=str)
in_both_libraries = pytest.mark.parametrize("way", LIBRARIES, ids=str)
