"""An attempt assigned to a worker process and the events it reports, as seen by the driver's threads."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..wire.messages import Channel, FrameKind, assign_body, check_size, pack_frame

if TYPE_CHECKING:
    from .worker_process import WorkRequest


class AttemptReported(NamedTuple):
    """The attempt ended on its worker."""

    body: bytes


class AttemptData(NamedTuple):
    """The running attempt sent data. The consumer calls ``DriverServer.acknowledge``, or no more can arrive."""

    number: int
    channel: Channel
    data: bytes


class AttemptLost(NamedTuple):
    """The worker was silent for one time to live. Results that still arrive are late."""

    reason: str


class NotAssigned(NamedTuple):
    """The slot is gone or gets no items now; the attempt never left the driver."""


class KillDelivered(NamedTuple):
    """The worker has received the request to end the attempt; only the attempt itself delays its end."""


RemoteEvent = AttemptReported | AttemptData | KillDelivered | AttemptLost | NotAssigned


class RemoteAttempt:
    """An attempt to be run on a worker.

    ``events`` delivers its events; the last one is ``AttemptReported``, ``AttemptLost`` or ``NotAssigned``. The
    constructor raises ``FrameTooLarge`` if the attempt cannot be sent.
    """

    __slots__ = (
        "body",
        "events",
        "is_lease_held",
        "kill_delivered",
        "kill_within",
        "last_consumed",
        "last_received",
        "request",
        "token",
        "writing",
    )

    def __init__(self, token: int, body: bytes, is_lease_held: Callable[[], bool]) -> None:
        self.token = token
        self.body = body
        check_size(assign_body(0, body))
        self.is_lease_held = is_lease_held
        self.events: queue.SimpleQueue[RemoteEvent] = queue.SimpleQueue()
        self.request: WorkRequest | None = None
        self.last_received = 0  # number of the last data frame received
        self.last_consumed = 0  # number of the last data frame processed
        self.kill_within: float | None = None  # seconds within which it should end
        self.kill_delivered = False  # its worker confirmed that
        self.writing = False  # its output blocks in the driver, so the attempt itself is not stuck

    @property
    def kill_unconfirmed(self) -> bool:
        """True if the attempt should end and its worker has not confirmed that: the worker may be lost."""
        return self.kill_within is not None and self.request is not None and not self.kill_delivered

    def frame(self, request: int) -> bytes:
        return pack_frame(FrameKind.ASSIGN, self.token, assign_body(request, self.body))
