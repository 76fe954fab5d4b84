"""Receive the answers to all lease requests of a run, so that no thread or task waits for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .core.limits.base import FOREVER
from .core.records import LeaseRequest, Ticket


class QueuedRequest(Ticket):
    """A lease request that is answered in a completion queue. *item* is what it is for; the pool does not use it."""

    __slots__ = ("is_queued", "is_withdrawn", "item")

    def __init__(self, request: LeaseRequest, requester: str | None, queue: CompletionQueue, item: Any) -> None:
        super().__init__(request, requester, queue)
        self.item = item
        self.is_queued = False  # counted in its queue; changed only under the pool's lock
        self.is_withdrawn = False  # its run has withdrawn it; changed only under the run's lock


class CompletionQueue:
    """Granted and failed tickets go to ``completed``; then ``on_completion`` is called outside the pool's lock.

    It is also called when ``armed_at`` becomes earlier: the run must then call the pool's ``on_timer`` at that instant,
    since the pool has no timer of its own.
    """

    __slots__ = ("armed_at", "completed", "on_completion", "waiting")

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.on_completion = on_news
        self.completed: deque[QueuedRequest] = deque()
        self.armed_at = FOREVER  # changed only under the pool's lock
        self.waiting = 0  # likewise

    def wake(self) -> bool:
        self.on_completion()
        return True
