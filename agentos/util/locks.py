"""Acquire contended locks: short ones without a convoy, long ones without starvation."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from .clock import Sleeper
from .event_loop import running_loop

_TRIES = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.000_1, 0.004


def acquire_contended(lock: Sleeper) -> None:
    """Acquire a lock that was just found taken.

    It does not block: a blocked thread receives the lock without having the interpreter, so all others queue behind it
    and each operation costs a thread switch, permanently (a convoy). Yielding to the other threads nearly always finds
    the lock free. If not, its holder was preempted, and with many threads it takes a while until it runs again; then
    sleep.
    """
    if isinstance(lock, FairLock):
        lock.wait()
        return
    for _ in range(_TRIES):
        time.sleep(0)
        if lock.acquire(False):
            return
    pause = _FIRST_PAUSE
    while not lock.acquire(False):
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


class FairLock:
    """A first-come, first-served re-entrant lock for long operations, such as a step of a shared store.

    Threads that find it taken queue up. Only the first of them contends for the lock; each of the others sleeps on a
    lock of its own until it is first. If all of them polled, each poll would need the interpreter, which the holder
    releases with every call into the store: with 400 threads the holder would hardly run.

    A thread that runs an event loop is queued ahead of the others, at every second position at most: all tasks of the
    loop are blocked while it waits.

    ``acquire`` and ``release`` are those of the plain lock: an interrupt in Python code of ours could leave it locked
    permanently. So ``release`` wakes no thread: the first in the queue blocks on the plain lock.
    """

    __slots__ = ("_entries", "_lock", "_owns_lock", "queue", "release")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.release = self._lock.release
        self._owns_lock: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        self.queue: deque[_QueueEntry] = deque()  # threads that found it taken
        self._entries: dict[int, _QueueEntry] = {}  # the same entries, by thread

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire without queueing; if not *blocking*, only if the lock is free and the queue empty."""
        if not blocking and self.queue and not self._owns_lock():
            return False
        return self._lock.acquire(blocking, timeout)

    def wait(self) -> None:
        """Queue for the lock and acquire it."""
        thread = threading.get_ident()
        entry = self._entries.get(thread)
        # A signal handler or finalizer that interrupts this thread while it queues uses the same queue entry.
        nested = entry is not None
        try:
            if entry is None:
                entry = self._entries[thread] = _QueueEntry(running_loop() is not None)
                self._enter(entry)
            while self.queue[0] is not entry:
                entry.turn.acquire(True, _LOST_WAKE_AFTER)
            self._lock.acquire()
            self._leave(thread, nested)
        except BaseException:
            self._leave(thread, nested)
            if self._owns_lock():
                self._lock.release()
            raise

    def _enter(self, entry: _QueueEntry) -> None:
        queue = self.queue
        if entry.is_loop:
            waiting = list(queue)
            for index in range(1, len(waiting)):
                if not (waiting[index - 1].is_loop or waiting[index].is_loop):
                    queue.insert(index, entry)
                    return
        queue.append(entry)

    def _leave(self, thread: int, nested: bool) -> None:
        """Remove the queue entry, unless the interrupted thread still needs it, and wake the next thread."""
        entry = self._entries.get(thread)
        if entry is None:
            return
        if not nested:
            del self._entries[thread]
            try:
                self.queue.remove(entry)
            except ValueError:
                pass  # interrupted before it was queued
        if self.queue:
            self.queue[0].wake()


class _QueueEntry:
    """The position of one thread in the queue."""

    __slots__ = ("is_loop", "turn")

    def __init__(self, is_loop: bool) -> None:
        self.is_loop = is_loop
        self.turn = threading.Lock()  # released when it may be this thread's turn
        self.turn.acquire()

    def wake(self) -> None:
        try:
            self.turn.release()
        except RuntimeError:
            pass  # already woken


# An interrupt may prevent a thread that leaves the queue from waking the next one.
_LOST_WAKE_AFTER = 1.0
