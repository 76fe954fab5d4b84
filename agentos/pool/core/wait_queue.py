"""Waiting requests in the order in which they are served: priority, then arrival."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice

from .records import Ticket


class WaitQueue:
    """Waiting tickets by priority, then arrival. A ticket can be removed at any time."""

    __slots__ = ("_queues", "_ranks")

    def __init__(self) -> None:
        self._ranks: list[float] = []  # -priority, ascending; one entry for each queue that is not empty
        self._queues: dict[float, OrderedDict[Ticket, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Ticket]:
        return chain.from_iterable(self._queues[rank] for rank in self._ranks)

    def add(self, ticket: Ticket) -> None:
        rank = ticket.order[0]
        queue = self._queues.get(rank)
        if queue is None:
            queue = self._queues[rank] = OrderedDict()
            bisect.insort(self._ranks, rank)
        queue[ticket] = None

    def remove(self, ticket: Ticket) -> None:
        rank = ticket.order[0]
        queue = self._queues[rank]
        del queue[ticket]
        if not queue:
            del self._queues[rank]
            self._ranks.remove(rank)

    def head(self) -> Ticket | None:
        ranks = self._ranks
        return next(iter(self._queues[ranks[0]])) if ranks else None

    def behind_head(self, count: int) -> list[Ticket]:
        """Return the next *count* tickets after the first."""
        return list(islice(self, 1, count + 1))
