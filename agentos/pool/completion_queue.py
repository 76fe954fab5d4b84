"""Where the requests of a whole run are answered, so that no thread and no task has to stand in line with each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .core.limits.base import FOREVER
from .core.records import LeaseRequest, Ticket


class QueuedRequest(Ticket):
    """A request that is answered at a desk. *item* is what it is for; the pool only carries it."""

    __slots__ = ("is_queued", "is_withdrawn", "item")

    def __init__(self, ask: LeaseRequest, requester: str | None, desk: CompletionQueue, item: Any) -> None:
        super().__init__(ask, requester, desk)
        self.item = item
        self.is_queued = False  # counted at its desk; changed under the pool's lock only
        self.is_withdrawn = False  # its run wants it no more; changed under the run's lock only


class CompletionQueue:
    """Tickets granted or failed are put into ``completed``; then, outside the pool's lock, ``on_completion`` is called.

    It is also called when ``armed_at`` has become earlier: the run then sees to it that somebody calls the pool's
    ``on_timer`` at that instant, for the pool has no timer of its own.
    """

    __slots__ = ("armed_at", "completed", "on_completion", "waiting")

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.on_completion = on_news
        self.completed: deque[QueuedRequest] = deque()
        self.armed_at = FOREVER  # changed under the pool's lock only
        self.waiting = 0  # so is this

    def wake(self) -> bool:
        self.on_completion()
        return True
