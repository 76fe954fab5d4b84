"""Publish the results and events of a run, and limit how many results may wait for that."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ..context import CheckpointFolder
from ..core.records import Item
from ..progress import Progress, ProgressDispatcher
from ..results import WorkflowResult
from .run_state import RunState

_MAX_UNPUBLISHED = 1_024  # results that wait to be written down or taken; beyond it nothing more is begun
MAX_SHOWN = 20  # names of items, where there may be thousands


class ResultPublisher:
    """Results are noted under the run's lock, announced outside it, and taken by the caller that waits for the run."""

    def __init__(self, state: RunState, bell: Any, folder: CheckpointFolder, *, streamed: bool) -> None:
        self._state = state
        self._lock = state.lock
        self._stats = state.stats
        self._running = state.scheduler.running
        self.wakeup = bell  # wakes the caller that waits for the run
        self.folder = folder
        self.announcer = ProgressDispatcher(state.options.on_progress)
        self.wants_items = self.announcer.wants_items
        self.listening = False  # the caller waits for a single result, not only for the end
        self._streamed = streamed
        self._results: list[WorkflowResult] = []
        self._finished = None if state.stats.total is None else bytearray(state.stats.total)
        self.untold = 0  # results made, and not yet published
        self._unwritten: dict[int, str] = {}  # index and id of those, where the input is no list
        self.telling: deque[None] = deque()  # one for each who has noted an end under the lock, and now tells of it
        self._backlogged = False

    def is_paused(self) -> bool:
        """Whether nothing may begin for now: the journal is in trouble, or results pile up."""
        if self._state.pause_reason is not None:
            return True
        if self.untold < _MAX_UNPUBLISHED and not (self._streamed and self._count_unpublished() >= _MAX_UNPUBLISHED):
            return False
        # Said first, then looked again: whoever makes room after that look will find it said, and wake us.
        self._backlogged = True
        return self._count_unpublished() >= _MAX_UNPUBLISHED

    def _count_unpublished(self) -> int:
        return self.untold + (len(self._results) if self._streamed else 0)

    def note_unpublished(self, item: Item) -> None:
        """Under the lock: its result is made, and may not be told before it is written down."""
        self.untold += 1
        if self._finished is None:
            self._unwritten[item.index] = item.id

    def note_published(self, results: Sequence[WorkflowResult]) -> None:
        """Under the lock: these may be told."""
        stats, finished = self._stats, self._finished
        count = len(results)
        failed = 0
        for result in results:
            if not result.success:
                failed += 1
            if finished is not None:
                finished[result.index] = 1
            elif self._unwritten:
                self._unwritten.pop(result.index, None)
        self.untold -= count
        stats.completed += count
        stats.failed += failed
        stats.success_count += count - failed
        self._results += results

    def note_success(self, result: WorkflowResult) -> None:
        """The same for one that was made this moment, and is told at once: the way of every item without a journal."""
        stats = self._stats
        stats.completed += 1
        stats.success_count += 1
        if self._finished is not None:
            self._finished[result.index] = 1
        self._results.append(result)

    def announce(self, results: Sequence[WorkflowResult]) -> None:
        """Outside the lock, after they were noted: wake who waits for them, and let them be heard of."""
        if self.listening:
            self.listening = False
            self.wakeup.wake()
        if self._backlogged and not self._streamed:
            self.unblock()
        if self.folder.used:
            for result in results:
                if result.success:
                    self.folder.item_done(result.item_id)
        for result in results:
            if self.wants_items or not result.success:
                self.say("item_finished", "", result.item_id, result)

    def add_cached(self, results: Sequence[WorkflowResult]) -> None:
        """Results of an earlier run."""
        with self._lock:
            self.untold += len(results)
            self._stats.cached += len(results)
            self.note_published(results)
        if self.listening:
            self.listening = False
            self.wakeup.wake()

    def take_results(self) -> list[WorkflowResult]:
        """The results published since the last time."""
        with self._lock:
            results, self._results = self._results, []
        if self._backlogged:
            self.unblock()
        return results

    def unblock(self) -> None:
        """Let those go on who wait for room, once there is enough of it for all of them."""
        if self._count_unpublished() > _MAX_UNPUBLISHED // 2 and not self._state.is_over:
            return
        self._backlogged = False
        self._state.idle.wake_all()
        self._state.on_room()

    def request_wakeup(self) -> bool:
        """Ring the bell for the next result. False: there are some already, or there will be no more."""
        self.listening = True
        if self._results or self._state.is_over:
            self.listening = False
            return False
        return True

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    def unfinished(self, ids: Sequence[str] | None) -> list[str]:
        """The ids of the items that are neither done nor failed, in order. *ids*: of all items, if they are known."""
        if self._finished is not None and ids is not None:
            return [item_id for item_id, done in zip(ids, self._finished, strict=True) if not done]
        with self._lock:
            board = self._state.scheduler
            items = [*board.waiting_items(), *board.admitted, *(attempt.item for attempt in board.running.values())]
            items += board.interrupted_items
            found = {item.index: item.id for item in items} | self._unwritten
        return [found[index] for index in sorted(found)]

    def say(
        self,
        kind: str,
        message: str,
        item_id: str | None = None,
        result: WorkflowResult | None = None,
        running: tuple[str, ...] = (),
    ) -> None:
        if not running and self.wants_items:
            with self._lock:
                running = tuple(a.item.id for a, _ in zip(self._running.values(), range(MAX_SHOWN), strict=False))
        self.announcer.emit(Progress(kind, self._stats, item_id, result, message, running))
