"""The body of an answer on its way to the caller: its end gives the lease back, however it comes.

A body may be read to its end, break off, be closed, be cancelled, or be forgotten: then it is the garbage collector
that ends it, at any moment and in any thread, so that it must not touch the connection itself. That is put aside, to be
closed by the transport's next call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

from .call import Call


class _LeasedStream:
    """What both kinds of streams have."""

    def __init__(self, inner: Any, call: Call, abandoned: list[Any]) -> None:
        self._inner = inner
        self._call = call
        self._abandoned = abandoned
        self._closed = False

    def abandon(self) -> None:
        """Nobody reads on: give the lease back, and leave the connection to whoever may touch it."""
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
    """The class of streams that a client of *library* takes."""
    return type("PooledStream", (_SyncStream, library.SyncByteStream), {})


@cache
def async_stream(library: Any) -> type[_AsyncStream]:
    """The class of streams that an asynchronous client of *library* takes."""
    return type("AsyncPooledStream", (_AsyncStream, library.AsyncByteStream), {})


def drain_abandoned(abandoned: list[Any]) -> Iterator[Any]:
    """What lies in *abandoned*, each for one of the threads that may clear it at the same time."""
    while True:
        try:
            yield abandoned.pop()
        except IndexError:
            return
