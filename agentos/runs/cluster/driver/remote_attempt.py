"""An attempt on its way to a worker elsewhere, and what becomes of it, as the driver's threads have it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..wire.messages import Channel, FrameKind, assign_body, check_size, pack_frame

if TYPE_CHECKING:
    from .worker_process import WorkRequest


class AttemptReported(NamedTuple):
    """The attempt has ended there."""

    body: bytes


class AttemptData(NamedTuple):
    """The attempt goes on, and said something. Who has taken it tells ``Hub.acknowledge``, or no more may come."""

    number: int
    channel: Channel
    data: bytes


class AttemptLost(NamedTuple):
    """Its worker has not been heard of for one time to live. Whatever still comes of it is late."""

    reason: str


class NotAssigned(NamedTuple):
    """The seat that had asked is gone, or may have nothing now; the attempt never left the driver."""


class KillDelivered(NamedTuple):
    """It was asked to end, and its worker knows: nothing but the attempt itself keeps it from that."""


RemoteEvent = AttemptReported | AttemptData | KillDelivered | AttemptLost | NotAssigned


class RemoteAttempt:
    """An attempt that is to be run elsewhere.

    What becomes of it comes by ``events``, of which the last is ``AttemptReported``, ``AttemptLost`` or
    ``NotAssigned``. Raises ``FrameTooLarge`` if it cannot be sent.
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

    def __init__(self, token: int, body: bytes, held: Callable[[], bool]) -> None:
        self.token = token
        self.body = body
        check_size(assign_body(0, body))
        self.is_lease_held = held  # whether its lease still is
        self.events: queue.SimpleQueue[RemoteEvent] = queue.SimpleQueue()
        self.request: WorkRequest | None = None
        self.last_received = 0  # the number of the last thing it said
        self.last_consumed = 0  # and of the last that was taken
        self.kill_within: float | None = None  # it is to end within so many seconds
        self.kill_delivered = False  # and its worker knows
        self.writing = False  # what it said waits to be shown here: nothing is wrong with it

    @property
    def unheard(self) -> bool:
        """It is to end, and its worker may not know: that one may be lost, and it with it."""
        return self.kill_within is not None and self.request is not None and not self.kill_delivered

    def frame(self, ask: int) -> bytes:
        return pack_frame(FrameKind.ASSIGN, self.token, assign_body(ask, self.body))
