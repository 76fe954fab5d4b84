"""The driver's end of a connection to a worker; accepts only a HELLO frame until that was verified."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from ..wire.framing import FramedConnection
from ..wire.messages import MAX_FRAME, MAX_HELLO, Frame, FrameReader, WireError
from .worker_process import WorkerProcess

log = logging.getLogger("agentos")


class ConnectionHandler(Protocol):
    """Callbacks of a connection; implemented by ``DriverServer``."""

    def on_connect(self, connection: WorkerConnection) -> None:
        """Handle a new connection that has not identified itself."""
        ...

    def is_password(self, password: bytes) -> bool:
        """Return True if that is the password of the run."""
        ...

    def on_hello(self, connection: WorkerConnection, frame: Frame) -> WorkerProcess | None:
        """Handle the first frame of a connection. Return None to refuse it."""
        ...

    def on_frame(self, worker: WorkerProcess, frame: Frame) -> None:
        """Handle a frame of an identified worker. Raise ``WireError`` if it is invalid."""
        ...

    def on_disconnect(self, connection: WorkerConnection, worker: WorkerProcess | None) -> None:
        """Handle the end of the connection."""
        ...


class WorkerConnection(FramedConnection):
    """One connection of a worker, or of a peer that claims to be one."""

    def __init__(self, handler: ConnectionHandler) -> None:
        super().__init__(FrameReader(MAX_HELLO, handler.is_password))
        self._handler = handler
        self._worker: WorkerProcess | None = None
        self.identified = asyncio.Event()  # also set when the connection ends before that

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handler.on_connect(self)

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        try:
            for frame in self.read(data):
                if self._worker is None:
                    self._read_hello(frame)
                    if self._worker is None:
                        return
                else:
                    self._handler.on_frame(self._worker, frame)
        except WireError as error:
            log.warning("[COORDINATOR] a worker's connection was closed: %s", error)
            self.abort()
        if self._worker is not None:
            self._worker.last_frame_at = time.monotonic()

    def _read_hello(self, frame: Frame) -> None:
        self._worker = self._handler.on_hello(self, frame)
        if self._worker is None:
            self.close()
            return
        self._frames.longest = MAX_FRAME
        self.identified.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.identified.set()
        self._handler.on_disconnect(self, self._worker)
