"""How a thread that waits is woken."""

from __future__ import annotations

import threading


class ThreadWakeup:
    """One thread waits; anybody rings. A ring before the wait is not lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it rings already

    def wait(self) -> None:
        self._lock.acquire()
