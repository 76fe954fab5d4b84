"""One end of a connection between driver and worker; short urgent frames overtake long ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from .messages import HEAD_SIZE, PIECE_SIZE, WINDOW, Frame, FrameKind, FrameReader, pack_frame, split_frame


class FramedConnection(asyncio.Protocol):
    """Sends frames in order, with a bound on unconfirmed bytes; heartbeats may overtake them.

    Belongs to one event loop. *frames* parses received bytes.
    """

    def __init__(self, frames: FrameReader) -> None:
        self._frames = frames
        self._transport: asyncio.Transport | None = None
        self._queued: deque[Iterator[bytes]] = deque()  # frames, as iterators of their pieces
        self._is_full = False  # the transport's write buffer is full
        self._in_flight = 0  # bytes of unconfirmed pieces
        self._is_closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._queued.clear()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._send_queued()

    @property
    def is_open(self) -> bool:
        """True while frames can be sent and received."""
        return self._transport is not None and not self._is_closing and not self._transport.is_closing()

    def read(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that *data* completes. Raise ``WireError`` if it is invalid."""
        for frame in self._frames.feed(data):
            if frame.kind is FrameKind.PIECE_ACK:
                self._in_flight -= frame.number
                self._send_queued()
            else:
                yield frame
        got = self._frames.take_piece_bytes()
        if got:
            self.send_urgent(pack_frame(FrameKind.PIECE_ACK, got))

    def send(self, frame: bytes) -> None:
        """Queue the frame. Does nothing after the connection was closed."""
        if self.is_open:
            self._queued.append(self._pieces(frame) if len(frame) > PIECE_SIZE else iter((frame,)))
            self._send_queued()

    def send_urgent(self, frame: bytes) -> None:
        """Send a short frame before all queued ones, such as a heartbeat."""
        if self.is_open and self._transport is not None:
            self._transport.write(frame)

    def close(self) -> None:
        """Close the connection after all queued frames were sent."""
        self._is_closing = True
        self._send_queued()

    def abort(self) -> None:
        """Close the connection at once and drop queued frames."""
        self._queued.clear()
        if self._transport is not None:
            self._transport.abort()

    def _send_queued(self) -> None:
        transport, waiting = self._transport, self._queued
        if transport is None or transport.is_closing():
            return
        while waiting and not self._is_full and self._in_flight < WINDOW:
            piece = next(waiting[0], None)
            if piece is None:
                waiting.popleft()
            else:
                transport.write(piece)
        if self._is_closing and not waiting:
            transport.close()

    def _pieces(self, frame: bytes) -> Iterator[bytes]:
        for piece in split_frame(frame):
            self._in_flight += len(piece) - HEAD_SIZE
            yield piece
