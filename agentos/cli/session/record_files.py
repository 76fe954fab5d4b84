"""Write the records of a session besides the journal: results, joblog, events, JSON on standard output."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from ...runs.commands.command import Command
    from ...runs.progress import Progress
    from ...runs.results import ProgressStats, WorkflowResult
    from ...util.private_folder import PrivateFolder
    from ..exit_codes import ExitCode
    from .key_monitor import KeyMonitor
    from .request import RunRequest

_EVENTS = ("item_retried", "item_limited", "stopping", "held", "going_on", "unreachable", "reachable")


class SessionRecords:
    """Writes results and events, after the run's folder is claimed."""

    def __init__(
        self,
        request: RunRequest,
        folder: PrivateFolder,
        masked: Callable[[str], str],
        command: Command | None,
        stdout: TextIO | None,
    ) -> None:
        from ...runs.exports.event_log import EVENTS_NAME, EventLog
        from ...runs.exports.joblog import JobLog
        from ...runs.exports.results_file import RESULTS_NAME, ResultsFile

        self._request = request
        self._masked = masked
        self._command = command
        self._began = time.time()
        self._stdout = stdout
        self._stdout_is_gone = stdout is None
        self.error: str | None = None  # what could not be written
        self._watch: KeyMonitor | None = None
        more, joblog, retried = request.option("results"), request.option("joblog"), request.flags.retry_failed
        self._events = EventLog(folder.path / EVENTS_NAME, folder=folder)
        shared: dict[str, Any] = {"retry_failed": retried, "with_items": not request.option("no_item")}
        self._results = [ResultsFile(folder.path / RESULTS_NAME, folder, folder=folder, **shared)]
        if more:
            self._results.append(ResultsFile(Path(more), folder, **shared))
        self._joblog = JobLog(Path(joblog)) if joblog else None

    def close(self) -> None:
        for results in self._results:
            if not results.close():
                self.error = f"{results.path} lacks results; the journal has them, and the same command rewrites it"
        if self._joblog is not None:
            self._joblog.close()
        self._events.close()

    # -- events -------------------------------------------------------------------------------------------------

    def on_begin(self, pid: int, watch: KeyMonitor | None) -> None:
        """Record the start of the session; *watch* monitors the keys."""
        self._watch = watch
        self._events.write("session", pid=pid, parallel=self._request.parallel)
        request = self._request
        self._write_event("start", run=request.name, folder=str(request.folder), total=request.total)

    def on_event(self, event: Progress) -> None:
        """Record a progress event of the run."""
        if event.kind in _EVENTS:
            facts = {"item": event.item_id, "why": event.message}
            self._events.write(event.kind, **{name: fact for name, fact in facts.items() if fact})

    def on_key_change(self, name: str, state: str, until: float | None, why: str) -> None:
        """Record a change of a key's state."""
        self._events.write("key", name=name, state=state, until=until, why=why)

    def write_record(self, kind: str, /, **facts: Any) -> None:
        """Record an event of *kind*."""
        self._events.write(kind, **facts)

    def note_waiting(self) -> None:
        """Record the time lost waiting so far, by key. Called periodically, so that a crash loses little of it."""
        if self._watch is not None:
            seconds, by_key = self._watch.totals()
            time_of_keys = self._watch.key_time().as_json()
            self._events.write("waiting", seconds=seconds, by_key=by_key, session=self._began, **time_of_keys)

    # -- results ------------------------------------------------------------------------------------------------

    def add_result(self, result: WorkflowResult) -> None:
        """Write a result, which is in the journal, to all requested outputs."""
        now = time.time()
        for file in self._results:
            file.add(result, now)
        if self._joblog is not None:
            printed = result.value.get("stdout", "") if isinstance(result.value, dict) else ""
            self._joblog.add(
                result,
                command=self._described(result),
                started_at=now - result.duration,
                received=len(str(printed).encode()),
            )
        if self._request.flags.json:
            from ...runs.exports.item_codec import LONGEST_IN_RESULTS
            from ...runs.exports.result_line import format_result

            longest_item = 0 if self._request.option("no_item") else LONGEST_IN_RESULTS
            line = format_result(result, result.metadata.get("finished_at", now), longest_item)
            self._print(f'{{"event": "item", "cached": {json.dumps(result.cached)}, {line[1:]}')

    def on_end(self, stats: ProgressStats, code: ExitCode) -> None:
        """Write the final JSON event."""
        self._write_event(
            "done",
            run=self._request.name,
            exit=int(code),
            done=stats.success_count,
            failed=stats.failed,
            total=stats.total,
            cached=stats.cached,
            left=stats.unfinished,
            stopped_by=stats.stopped_by,
            wakes_at=stats.wakes_at,
            seconds=round(stats.elapsed, 3),
            retried=stats.retried,
            limited=stats.limited,
            rejected=stats.rejected,
            unreachable=stats.unreachable,
            unreachable_since=stats.unreachable_since,
            usage=stats.usage.to_json(),
        )

    def _described(self, result: WorkflowResult) -> str:
        if self._command is None:
            return f"{self._request.flags.worker} {result.item_id}"
        try:
            item = self._request.items[result.index]  # type: ignore[index]
            filled = self._command.template.fill(item, result.item_id, result.index + 1)
            return shlex.join(map(self._masked, filled))
        except (TypeError, ValueError, LookupError):
            return shlex.join(self._command.argv)  # an item of standard input, or one that does not fit

    def _write_event(self, event: str, **facts: Any) -> None:
        if self._request.flags.json:
            self._print(json.dumps({"event": event, **facts}))

    def _print(self, line: str) -> None:
        if not self._stdout_is_gone:
            try:
                print(line, file=self._stdout, flush=True)
            except (OSError, ValueError) as error:
                self._stdout_is_gone = True  # the run goes on
                if not isinstance(error, BrokenPipeError):  # else the reader closed the pipe
                    self.error = f"standard output cannot be written: {getattr(error, 'strerror', None) or error}"
