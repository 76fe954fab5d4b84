"""Connections for httpx2 (or httpx) straight on asyncio.

Their own go through anyio, which takes two fifths of the CPU for a piece of an answer: for each read it resumes and
pauses the socket, which are two system calls, and makes a cancel scope and a timer.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import ssl
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any, Final

_MOST_UNSENT: Final = 64 * 1024
_MOST_UNREAD: Final = 256 * 1024
_NEXT_ADDRESS_AFTER: Final = 0.25  # seconds until the next address of a host is tried as well (RFC 8305)


def use_asyncio(library: Any, transport: Any) -> None:
    """Let *transport*, an ``AsyncHTTPTransport`` of *library*, make its connections here."""
    pool: Any = getattr(transport, "_pool", None)
    if hasattr(pool, "_network_backend"):  # else a version that keeps it elsewhere: it makes its own connections
        pool._network_backend = _find_backend(library.__name__)


@cache
def _find_backend(library: str) -> _AsyncioBackend:
    return _AsyncioBackend(importlib.import_module("httpcore2" if library == "httpx2" else "httpcore"))


class _AsyncioBackend:
    """The part of httpcore's ``AsyncNetworkBackend`` that transports without a unix socket use."""

    def __init__(self, core: ModuleType) -> None:
        self._core = core

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[tuple[Any, ...]] | None = None,
    ) -> NetworkStream:
        loop = asyncio.get_running_loop()
        stream = NetworkStream(self._core, loop)
        options: dict[str, Any] = {} if local_address is None else {"local_addr": (local_address, 0)}
        # That of uvloop has no such option. And asyncio loses a socket that is connected when its caller is cancelled.
        if isinstance(loop, asyncio.BaseEventLoop) and not _is_address(host):
            options["happy_eyeballs_delay"] = _NEXT_ADDRESS_AFTER
        try:
            async with asyncio.timeout(timeout):
                await loop.create_connection(lambda: stream, host, port, **options)
        except TimeoutError as error:
            raise self._core.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise self._core.ConnectError(str(error)) from error
        for option in socket_options or ():
            stream.get_extra_info("socket").setsockopt(*option)
        return stream

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _is_address(host: str) -> bool:
    """Return True if there is one address to try, not a name that may have several."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class NetworkStream(asyncio.Protocol):
    """One connection, as httpcore's ``AsyncNetworkStream``. One timer serves all of its reads and writes."""

    def __init__(self, core: ModuleType, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._loop = loop
        self._transport: Any = None
        self._unsent = b""
        self._received: list[bytes] = []
        self._unread = 0
        self._is_paused = False  # more is unread than we keep
        self._is_full = False  # the other side does not read what was written
        self._is_ended = False  # nothing comes any more
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    # Called by httpcore.

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes, b"" at the end. Raises ReadTimeout or ReadError."""
        if not self._received and not self._is_ended:
            await self._wait(timeout, self._core.ReadTimeout)
        if not self._received:
            if self._error is not None:
                raise self._core.ReadError(str(self._error)) from self._error
            return b""
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received = [data[max_bytes:]] if len(data) > max_bytes else []
        self._unread = max(0, len(data) - max_bytes)
        if self._is_paused and self._unread <= _MOST_UNREAD:
            self._is_paused = False
            self._transport.resume_reading()
        return data[:max_bytes]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write, and wait until the other side has taken most of it. Raises WriteTimeout or WriteError."""
        if not self._unsent:
            self._loop.call_soon(self._flush)  # the head of a request leaves with its body, in one packet
        self._unsent += buffer
        if len(self._unsent) > _MOST_UNSENT:
            self._flush()
        while self._is_full and not self._transport.is_closing():
            await self._wait(timeout, self._core.WriteTimeout)
        if self._transport.is_closing():
            raise self._core.WriteError("the connection is closed") from self._error

    async def aclose(self) -> None:
        """Close the connection at once, and drop what was not sent."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> NetworkStream:
        """Encrypt the connection. Raises ConnectTimeout or ConnectError, and closes it."""
        stream = NetworkStream(self._core, self._loop)
        plain = self._transport
        try:
            async with asyncio.timeout(timeout):
                stream._transport = await self._loop.start_tls(
                    plain, stream, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as error:
            raise self._core.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise self._core.ConnectError(str(error)) from error
        finally:
            if stream._transport is None:
                plain.abort()
        return stream

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore wants to know of the connection."""
        if info == "is_readable":  # asked of an idle connection: anything that comes there is its end
            return bool(self._received) or self._is_ended or self._transport.is_closing()
        names = {"client_addr": "sockname", "server_addr": "peername"}
        return self._transport.get_extra_info(names.get(info, info))

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, b""
        if unsent and not self._transport.is_closing():
            self._transport.write(unsent)

    async def _wait(self, timeout: float | None, error: type[Exception]) -> None:
        self._waiter = waiter = self._loop.create_future()
        self._deadline = None if timeout is None else self._loop.time() + timeout
        if self._deadline is not None and (self._alarm is None or self._alarm.when() > self._deadline):
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(self._deadline, self._on_alarm)
        try:
            await waiter
        except TimeoutError:
            raise error from None
        finally:
            self._waiter = None

    def _on_alarm(self) -> None:
        """End a wait that is too long; a wait that began after the timer was set gets the rest of its time."""
        self._alarm = None
        waiter, deadline = self._waiter, self._deadline
        if waiter is None or waiter.done() or deadline is None:
            return
        if self._loop.time() >= deadline:
            waiter.set_exception(TimeoutError())
        else:
            self._alarm = self._loop.call_at(deadline, self._on_alarm)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep what has come, and wake the reader."""
        self._received.append(data)
        self._unread += len(data)
        if self._unread > _MOST_UNREAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Note the end; an answer that ends with its connection is complete."""
        self._is_ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait of a reader or writer."""
        self._is_ended, self._error = True, exc
        self._is_full = False
        self._wake()

    def pause_writing(self) -> None:
        """Let the writer wait."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Let the writer continue."""
        self._is_full = False
        self._wake()
