"""A connection to the hub; nothing but a greeting is read from it until that was found right."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from ..wire.framing import Stream
from ..wire.messages import LONGEST, LONGEST_HELLO, Frame, Frames, WireError
from .worker_process import Member

log = logging.getLogger("agentos")


class Host(Protocol):
    """Who has connections: the hub."""

    def joined(self, connection: Connection) -> None:
        """Somebody connected; who it is, is not known yet."""
        ...

    def knows(self, password: bytes) -> bool:
        """Whether that is the password of the run."""
        ...

    def greeted(self, connection: Connection, frame: Frame) -> Member | None:
        """The first frame of a connection. None: it is none of ours."""
        ...

    def heard(self, member: Member, frame: Frame) -> None:
        """A frame of one that has been welcomed. Raises ``WireError``."""
        ...

    def left(self, connection: Connection, member: Member | None) -> None:
        """The connection ended."""
        ...


class Connection(Stream):
    """One connection of a worker, or of somebody who says so."""

    def __init__(self, host: Host) -> None:
        super().__init__(Frames(LONGEST_HELLO, host.knows))
        self._host = host
        self._member: Member | None = None
        self.identified = asyncio.Event()  # or it ended before

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._host.joined(self)

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        try:
            for frame in self.read(data):
                if self._member is None:
                    self._greet(frame)
                    if self._member is None:
                        return
                else:
                    self._host.heard(self._member, frame)
        except WireError as error:
            log.warning("[COORDINATOR] a link was cut: %s", error)
            self.abort()
        if self._member is not None:
            self._member.heard_at = time.monotonic()

    def _greet(self, frame: Frame) -> None:
        self._member = self._host.greeted(self, frame)
        if self._member is None:
            self.close()
            return
        self._frames.longest = LONGEST
        self.identified.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.identified.set()
        self._host.left(self, self._member)
