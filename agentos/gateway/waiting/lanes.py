"""Lanes: requests for the same keys wait in order of arrival, and only the first of them wait in the pool itself.

A request that waits in the pool has a task, a request of the HTTP library and a ticket. One that waits here has none of
them, so that ten thousand requests need little memory.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Final, Protocol

MOST_IN_POOL: Final = 128  # of one lane
_ENTRIES: Final = itertools.count()


class Waiter(Protocol):
    """A request in a lane."""

    @property
    def is_queued(self) -> bool:
        """Return False once the request has left its lane."""
        ...

    def begin(self) -> None:
        """Wait in the pool from now on."""
        ...


class Lane:
    """One lane. The lower a request's number, the earlier it came."""

    __slots__ = ("_gone", "_queue", "in_pool")

    def __init__(self) -> None:
        self.in_pool = 0
        self._queue: list[tuple[int, int, Waiter]] = []
        self._gone = 0  # entries of the queue that have left

    def enter(self, number: int, waiter: Waiter) -> None:
        """Begin with *waiter*, or queue it."""
        if self.in_pool < MOST_IN_POOL and len(self._queue) == self._gone:
            self.in_pool += 1
            waiter.begin()
        else:
            # A client that came again has the number it had, and its first request may still be in the queue.
            heapq.heappush(self._queue, (number, next(_ENTRIES), waiter))

    def note_gone(self) -> None:
        """Note that a queued waiter has left; forget such waiters once they are many."""
        self._gone += 1
        if self._gone > len(self._queue) // 2:
            self._queue = [entry for entry in self._queue if entry[2].is_queued]
            heapq.heapify(self._queue)
            self._gone = 0

    def leave_pool(self) -> None:
        """Note that a request no longer waits in the pool, and begin with the next."""
        self.in_pool -= 1
        while self._queue and self.in_pool < MOST_IN_POOL:
            waiter = heapq.heappop(self._queue)[2]
            if waiter.is_queued:
                self.in_pool += 1
                waiter.begin()
            else:
                self._gone -= 1

    @property
    def is_empty(self) -> bool:
        """Return True if nothing is in the lane."""
        return not self.in_pool and len(self._queue) == self._gone


class LaneTable:
    """The lanes that are in use."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane] = {}

    def get(self, key: Hashable) -> Lane:
        """Return the lane of the requests with this *key*."""
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) > 100:
                self._lanes = {name: each for name, each in self._lanes.items() if not each.is_empty}
            lane = self._lanes[key] = Lane()
        return lane
