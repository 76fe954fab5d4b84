"""Publish the results and events of a run, and limit how many results may wait for that."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ..context import CheckpointFolder
from ..core.records import Item
from ..exports.results_file import ResultsFile
from ..progress import Progress, ProgressDispatcher
from ..results import WorkflowResult
from .run_state import RunState

_MAX_UNPUBLISHED = 1_024  # results that wait to be recorded or taken; beyond it nothing starts
MAX_SHOWN = 20  # names of items, where there may be thousands


class ResultPublisher:
    """Publishes results: noted under the run's lock, announced outside it, taken by the run's caller."""

    def __init__(self, state: RunState, wakeup: Any, folder: CheckpointFolder, *, streamed: bool) -> None:
        self._state = state
        self._lock = state.lock
        self._stats = state.stats
        self._running = state.scheduler.running
        self.wakeup = wakeup  # wakes the caller that waits for the run
        self.folder = folder
        self.progress = ProgressDispatcher(state.options.on_progress)
        self.wants_items = self.progress.wants_items
        self.listening = False  # the caller waits for a single result, not only for the end
        self.results_file: ResultsFile | None = None
        self._streamed = streamed
        self._results: list[WorkflowResult] = []
        self._finished = None if state.stats.total is None else bytearray(state.stats.total)
        self.unpublished = 0  # results made, and not yet published
        self._unpublished_ids: dict[int, str] = {}  # index and id of those, where the input is not a list
        self.announcing: deque[None] = deque()  # one per thread that has noted an end and not yet announced it
        self._backlogged = False

    def is_paused(self) -> bool:
        """True if nothing may start for now: the journal cannot be written, or too many results are unpublished."""
        if self._state.pause_reason is not None:
            return True
        if self.unpublished < _MAX_UNPUBLISHED and not (
            self._streamed and self._count_unpublished() >= _MAX_UNPUBLISHED
        ):
            return False
        # Set the flag first, then check again: a thread that makes room after the check sees the flag and wakes the
        # workers.
        self._backlogged = True
        return self._count_unpublished() >= _MAX_UNPUBLISHED

    def _count_unpublished(self) -> int:
        return self.unpublished + (len(self._results) if self._streamed else 0)

    def note_unpublished(self, item: Item) -> None:
        """Note a result that must be recorded before it is published. The caller holds the lock."""
        self.unpublished += 1
        if self._finished is None:
            self._unpublished_ids[item.index] = item.id

    def note_published(self, results: Sequence[WorkflowResult]) -> None:
        """Note results that may be published. The caller holds the lock."""
        stats, finished = self._stats, self._finished
        count = len(results)
        failed = 0
        for result in results:
            if not result.success:
                failed += 1
            if result.redacted or result.value_repr is not None:
                self._count_facts(result)
            if finished is not None:
                finished[result.index] = 1
            elif self._unpublished_ids:
                self._unpublished_ids.pop(result.index, None)
        self.unpublished -= count
        stats.completed += count
        stats.failed += failed
        stats.success_count += count - failed
        self._results += results

    def note_success(self, result: WorkflowResult) -> None:
        """Note a success that is published at once: the hot path without a journal. The caller holds the lock."""
        stats = self._stats
        stats.completed += 1
        stats.success_count += 1
        if self._finished is not None:
            self._finished[result.index] = 1
        self._results.append(result)

    def _count_facts(self, result: WorkflowResult) -> None:
        stats = self._stats
        stats.redacted += result.redacted
        stats.not_json += result.value_repr is not None

    def write_results(self, results: Sequence[WorkflowResult]) -> None:
        """Write results that are on disk to the results file, if there is one: before anybody is told of them."""
        if self.results_file is not None:
            self.results_file.add_all(results, self._state.clock.wall())

    def announce(self, results: Sequence[WorkflowResult]) -> None:
        """Announce noted results, outside the lock: wake the caller that waits for them, and emit their events."""
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
                self.emit("item_finished", "", result.item_id, result)

    def add_cached(self, results: Sequence[WorkflowResult]) -> None:
        """Add results of an earlier run."""
        with self._lock:
            self.unpublished += len(results)
            self._stats.cached += len(results)
            self.note_published(results)
        if self.listening:
            self.listening = False
            self.wakeup.wake()

    def take_results(self) -> list[WorkflowResult]:
        """Return the results published since the last call."""
        with self._lock:
            results, self._results = self._results, []
        if self._backlogged:
            self.unblock()
        return results

    def unblock(self) -> None:
        """Wake the workers that wait for room, once there is enough for all of them."""
        if self._count_unpublished() > _MAX_UNPUBLISHED // 2 and not self._state.is_over:
            return
        self._backlogged = False
        self._state.idle.wake_all()
        self._state.on_room()

    def request_wakeup(self) -> bool:
        """Request a wake-up for the next result. False: there are some already, or there will be no more."""
        self.listening = True
        if self._results or self._state.is_over:
            self.listening = False
            return False
        return True

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    def unfinished(self, ids: Sequence[str] | None) -> list[str]:
        """Return the ids of items that are neither done nor failed, in order. *ids*: of all items, if known."""
        if self._finished is not None and ids is not None:
            return [item_id for item_id, done in zip(ids, self._finished, strict=True) if not done]
        with self._lock:
            scheduler = self._state.scheduler
            items = [
                *scheduler.waiting_items(),
                *scheduler.admitted,
                *(attempt.item for attempt in scheduler.running.values()),
            ]
            items += scheduler.interrupted_items
            found = {item.index: item.id for item in items} | self._unpublished_ids
        return [found[index] for index in sorted(found)]

    def emit(
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
        self.progress.emit(Progress(kind, self._stats, item_id, result, message, running))
