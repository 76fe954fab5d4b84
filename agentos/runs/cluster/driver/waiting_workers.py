"""Match slots that request an item with the driver's threads that have one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .worker_process import WorkerProcess, WorkRequest


class WaitingWorkers:
    """Requests that have no item yet, and the threads that wait for a request. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free: dict[WorkerProcess, list[WorkRequest]] = {}  # the latest request is last
        self._waiting: dict[int, float] = {}  # thread id to the start of its wait
        self._paused = self._closed = False

    def add(self, request: WorkRequest) -> None:
        """Add a new request, or one that was taken and not used."""
        with self._changed:
            if not request.is_void and not request.worker.is_unusable:
                self._free.setdefault(request.worker, []).append(request)
                self._changed.notify()

    def try_take(self) -> WorkRequest | None:
        """Return a request of the worker with most of them (the least busy one), or None."""
        with self._changed:
            return self._pick()

    def take(self) -> WorkRequest | None:
        """Like try_take(), but wait for a request. Return None once there will be no more."""
        me = threading.get_ident()
        with self._changed:
            self._waiting[me] = time.monotonic()
            try:
                while (request := self._pick()) is None and not self._closed:
                    self._changed.wait()
                return request
            finally:
                del self._waiting[me]

    def _pick(self) -> WorkRequest | None:
        if not self._free or self._paused or self._closed:
            return None
        worker = max(self._free, key=lambda each: len(self._free[each]))
        request = self._free[worker].pop()
        if not self._free[worker]:
            del self._free[worker]
        return request

    def count_waiting(self, seconds: float = 0.0) -> int:
        """Return the number of threads that have waited for at least *seconds*."""
        with self._changed:
            since = time.monotonic() - seconds
            return sum(begun <= since for begun in self._waiting.values())

    @property
    def is_paused(self) -> bool:
        """True while no request is handed out."""
        return self._paused

    def pause(self, on: bool) -> None:
        """Stop handing out requests, or resume with False."""
        with self._changed:
            self._paused = on
            self._changed.notify_all()

    def withdraw(self, worker: WorkerProcess) -> None:
        """Invalidate all requests of a worker whose connection broke, also one that was taken and not used."""
        with self._changed:
            self._free.pop(worker, None)
            for request in worker.requests.values():
                request.is_void = True

    def exclude(self, worker: WorkerProcess) -> bool:
        """Hand out no more requests of that worker. Return False if it was excluded before."""
        with self._changed:
            was_usable, worker.is_unusable = not worker.is_unusable, True
            self._free.pop(worker, None)
            return was_usable

    def release_unused(
        self, unused_for: float, may_go: Callable[[WorkerProcess, list[WorkRequest]], bool]
    ) -> list[WorkRequest]:
        """Remove and return requests unused for that many seconds, for which *may_go* returns True."""
        since = time.monotonic() - unused_for
        released: list[WorkRequest] = []
        with self._changed:
            for worker, requests in list(self._free.items()):
                old = [request for request in requests if request.requested_at <= since]
                if not old or not may_go(worker, old):
                    continue
                released += old
                left = [request for request in requests if request.requested_at > since]
                if left:
                    self._free[worker] = left
                else:
                    del self._free[worker]
        return released

    def close(self) -> None:
        """Drop all requests and wake the threads that wait for one."""
        with self._changed:
            self._closed = True
            self._free.clear()
            self._changed.notify_all()
