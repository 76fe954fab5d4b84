"""A worker's process and the seats in it, as the driver knows them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .remote_attempt import Errand
    from .worker_connection import Connection


class Ask:
    """A seat that wants an item."""

    __slots__ = ("at", "link", "number", "used", "void")

    def __init__(self, link: Member, number: int) -> None:
        self.link = link
        self.number = number
        self.at = time.monotonic()
        self.used = False
        self.void = False  # its connection broke: if the seat is still there, it asks again


class Member:
    """A worker's process, as the driver knows it; it outlives its connections."""

    __slots__ = ("asks", "connection", "errands", "has_worked", "heard_at", "id", "in_vain", "name", "unfit")

    def __init__(self, link_id: str, name: str, *, unfit: bool = False) -> None:
        self.id = link_id
        self.name = name
        self.has_worked = False  # on an item
        self.unfit = unfit  # items cannot begin there, and it gets none
        self.in_vain: set[int] = set()  # the asks that it gets nothing for
        self.connection: Connection | None = None
        self.heard_at = 0.0
        self.asks: dict[int, Ask] = {}
        self.errands: dict[int, Errand] = {}

    def send(self, frame: bytes) -> None:
        if self.connection is not None:
            self.connection.send(frame)

    def send_now(self, frame: bytes) -> None:
        """Before what waits to be sent."""
        if self.connection is not None:
            self.connection.send_now(frame)
