"""Response streams that release the lease of their call when they end.

A body may be read to its end, break off, be closed, be cancelled, or be abandoned. An abandoned one is ended by the
garbage collector, at any moment and in any thread, where the connection must not be used. The connection is put into a
list, and the transport's next call closes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

from .call import Call


class _LeasedStream:
    """Base of both streams."""

    def __init__(self, inner: Any, call: Call, abandoned: list[Any]) -> None:
        self._inner = inner
        self._call = call
        self._abandoned = abandoned
        self._closed = False

    def abandon(self) -> None:
        """Release the lease of an abandoned stream, and leave its connection to the transport's next call."""
        if not self._closed:
            self._closed = True
            self._abandoned.append(self._inner)
            self._call.finish(whole=False)

    __del__ = abandon


class _SyncStream(_LeasedStream):
    def __iter__(self) -> Iterator[bytes]:
        call = self._call
        try:
            for piece in self._inner:
                yield call.feed(piece)
            rest = call.flush()
            if rest:
                yield rest
        except Exception as error:
            call.on_transport_error(error)
            raise
        call.finish(whole=True)

    def close(self) -> None:
        self._closed = True
        try:
            self._inner.close()
        finally:
            self._call.finish(whole=False)


class _AsyncStream(_LeasedStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        call = self._call
        try:
            async for piece in self._inner:
                yield call.feed(piece)
            rest = call.flush()
            if rest:
                yield rest
        except Exception as error:
            call.on_transport_error(error)
            raise
        call.finish(whole=True)

    async def aclose(self) -> None:
        self._closed = True
        try:
            await self._inner.aclose()
        finally:
            self._call.finish(whole=False)


@cache
def sync_stream(library: Any) -> type[_SyncStream]:
    """Return the stream class for clients of *library*."""
    return type("PooledStream", (_SyncStream, library.SyncByteStream), {})


@cache
def async_stream(library: Any) -> type[_AsyncStream]:
    """Return the stream class for asynchronous clients of *library*."""
    return type("AsyncPooledStream", (_AsyncStream, library.AsyncByteStream), {})


def drain_abandoned(abandoned: list[Any]) -> Iterator[Any]:
    """Remove and yield the streams in *abandoned*; several threads may do so at once."""
    while True:
        try:
            yield abandoned.pop()
        except IndexError:
            return
