"""Wake-up of a waiting thread."""

from __future__ import annotations

import threading


class ThreadWakeup:
    """Lets one thread wait; any thread may wake it. A wake-up before the wait is not lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # already woken

    def wait(self) -> None:
        self._lock.acquire()
