"""A worker's process and the seats in it, as the driver knows them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .remote_attempt import RemoteAttempt
    from .worker_connection import WorkerConnection


class WorkRequest:
    """A seat that wants an item."""

    __slots__ = ("is_used", "is_void", "number", "requested_at", "worker")

    def __init__(self, link: WorkerProcess, number: int) -> None:
        self.worker = link
        self.number = number
        self.requested_at = time.monotonic()
        self.is_used = False
        self.is_void = False  # its connection broke: if the seat is still there, it asks again


class WorkerProcess:
    """A worker's process, as the driver knows it; it outlives its connections."""

    __slots__ = (
        "attempts",
        "connection",
        "has_worked",
        "id",
        "ignored_requests",
        "is_unusable",
        "last_frame_at",
        "name",
        "requests",
    )

    def __init__(self, link_id: str, name: str, *, unfit: bool = False) -> None:
        self.id = link_id
        self.name = name
        self.has_worked = False  # on an item
        self.is_unusable = unfit  # items cannot begin there, and it gets none
        self.ignored_requests: set[int] = set()  # the asks that it gets nothing for
        self.connection: WorkerConnection | None = None
        self.last_frame_at = 0.0
        self.requests: dict[int, WorkRequest] = {}
        self.attempts: dict[int, RemoteAttempt] = {}

    def send(self, frame: bytes) -> None:
        if self.connection is not None:
            self.connection.send(frame)

    def send_urgent(self, frame: bytes) -> None:
        """Before what waits to be sent."""
        if self.connection is not None:
            self.connection.send_urgent(frame)
