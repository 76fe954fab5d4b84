"""Follow a run of another process from its folder, as progress events for a display."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ...pool.snapshot import CredentialState
from ...util.private_folder import PrivateFolder
from ..context import build_file_name
from ..exports.event_log import EVENTS_NAME, read_events
from ..failures import decode_facts
from ..journal.entry_kinds import RecordedState
from ..journal.head_file import read_head
from ..journal.journal_files import locate_files
from ..progress import Progress
from ..results import ProgressStats, WorkflowResult
from .item_states import list_items
from .journal_access import query_rows
from .run_report import RunReport, scan_run
from .status import RunStatus, find_owner

_NEW: Final = (
    "select seq, at, kind, item, credential, duration, attempt, error, "
    "case when kind = 'failed' then detail end, "
    "case when kind in ('failed', 'retry', 'limited') then detail ->> '$.trouble' end "
    "from entries where seq > ? order by seq"
)
_TAIL: Final = 4_096  # bytes of a log in which its last line is


class FollowedRun:
    """A run that is on, as its folder tells of it. Other threads may call ``list_...`` and ``last_line`` only."""

    def __init__(self, folder: Path, *, wall: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._files = locate_files(folder)
        self._wall = wall
        report, tally = scan_run(folder, lambda: None, wall=wall)
        self._last = tally.last_entry
        self.stats = _read_stats(report)
        # What was running when an earlier session was killed is not running now.
        began = report.sessions[-1].started_at
        running = ((item.id, item.at or 0.0) for item in list_items(self._files, RecordedState.RUNNING.value))
        self._running = {item_id: at for item_id, at in running if at >= began}
        self._keys: dict[str, CredentialState] = {}
        self.parallel: int | None = None
        self._events_size = -1
        self._events_at = 0.0
        self._read_events()

    @property
    def state(self) -> RunStatus | None:
        """The status of the run with its owner; None once no process owns it."""
        return find_owner(self._files.lock)

    def list_running(self) -> list[tuple[str, float]]:
        """Return the ids of running items with their start (epoch seconds), the oldest first."""
        return sorted(self._running.items(), key=lambda each: each[1])

    def list_keys(self) -> Sequence[CredentialState]:
        """Return the keys, as far as the run has recorded their states."""
        return list(self._keys.values())

    def last_line(self, item_id: str) -> str | None:
        """Return the last line that a running item printed."""
        try:
            with PrivateFolder.at(self._folder) as run, run.enter("logs") as logs:
                file = logs.open(f"{build_file_name(item_id)}.log", os.O_RDONLY)
        except OSError:
            return None
        try:
            size = os.fstat(file).st_size
            lines = os.pread(file, _TAIL, max(0, size - _TAIL)).decode("utf-8", "replace").splitlines()
        finally:
            os.close(file)
        return next((line for line in reversed(lines) if line.strip()), None)

    def begin(self) -> Progress:
        """Return the event with which a display begins."""
        return Progress("run_started", self.stats, message=f"attached to {self._folder.name}")

    def poll(self) -> Iterator[Progress]:
        """Yield what has happened since the last call. Raises JournalError."""
        head = read_head(self._files.head)
        if head is None or head.seq != self._last:
            for row in query_rows(self._files, _NEW, self._last):
                self._last = row[0]
                yield from self._take(*row[1:])
        if self._wall() - self._events_at > 1.0:
            self._read_events()

    def end(self) -> Progress:
        """Return the event with which the display ends."""
        if self.stats.end_time is None:
            self.stats.end_time = self._wall()
        return Progress("run_finished", self.stats)

    def _take(
        self,
        at: float,
        kind: str,
        item: str | None,
        credential: str | None,
        duration: float | None,
        number: int | None,
        error: str | None,
        detail: str | None,
        trouble: str | None,
    ) -> Iterator[Progress]:
        stats = self.stats
        if item is None:
            if kind == "note" and detail:
                stats.stopped_by = detail
            elif kind == "closed":
                stats.end_time = at
            return
        if kind == "start":
            self._running[item] = at
            return
        if kind in ("done", "failed", "retry", "limited", "interrupted", "parked"):
            self._running.pop(item, None)
        stats.limited += trouble == "limited" or (kind == "limited" and trouble is None)
        stats.rejected += trouble == "rejected"
        stats.unreachable += trouble == "unreachable"
        if kind in ("done", "failed"):
            stats.completed += 1
            stats.success_count += kind == "done"
            stats.failed += kind == "failed"
            facts = decode_facts(detail) if kind == "failed" else {}
            result = WorkflowResult(
                item, kind == "done", error, duration or 0.0, facts, attempts=number or 1, credential=credential,
                outcome=kind,
            )  # fmt: skip
            yield Progress("item_finished", stats, item_id=item, result=result)
        elif kind == "retry":
            stats.retried += 1
            yield Progress("item_retried", stats, item_id=item, message=error or "")
        elif kind == "limited":
            yield Progress("item_limited", stats, item_id=item, message=error or "")

    def _read_events(self) -> None:
        """Read the events again if there are new ones: the states of keys, and how many items run at once."""
        self._events_at = self._wall()
        path = self._folder / EVENTS_NAME
        try:
            size = path.stat().st_size
        except OSError:
            return
        if size == self._events_size:
            return
        self._events_size = size
        keys = {name: CredentialState(name) for name in self._list_key_names()}
        for event in read_events(path):
            if event["kind"] == "session":
                keys = {name: CredentialState(name) for name in keys}
                parallel = event.get("parallel")
                self.parallel = parallel if isinstance(parallel, int) else None
            elif event["kind"] == "key" and isinstance(event.get("name"), str):
                keys[event["name"]] = _read_key(event)
        self._keys = keys

    def _list_key_names(self) -> list[str]:
        try:
            with PrivateFolder.at(self._folder) as folder:
                found = json.loads(folder.read("run.json", 64 * 1024 * 1024)).get("keys")
        except (OSError, ValueError, AttributeError):
            return []
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _read_key(event: dict[str, Any]) -> CredentialState:
    until = event.get("until")
    return CredentialState(
        event["name"],
        state=str(event.get("state")),
        rate_limited_until=float(until) if isinstance(until, (int, float)) else 0.0,
        why=str(event.get("why") or ""),
    )


def _read_stats(report: RunReport) -> ProgressStats:
    counts, last = report.counts, report.sessions[-1]
    done, failed = counts[RecordedState.DONE], counts[RecordedState.FAILED]
    return ProgressStats(
        total=report.total,
        completed=done + failed,
        failed=failed,
        success_count=done,
        start_time=last.started_at,
        retried=report.retried,
        limited=report.limited,
        rejected=report.rejected,
        unreachable=report.unreachable,
        cached=max(0, done + failed - last.finished),
        usage=report.usage,
    )
