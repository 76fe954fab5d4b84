"""Where the seats that want an item and the driver's threads that have one meet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .worker_process import WorkerProcess, WorkRequest


class WaitingWorkers:
    """The seats that nobody has an item for, and the threads that wait for a seat. Any thread may call it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free: dict[WorkerProcess, list[WorkRequest]] = {}  # the one that asked last is the last
        self._waiting: dict[int, float] = {}  # threads, and since when
        self._paused = self._closed = False

    def add(self, ask: WorkRequest) -> None:
        """A seat asks, or its ask was not used after all."""
        with self._changed:
            if not ask.is_void and not ask.worker.is_unusable:
                self._free.setdefault(ask.worker, []).append(ask)
                self._changed.notify()

    def try_take(self) -> WorkRequest | None:
        """The ask of a worker that has most of them: it has the least to do. None: nobody asks, or none is given."""
        with self._changed:
            return self._pick()

    def take(self) -> WorkRequest | None:
        """The same, but wait for one. None: there will be no more."""
        me = threading.get_ident()
        with self._changed:
            self._waiting[me] = time.monotonic()
            try:
                while (ask := self._pick()) is None and not self._closed:
                    self._changed.wait()
                return ask
            finally:
                del self._waiting[me]

    def _pick(self) -> WorkRequest | None:
        if not self._free or self._paused or self._closed:
            return None
        member = max(self._free, key=lambda each: len(self._free[each]))
        ask = self._free[member].pop()
        if not self._free[member]:
            del self._free[member]
        return ask

    def count_waiting(self, seconds: float = 0.0) -> int:
        """How many threads have waited for a seat for so long."""
        with self._changed:
            since = time.monotonic() - seconds
            return sum(begun <= since for begun in self._waiting.values())

    @property
    def is_paused(self) -> bool:
        """Whether none is given for now."""
        return self._paused

    def pause(self, on: bool) -> None:
        """Give none for now, or (False) go on."""
        with self._changed:
            self._paused = on
            self._changed.notify_all()

    def withdraw(self, member: WorkerProcess) -> None:
        """Its connection broke: none of its asks is good any more, not even one that was taken and not used."""
        with self._changed:
            self._free.pop(member, None)
            for ask in member.requests.values():
                ask.is_void = True

    def exclude(self, member: WorkerProcess) -> bool:
        """From now on none of its asks is given to anybody. False: so it was before."""
        with self._changed:
            was_fit, member.is_unusable = not member.is_unusable, True
            self._free.pop(member, None)
            return was_fit

    def release_unused(
        self, unused_for: float, may_go: Callable[[WorkerProcess, list[WorkRequest]], bool]
    ) -> list[WorkRequest]:
        """Take out those that nobody has used for so long, as far as they *may go*."""
        since = time.monotonic() - unused_for
        gone: list[WorkRequest] = []
        with self._changed:
            for member, asks in list(self._free.items()):
                old = [ask for ask in asks if ask.requested_at <= since]
                if not old or not may_go(member, old):
                    continue
                gone += old
                left = [ask for ask in asks if ask.requested_at > since]
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
