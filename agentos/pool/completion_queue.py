"""Where the requests of a whole run are answered, so that no thread and no task has to stand in line with each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .core.limits.base import FOREVER
from .core.records import Ask, Ticket


class DeskTicket(Ticket):
    """A request that is answered at a desk. *item* is what it is for; the pool only carries it."""

    __slots__ = ("in_line", "item", "recalled")

    def __init__(self, ask: Ask, requester: str | None, desk: Desk, item: Any) -> None:
        super().__init__(ask, requester, desk)
        self.item = item
        self.in_line = False  # counted at its desk; changed under the pool's lock only
        self.recalled = False  # its run wants it no more; changed under the run's lock only


class Desk:
    """Tickets granted or failed are put into ``answered``; then, outside the pool's lock, ``on_news`` is called.

    It is also called when ``armed_at`` has become earlier: the run then sees to it that somebody calls the pool's
    ``look_out`` at that instant, for the pool has no timer of its own.
    """

    __slots__ = ("answered", "armed_at", "on_news", "waiting")

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.on_news = on_news
        self.answered: deque[DeskTicket] = deque()
        self.armed_at = FOREVER  # changed under the pool's lock only
        self.waiting = 0  # so is this

    def wake(self) -> bool:
        self.on_news()
        return True
