"""Getting a lock that many threads want: for a moment each without a convoy, for longer without anybody starving."""

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
    """Get a lock that was just found taken.

    Never by blocking: a blocked thread is handed the lock while it does not have the interpreter, so that everybody
    else queues up behind it and each operation costs a switch of threads, for good. Letting the others run first
    nearly always finds the lock free. If not, its holder was put to sleep in the middle, and with many threads it takes
    a while until it runs again: then the others had better sleep too.
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
    """A re-entrant lock for what takes long, such as a step of a shared store: first come, first served.

    Threads that find it taken queue up. Only the first of them contends for the lock; each of the others sleeps on a
    lock of its own until it is first. If all of them tried again and again, each try would need the interpreter, which
    the holder gives up with every call into the store: of 400 threads the one that holds the lock would hardly run.
    A thread that runs an event loop is let in ahead of the others, at every second turn at most: all tasks of the loop
    stand still while it waits.

    Taking and giving back are those of the plain lock: an interrupt in the middle of code of ours would leave it taken
    for ever. So ``release`` wakes nobody by itself: the first in the queue blocks on the plain lock.
    """

    __slots__ = ("_is_mine", "_lock", "_places", "queue", "release")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.release = self._lock.release
        self._is_mine: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        self.queue: deque[_QueueEntry] = deque()  # threads that found it taken
        self._places: dict[int, _QueueEntry] = {}  # the same, by thread

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it without queueing; not *blocking*: only if nobody has it, and nobody is queueing for it."""
        if not blocking and self.queue and not self._is_mine():
            return False
        return self._lock.acquire(blocking, timeout)

    def wait(self) -> None:
        """Queue for it, and take it."""
        thread = threading.get_ident()
        place = self._places.get(thread)
        # A signal handler, or a finalizer, that interrupts this thread while it queues takes the lock at that place.
        nested = place is not None
        try:
            if place is None:
                place = self._places[thread] = _QueueEntry(running_loop() is not None)
                self._enter(place)
            while self.queue[0] is not place:
                place.turn.acquire(True, _LOST_WAKE_AFTER)
            self._lock.acquire()
            self._leave(thread, nested)
        except BaseException:
            self._leave(thread, nested)
            if self._is_mine():
                self._lock.release()
            raise

    def _enter(self, place: _QueueEntry) -> None:
        queue = self.queue
        if place.is_loop:
            waiting = list(queue)
            for index in range(1, len(waiting)):
                if not (waiting[index - 1].is_loop or waiting[index].is_loop):
                    queue.insert(index, place)
                    return
        queue.append(place)

    def _leave(self, thread: int, nested: bool) -> None:
        """Give up the place, unless the thread itself still queues at it; the next one is woken."""
        place = self._places.get(thread)
        if place is None:
            return
        if not nested:
            del self._places[thread]
            try:
                self.queue.remove(place)
            except ValueError:
                pass  # interrupted before it was in the queue
        if self.queue:
            self.queue[0].wake()


class _QueueEntry:
    """Where one thread queues."""

    __slots__ = ("is_loop", "turn")

    def __init__(self, is_loop: bool) -> None:
        self.is_loop = is_loop
        self.turn = threading.Lock()  # released when it may be this thread's turn
        self.turn.acquire()

    def wake(self) -> None:
        try:
            self.turn.release()
        except RuntimeError:
            pass  # it was woken already


# An interrupt may keep a thread that leaves the queue from waking the next.
_LOST_WAKE_AFTER = 1.0
