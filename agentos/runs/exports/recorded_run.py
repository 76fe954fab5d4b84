"""Read a run from its journal, without running anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agentos.errors import JournalUnavailable

from ...costs.usage import NO_USAGE, Usage
from ..journal.entry_kinds import RecordedState
from ..journal.journal_files import JournalFiles, locate_files
from ..report.journal_access import query_rows
from ..report.run_report import build_report
from ..results import ProgressStats, WorkflowResult
from .finished_items import FinishedItems
from .recorded_facts import RecordedFacts

_USED = "select usage from entries where usage is not null"


class RecordedResults:
    """The results in a journal, in the order in which the items finished. Each iteration reads the journal again."""

    def __init__(self, files: JournalFiles) -> None:
        self._files = files

    def __iter__(self) -> Iterator[WorkflowResult]:
        for finished in FinishedItems(self._files).read():
            yield finished.to_result()

    def __len__(self) -> int:
        return len(FinishedItems(self._files))


class RecordedRun:
    """A run as its journal has it: finished, crashed, or still running, and then as far as it is by now.

    ``results`` can be iterated and counted; each result has its ``item``, ``value`` and ``usage``, and
    ``metadata["finished_at"]``. ``path`` is the journal's database.
    """

    def __init__(self, files: JournalFiles) -> None:
        self._files = files
        self.path: Path = files.db
        self.results = RecordedResults(files)

    def __repr__(self) -> str:
        return f"<RecordedRun {str(self.path)!r}>"

    @property
    def state(self) -> str:
        """What has become of it: "running as pid 12", "finished", "stopped by SIGINT", "crashed", ..."""
        return str(build_report(self.path).state)

    @property
    def stats(self) -> ProgressStats:
        """The counts by now. Items that have not begun are in ``total`` only, if the input was a list."""
        report = build_report(self.path)
        counts = report.counts
        done, failed = counts[RecordedState.DONE], counts[RecordedState.FAILED]
        sessions = report.sessions
        stats = ProgressStats(
            total=report.total,
            completed=done + failed,
            failed=failed,
            success_count=done,
            start_time=sessions[0].started_at if sessions else 0.0,
            interrupted=counts[RecordedState.INTERRUPTED],
            parked=counts[RecordedState.PARKED],
            retried=report.retried,
            limited=report.limited,
            stopped_by=report.state.why,
            end_time=sessions[-1].ended_at if sessions else None,
            usage=self._sum_usage(),
        )
        for result in self.results:
            stats.redacted += result.redacted
            stats.not_json += result.value_repr is not None
        return stats

    def _sum_usage(self) -> Usage:
        usages = (RecordedFacts.parse(usage, None).usage for (usage,) in query_rows(self._files, _USED))
        return sum((usage for usage in usages if usage is not None), NO_USAGE)


def load_run(path: str | os.PathLike[str]) -> RecordedRun:
    """Return the run whose folder or journal is at *path*. Nothing is run, locked or changed.

    Raises JournalUnavailable if there is no journal.
    """
    files = locate_files(path)
    if not files.size(files.db):
        raise JournalUnavailable(path=str(files.db), detail="it does not exist")
    return RecordedRun(files)
