"""Getting a lock that many threads want: for a moment each without a convoy, for longer without anybody starving."""

from __future__ import annotations

import threading
import time

from .clock import Sleeper

_TRIES = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.000_1, 0.004


def contend(lock: Sleeper) -> None:
    """Get a lock that was just found taken.

    Never by blocking: a blocked thread is handed the lock while it does not have the interpreter, so that everybody
    else queues up behind it and each operation costs a switch of threads, for good. Letting the others run first
    nearly always finds the lock free. If not, its holder was put to sleep in the middle, and with many threads it takes
    a while until it runs again: then the others had better sleep too.
    """
    if isinstance(lock, PoliteLock):
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


class PoliteLock:
    """A re-entrant lock for what takes long: whoever gives it back and wants it again lets the others go first.

    A thread that takes a plain lock again at once always wins over those who have to wake up. Where it is held nearly
    all of the time, as around every step of a shared store, they would never get it. Taking and giving back are those
    of the plain lock: an interrupt in the middle of code of ours would leave it taken for ever.
    """

    __slots__ = ("_lock", "release", "waiting")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.release = self._lock.release
        self.waiting: dict[int, None] = {}  # threads that found it taken

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.waiting:
            time.sleep(_POLITE_FOR)
        return self._lock.acquire(blocking, timeout)

    def wait(self) -> None:
        """Get it, however long that takes."""
        me = threading.get_ident()
        self.waiting[me] = None
        try:
            pause = _FIRST_PAUSE
            while not self._lock.acquire(False):
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_POLITE_PAUSE)
        finally:
            self.waiting.pop(me, None)


_POLITE_FOR = 0.000_2
_LONGEST_POLITE_PAUSE = 0.001
