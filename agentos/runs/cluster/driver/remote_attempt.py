"""An attempt on its way to a worker elsewhere, and what becomes of it, as the driver's threads have it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..wire.messages import Channel, Kind, assign_body, check_size, packed

if TYPE_CHECKING:
    from .worker_process import Ask


class Reported(NamedTuple):
    """The attempt has ended there."""

    body: bytes


class Said(NamedTuple):
    """The attempt goes on, and said something. Who has taken it tells ``Hub.taken``, or no more may come."""

    number: int
    channel: Channel
    data: bytes


class Lost(NamedTuple):
    """Its worker has not been heard of for one time to live. Whatever still comes of it is late."""

    reason: str


class NotTaken(NamedTuple):
    """The seat that had asked is gone, or may have nothing now; the attempt never left the driver."""


class ToldToEnd(NamedTuple):
    """It was asked to end, and its worker knows: nothing but the attempt itself keeps it from that."""


Event = Reported | Said | ToldToEnd | Lost | NotTaken


class Errand:
    """An attempt that is to be run elsewhere.

    What becomes of it comes by ``events``, of which the last is ``Reported``, ``Lost`` or ``NotTaken``. Raises
    ``TooLarge`` if it cannot be sent.
    """

    __slots__ = ("ask", "body", "events", "held", "killed", "said", "taken", "token", "told", "writing")

    def __init__(self, token: int, body: bytes, held: Callable[[], bool]) -> None:
        self.token = token
        self.body = body
        check_size(assign_body(0, body))
        self.held = held  # whether its lease still is
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.ask: Ask | None = None
        self.said = 0  # the number of the last thing it said
        self.taken = 0  # and of the last that was taken
        self.killed: float | None = None  # it is to end within so many seconds
        self.told = False  # and its worker knows
        self.writing = False  # what it said waits to be shown here: nothing is wrong with it

    @property
    def unheard(self) -> bool:
        """It is to end, and its worker may not know: that one may be lost, and it with it."""
        return self.killed is not None and self.ask is not None and not self.told

    def frame(self, ask: int) -> bytes:
        return packed(Kind.ASSIGN, self.token, assign_body(ask, self.body))
