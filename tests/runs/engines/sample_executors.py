"""Executors of a class that agentos does not know: their calls might run anywhere."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

PATIENCE = 20.0


class Elsewhere(Executor):
    """Runs what it gets on threads, after pickling it as if it were sent away. It remembers all that a log might show.

    ``most`` is how many it had at once.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(8)
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0
        self.shown = ""
        self.sent: list[bytes] = []
        self.closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._lock:
            self.shown += f"{fn!r} {args!r} {kwargs!r}"
            self.sent.append(pickle.dumps((fn, args, kwargs)))
            self._now += 1
            self.most = max(self.most, self._now)
        future = self._threads.submit(_run, self.sent[-1])
        made: Future[Any] = Future()
        future.add_done_callback(lambda ended: self._end(made, ended))
        return made

    def _end(self, made: Future[Any], ended: Future[bytes]) -> None:
        with self._lock:
            self._now -= 1
        made.set_result(pickle.loads(ended.result()))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closed = True
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


def _run(data: bytes) -> bytes:
    fn, args, kwargs = pickle.loads(data)
    return pickle.dumps(fn(*args, **kwargs))


class ByHand(Executor):
    """Runs nothing by itself: the test does with each future what it likes."""

    def __init__(self, refuse: Exception | None = None) -> None:
        self.refuse = refuse
        self.taken: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._changed = threading.Condition()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.refuse is not None:
            raise self.refuse
        future: Future[Any] = Future()
        with self._changed:
            self.taken.append((future, lambda: fn(*args, **kwargs)))
            self._changed.notify_all()
        return future

    def wait_for(self, count: int) -> Future[Any]:
        """Until it was given so many; the last of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.taken) >= count, PATIENCE), "nothing was submitted"
            return self.taken[count - 1][0]

    def run(self, number: int) -> None:
        """Carry out what was submitted, counted from 1."""
        self.wait_for(number)
        future, call = self.taken[number - 1]
        if future.running() or future.set_running_or_notify_cancel():
            future.set_result(call())


class LosesTheFirst(Executor):
    """Runs what it gets at once, in the thread that brings it; but the first it loses."""

    def __init__(self) -> None:
        self._lost = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._lost:
            future.set_result(fn(*args, **kwargs))
        else:
            self._lost = True
            future.set_exception(OSError("the node is gone"))
        return future


class CountingThreads(ThreadPoolExecutor):
    """Threads, and how many things they had to do at once, at ``most``."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._counting = threading.Lock()
        self._had = 0
        self.most = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._counting:
            self._had += 1
            self.most = max(self.most, self._had)
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(self._count_down)
        return future

    def _count_down(self, _: object) -> None:
        with self._counting:
            self._had -= 1
