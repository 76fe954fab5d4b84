"""Getting a lock that many threads want for a moment each, without a convoy."""

from __future__ import annotations

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
    for _ in range(_TRIES):
        time.sleep(0)
        if lock.acquire(False):
            return
    pause = _FIRST_PAUSE
    while not lock.acquire(False):
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
