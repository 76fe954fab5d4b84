"""A worker process and its requests for items, as the driver knows them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .remote_attempt import RemoteAttempt
    from .worker_connection import WorkerConnection


class WorkRequest:
    """A slot's request for an item."""

    __slots__ = ("is_used", "is_void", "number", "requested_at", "worker")

    def __init__(self, worker: WorkerProcess, number: int) -> None:
        self.worker = worker
        self.number = number
        self.requested_at = time.monotonic()
        self.is_used = False
        self.is_void = False  # its connection broke; a slot that still exists sends another request


class WorkerProcess:
    """A worker process as the driver knows it; it outlives its connections."""

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

    def __init__(self, worker_id: str, name: str, *, is_unusable: bool = False) -> None:
        self.id = worker_id
        self.name = name
        self.has_worked = False  # reported at least one attempt that began
        self.is_unusable = is_unusable  # items cannot begin there, so it gets none
        self.ignored_requests: set[int] = set()  # requests that get no item
        self.connection: WorkerConnection | None = None
        self.last_frame_at = 0.0
        self.requests: dict[int, WorkRequest] = {}
        self.attempts: dict[int, RemoteAttempt] = {}

    def send(self, frame: bytes) -> None:
        if self.connection is not None:
            self.connection.send(frame)

    def send_urgent(self, frame: bytes) -> None:
        """Send the frame before all queued frames."""
        if self.connection is not None:
            self.connection.send_urgent(frame)
