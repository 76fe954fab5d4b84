"""The body of a request as the transport sends it, any number of times, from memory or from its file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

from ..util.http_server.request_body import RequestBody


class _UpstreamBody:
    def __init__(self, body: RequestBody) -> None:
        self._body = body

    def read_all(self) -> bytes:
        """Return all bytes; see ``transport.call_options.RepeatableStream``."""
        return self._body.read()

    def __iter__(self) -> Iterator[bytes]:
        position = 0
        while piece := self._body.piece_at(position):
            position += len(piece)
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


@cache
def upstream_body(library: Any) -> type[_UpstreamBody]:
    """Return the stream class for requests of *library*."""
    return type("UpstreamBody", (_UpstreamBody, library.AsyncByteStream), {})
