"""Workers with nothing to do, and how they are woken: each exactly when there is something for it."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Wakeup(Protocol):
    """What wakes a worker, as its engine has it."""

    def wake(self) -> object: ...


class IdleWorkers:
    """Those who sleep. Register first, then look once more for work, then sleep: nothing can come unnoticed between.

    No lock: each operation of a deque happens at once.
    """

    __slots__ = ("_sleeping",)

    def __init__(self) -> None:
        self._sleeping: deque[Wakeup] = deque()

    def __len__(self) -> int:
        return len(self._sleeping)

    def register(self, worker: Wakeup) -> None:
        self._sleeping.append(worker)

    def unregister(self, worker: Wakeup) -> bool:
        """It found work by itself. False: somebody has just woken it, for work that another must now be woken for."""
        try:
            self._sleeping.remove(worker)
        except ValueError:
            return False
        return True

    def wake(self, count: int = 1) -> None:
        """Wake so many, if there are; the one who fell asleep last first, for its memory is still warm."""
        for _ in range(count):
            try:
                worker = self._sleeping.pop()
            except IndexError:
                return
            worker.wake()

    def wake_all(self) -> None:
        self.wake(len(self._sleeping) + 1)
