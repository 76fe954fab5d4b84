"""Where the seats that want an item and the driver's threads that have one meet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .worker_process import Ask, Member


class Asks:
    """The seats that nobody has an item for, and the threads that wait for a seat. Any thread may call it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free: dict[Member, list[Ask]] = {}  # the one that asked last is the last
        self._waiting: dict[int, float] = {}  # threads, and since when
        self._held = self._closed = False

    def put(self, ask: Ask) -> None:
        """A seat asks, or its ask was not used after all."""
        with self._changed:
            if not ask.void and not ask.link.unfit:
                self._free.setdefault(ask.link, []).append(ask)
                self._changed.notify()

    def take_now(self) -> Ask | None:
        """The ask of a worker that has most of them: it has the least to do. None: nobody asks, or none is given."""
        with self._changed:
            return self._taken()

    def take(self) -> Ask | None:
        """The same, but wait for one. None: there will be no more."""
        me = threading.get_ident()
        with self._changed:
            self._waiting[me] = time.monotonic()
            try:
                while (ask := self._taken()) is None and not self._closed:
                    self._changed.wait()
                return ask
            finally:
                del self._waiting[me]

    def _taken(self) -> Ask | None:
        if not self._free or self._held or self._closed:
            return None
        member = max(self._free, key=lambda each: len(self._free[each]))
        ask = self._free[member].pop()
        if not self._free[member]:
            del self._free[member]
        return ask

    def waiting(self, seconds: float = 0.0) -> int:
        """How many threads have waited for a seat for so long."""
        with self._changed:
            since = time.monotonic() - seconds
            return sum(begun <= since for begun in self._waiting.values())

    @property
    def held(self) -> bool:
        """Whether none is given for now."""
        return self._held

    def hold(self, on: bool) -> None:
        """Give none for now, or (False) go on."""
        with self._changed:
            self._held = on
            self._changed.notify_all()

    def withdraw(self, member: Member) -> None:
        """Its connection broke: none of its asks is good any more, not even one that was taken and not used."""
        with self._changed:
            self._free.pop(member, None)
            for ask in member.asks.values():
                ask.void = True

    def set_aside(self, member: Member) -> bool:
        """From now on none of its asks is given to anybody. False: so it was before."""
        with self._changed:
            was_fit, member.unfit = not member.unfit, True
            self._free.pop(member, None)
            return was_fit

    def let_go(self, unused_for: float, may_go: Callable[[Member, list[Ask]], bool]) -> list[Ask]:
        """Take out those that nobody has used for so long, as far as they *may go*."""
        since = time.monotonic() - unused_for
        gone: list[Ask] = []
        with self._changed:
            for member, asks in list(self._free.items()):
                old = [ask for ask in asks if ask.at <= since]
                if not old or not may_go(member, old):
                    continue
                gone += old
                left = [ask for ask in asks if ask.at > since]
                if left:
                    self._free[member] = left
                else:
                    del self._free[member]
        return gone

    def close(self) -> None:
        """Nobody gets one any more, and nobody waits for one."""
        with self._changed:
            self._closed = True
            self._free.clear()
            self._changed.notify_all()
