"""What a run tells, to whom, and how much of it may wait to be told."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..context import CheckpointFolder
from ..core.records import Attempt, Item
from ..options import RunOptions
from ..progress import Announcer, Progress
from ..results import ProgressStats, WorkflowResult
from .idle_workers import IdleWorkers

_MOST_UNTOLD = 1_024  # results that wait to be written down or taken; beyond it nothing more is begun
SHOWN = 20  # names of items, where there may be thousands


class Outlet:
    """Where results come out: they are noted under the run's lock, told outside it, and taken by the one who waits."""

    def __init__(
        self, options: RunOptions, stats: ProgressStats, bell: Any, folder: CheckpointFolder, *, streamed: bool
    ) -> None:
        self.options = options
        self.stats = stats
        self.bell = bell  # wakes the one who waits for the run
        self.lock = threading.Lock()
        self.idle = IdleWorkers()
        self.folder = folder
        self.announcer = Announcer(options.on_progress)
        self._wants_items = self.announcer.wants_items
        self.running: dict[int, Attempt] = {}  # the board's
        self.on_room: Callable[[], object] = int  # tells an input that comes by itself that there is room
        self._listening = False  # somebody waits for a single result, not only for the end
        self._streamed = streamed
        self._results: list[WorkflowResult] = []
        self._finished = None if stats.total is None else bytearray(stats.total)
        self._untold = 0  # results made, and not yet published
        self._unwritten: dict[int, str] = {}  # index and id of those, where the input is no list
        self._telling: deque[None] = deque()  # one for each who has noted an end under the lock, and now tells of it
        self._backlogged = False
        self.held: str | None = None  # why nothing may begin for now
        self.over = False  # nothing runs, and all results are published and told of, or given up

    def pausing(self) -> bool:
        """Whether nothing may begin for now: the journal is in trouble, or results pile up."""
        if self.held is not None:
            return True
        if self._untold < _MOST_UNTOLD and not (self._streamed and self._waiting_to_be_told() >= _MOST_UNTOLD):
            return False
        # Said first, then looked again: whoever makes room after that look will find it said, and wake us.
        self._backlogged = True
        return self._waiting_to_be_told() >= _MOST_UNTOLD

    def _waiting_to_be_told(self) -> int:
        return self._untold + (len(self._results) if self._streamed else 0)

    def note_untold(self, item: Item) -> None:
        """Under the lock: its result is made, and may not be told before it is written down."""
        self._untold += 1
        if self._finished is None:
            self._unwritten[item.index] = item.id

    def note_published(self, results: Sequence[WorkflowResult]) -> None:
        """Under the lock: these may be told."""
        stats, finished = self.stats, self._finished
        count = len(results)
        failed = 0
        for result in results:
            if not result.success:
                failed += 1
            if finished is not None:
                finished[result.index] = 1
            elif self._unwritten:
                self._unwritten.pop(result.index, None)
        self._untold -= count
        stats.completed += count
        stats.failed += failed
        stats.success_count += count - failed
        self._results += results

    def note_success(self, result: WorkflowResult) -> None:
        """The same for one that was made this moment, and is told at once: the way of every item without a journal."""
        stats = self.stats
        stats.completed += 1
        stats.success_count += 1
        if self._finished is not None:
            self._finished[result.index] = 1
        self._results.append(result)

    def tell(self, results: Sequence[WorkflowResult]) -> None:
        """Outside the lock, after they were noted: wake who waits for them, and let them be heard of."""
        if self._listening:
            self._listening = False
            self.bell.ring()
        if self._backlogged and not self._streamed:
            self.unblock()
        if self.folder.used:
            for result in results:
                if result.success:
                    self.folder.item_done(result.item_id)
        for result in results:
            if self._wants_items or not result.success:
                self._say("item_finished", "", result.item_id, result)

    def cached(self, results: Sequence[WorkflowResult]) -> None:
        """Results of an earlier run."""
        with self.lock:
            self._untold += len(results)
            self.stats.cached += len(results)
            self.note_published(results)
        if self._listening:
            self._listening = False
            self.bell.ring()

    def take(self) -> list[WorkflowResult]:
        """The results published since the last time."""
        with self.lock:
            results, self._results = self._results, []
        if self._backlogged:
            self.unblock()
        return results

    def unblock(self) -> None:
        """Let those go on who wait for room, once there is enough of it for all of them."""
        if self._waiting_to_be_told() > _MOST_UNTOLD // 2 and not self.over:
            return
        self._backlogged = False
        self.idle.wake_all()
        self.on_room()

    def listen(self) -> bool:
        """Ring the bell for the next result. False: there are some already, or there will be no more."""
        self._listening = True
        if self._results or self.over:
            self._listening = False
            return False
        return True

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    def _say(
        self,
        kind: str,
        message: str,
        item_id: str | None = None,
        result: WorkflowResult | None = None,
        running: tuple[str, ...] = (),
    ) -> None:
        if not running and self._wants_items:
            with self.lock:
                running = tuple(a.item.id for a, _ in zip(self.running.values(), range(SHOWN), strict=False))
        self.announcer.say(Progress(kind, self.stats, item_id, result, message, running))
