"""The idle workers of a run, each woken when there is work for it."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Wakeup(Protocol):
    """An engine's wake-up for one worker."""

    def wake(self) -> object: ...


class IdleWorkers:
    """The sleeping workers.

    A worker registers, checks once more for work, then sleeps; so no wake-up is lost. There is no lock: each deque
    operation is atomic.
    """

    __slots__ = ("_sleeping",)

    def __init__(self) -> None:
        self._sleeping: deque[Wakeup] = deque()

    def __len__(self) -> int:
        return len(self._sleeping)

    def register(self, worker: Wakeup) -> None:
        self._sleeping.append(worker)

    def unregister(self, worker: Wakeup) -> bool:
        """Remove a worker that found work by itself. False: it was just woken; another must be woken for that work."""
        try:
            self._sleeping.remove(worker)
        except ValueError:
            return False
        return True

    def wake(self, count: int = 1) -> None:
        """Wake up to *count* workers; the last to fall asleep first, as its caches are warm."""
        for _ in range(count):
            try:
                worker = self._sleeping.pop()
            except IndexError:
                return
            worker.wake()

    def wake_all(self) -> None:
        self.wake(len(self._sleeping) + 1)
