"""Connections for httpx2 and httpx straight on asyncio."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpcore2
import httpx
import httpx2
import pytest

from agentos.transport.inner_transports import InnerTransports
from agentos.util import asyncio_network
from agentos.util.asyncio_network import NetworkStream, use_asyncio

from ..certificates import Authority

BOTH = pytest.mark.parametrize("library", [httpx2, httpx], ids=["httpx2", "httpx"])
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **options: Any) -> None:
        asyncio.run(test(*args, **options))

    return run


class FakeSocketTransport:
    """Counts what a stream does with its socket."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.paused: list[bool] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        self.paused.append(True)

    def resume_reading(self) -> None:
        self.paused.append(False)

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


class DrivenLoop:
    """A loop whose timers fire when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.set_timers = 0

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def call_soon(self, call: Callable[[], None]) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(call)

    def call_at(self, at: float, call: Callable[[], None]) -> DrivenTimer:
        self.set_timers += 1
        self.timers.append((at, call))
        return DrivenTimer(self, at, call)

    def advance(self, to: float) -> None:
        self.now = to
        due = [entry for entry in self.timers if entry[0] <= to]
        self.timers = [entry for entry in self.timers if entry[0] > to]
        for _, call in due:
            call()


class DrivenTimer:
    def __init__(self, loop: DrivenLoop, at: float, call: Callable[[], None]) -> None:
        self._loop, self._entry = loop, (at, call)

    def when(self) -> float:
        return self._entry[0]

    def cancel(self) -> None:
        self._loop.timers.remove(self._entry)


def make_stream() -> tuple[NetworkStream, FakeSocketTransport, DrivenLoop]:
    transport, loop = FakeSocketTransport(), DrivenLoop()
    stream = NetworkStream(httpcore2, loop)  # type: ignore[arg-type]
    stream.connection_made(transport)  # type: ignore[arg-type]
    return stream, transport, loop


async def next_turn() -> None:
    await asyncio.sleep(0)


@in_a_loop
async def test_reads_of_a_stream_need_no_system_call_and_one_timer() -> None:
    stream, transport, loop = make_stream()

    for _ in range(50):
        reading = asyncio.ensure_future(stream.read(65536, timeout=300.0))
        await next_turn()
        stream.data_received(b"event")
        assert await reading == b"event"

    assert (transport.paused, loop.set_timers) == ([], 1)


@in_a_loop
async def test_the_head_and_the_body_of_a_request_leave_in_one_write() -> None:
    stream, transport, _ = make_stream()

    await stream.write(b"head")
    await stream.write(b"body")
    await next_turn()

    assert transport.written == [b"headbody"]


@in_a_loop
async def test_a_head_whose_body_comes_later_leaves_at_once() -> None:
    stream, transport, _ = make_stream()

    await stream.write(b"head")
    await next_turn()
    await stream.write(b"body")
    await next_turn()

    assert transport.written == [b"head", b"body"]


@in_a_loop
async def test_a_large_body_is_not_collected_but_waits_for_the_other_side() -> None:
    stream, transport, loop = make_stream()
    stream.pause_writing()
    writing = asyncio.ensure_future(stream.write(b"x" * 70_000, timeout=5.0))
    await next_turn()
    assert [len(each) for each in transport.written] == [70_000]

    assert not writing.done()
    stream.resume_writing()
    await writing

    stream.pause_writing()
    writing = asyncio.ensure_future(stream.write(b"x", timeout=5.0))
    await next_turn()
    loop.advance(5.0)
    with pytest.raises(httpcore2.WriteTimeout):
        await writing


@in_a_loop
async def test_a_read_times_out_by_its_own_beginning() -> None:
    """The timer that the first read has set serves the second, which began later."""
    stream, _, loop = make_stream()
    first = asyncio.ensure_future(stream.read(10, timeout=300.0))
    await next_turn()
    stream.data_received(b"a")
    await first
    loop.advance(100.0)
    second = asyncio.ensure_future(stream.read(10, timeout=300.0))
    await next_turn()

    loop.advance(300.0)
    await next_turn()
    assert not second.done()
    loop.advance(400.0)

    with pytest.raises(httpcore2.ReadTimeout):
        await second


@in_a_loop
async def test_a_shorter_timeout_is_not_held_up_by_a_timer_that_is_set() -> None:
    stream, _, loop = make_stream()
    first = asyncio.ensure_future(stream.read(10, timeout=300.0))
    await next_turn()
    stream.data_received(b"a")
    await first
    second = asyncio.ensure_future(stream.read(10, timeout=5.0))
    await next_turn()

    loop.advance(5.0)

    with pytest.raises(httpcore2.ReadTimeout):
        await second
    assert loop.timers == []


@in_a_loop
async def test_what_nobody_reads_stops_the_sender() -> None:
    stream, transport, _ = make_stream()
    for _ in range(5):
        stream.data_received(b"x" * 100_000)
    assert transport.paused == [True]

    sizes = [len(await stream.read(65536)) for _ in range(8)]

    assert sizes == [65536] * 7 + [500_000 - 7 * 65536]
    assert transport.paused == [True, False]


@in_a_loop
async def test_what_came_before_a_lost_connection_is_read_first() -> None:
    stream, _, _ = make_stream()
    stream.data_received(b"last words")
    stream.connection_lost(ConnectionResetError("reset"))

    assert await stream.read(65536) == b"last words"
    with pytest.raises(httpcore2.ReadError, match="reset"):
        await stream.read(65536)


@in_a_loop
async def test_a_reader_learns_of_the_end_and_a_writer_that_nobody_reads() -> None:
    stream, transport, _ = make_stream()
    reading = asyncio.ensure_future(stream.read(65536))
    await next_turn()
    stream.eof_received()
    transport.closed = True

    assert await reading == b""
    with pytest.raises(httpcore2.WriteError):
        await stream.write(b"x")


@in_a_loop
async def test_a_cancelled_read_leaves_the_bytes_to_the_next() -> None:
    stream, _, _ = make_stream()
    reading = asyncio.ensure_future(stream.read(65536, timeout=5.0))
    await next_turn()
    reading.cancel()
    await next_turn()
    stream.data_received(b"late")

    assert await stream.read(65536) == b"late"


class Answering(asyncio.Protocol):
    """One connection of a server that gives the same answer to each piece it gets."""

    def __init__(self, made: list[Any], *, closes: bool) -> None:
        self._made, self._closes = made, closes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._made.append(self._transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER)
        if self._closes:
            self._transport.close()


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None, *, closes: bool = False) -> AsyncIterator[str]:
    """The address of a server."""
    made: list[Any] = []
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: Answering(made, closes=closes), "127.0.0.1", 0, ssl=context) as server:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for transport in made:
            transport.abort()


@BOTH
@in_a_loop
async def test_the_transports_of_a_pool_make_their_connections_here(library: Any) -> None:
    async with serving() as url:
        request = library.Request("GET", url)
        transport = InnerTransports(None, "AsyncHTTPTransport").for_request(request)

        response = await transport.handle_async_request(request)

        assert await response.aread() == b"ok"
        assert isinstance(response.extensions["network_stream"], NetworkStream)
        await transport.aclose()


def test_a_loop_of_another_library_needs_no_options_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get() -> str:
        async with serving() as url:
            loop = asyncio.get_running_loop()

            class OtherLoop:
                """As uvloop's: it is none of asyncio's classes, and knows fewer options."""

                async def create_connection(self, factory: Any, host: str, port: int) -> Any:
                    return await loop.create_connection(factory, host, port)

                def __getattr__(self, name: str) -> Any:
                    return getattr(loop, name)

            only_here = SimpleNamespace(**{**vars(asyncio), "get_running_loop": OtherLoop})
            monkeypatch.setattr(asyncio_network, "asyncio", only_here)
            transport = httpx2.AsyncHTTPTransport()
            use_asyncio(httpx2, transport)
            async with httpx2.AsyncClient(transport=transport) as client:
                return (await client.get(url)).text

    assert asyncio.run(get()) == "ok"


@BOTH
@in_a_loop
async def test_tls_is_checked_and_answers_pass(library: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    believing = library.AsyncHTTPTransport(verify=ssl.create_default_context(cafile=str(authority.file)))
    doubting = library.AsyncHTTPTransport()
    for transport in (believing, doubting):
        use_asyncio(library, transport)

    async with serving(authority.server()) as url:
        async with library.AsyncClient(transport=believing) as client:
            response = await client.get(url)
            assert (response.text, isinstance(response.extensions["network_stream"], NetworkStream)) == ("ok", True)
        async with library.AsyncClient(transport=doubting) as client:
            with pytest.raises(library.ConnectError, match="certificate"):
                await client.get(url)


@BOTH
@in_a_loop
async def test_a_port_on_which_nobody_listens_is_a_connect_error(library: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    transport = library.AsyncHTTPTransport()
    use_asyncio(library, transport)

    async with library.AsyncClient(transport=transport) as client:
        with pytest.raises(library.ConnectError):
            await client.get(f"http://127.0.0.1:{port}/")


@in_a_loop
async def test_an_idle_connection_that_the_server_closed_is_not_used_again() -> None:
    transport = httpx2.AsyncHTTPTransport()
    use_asyncio(httpx2, transport)

    async with serving(closes=True) as url, httpx2.AsyncClient(transport=transport) as client:
        for _ in range(3):
            response = await client.get(url)
            while not response.extensions["network_stream"].get_extra_info("is_readable"):
                await next_turn()


@in_a_loop
async def test_a_caller_that_is_cancelled_while_it_connects_leaves_no_socket() -> None:
    """Whenever that is: each time one step of the event loop later."""
    backend = asyncio_network._AsyncioBackend(httpcore2)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with warnings.catch_warnings(record=True) as lost:
        warnings.simplefilter("always", ResourceWarning)
        for steps in range(20):
            connecting = asyncio.create_task(backend.connect_tcp("127.0.0.1", port))
            for _ in range(steps):
                await asyncio.sleep(0)
            connecting.cancel()
            for stream in await asyncio.gather(connecting, return_exceptions=True):
                if isinstance(stream, NetworkStream):
                    await stream.aclose()
            await asyncio.sleep(0)
        gc.collect()
    server.close()

    assert [str(each.message) for each in lost] == []
