"""One session of a run: from the request to the exit code."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import AgentOSError
from ..exit_codes import ExitCode
from ..forced_exit import find_current, return_leases
from ..terminal.log_lines import showing_log
from ..usage_error import UsageError
from .exit_summary import build_next_steps, describe_key_time, exit_code
from .item_worker import build_cluster_options, build_command, build_retry_options, load_function
from .output_files import require_own_files
from .record_files import SessionRecords
from .run_folder import RunFolder, claim_folder
from .run_pool import build_pool

if TYPE_CHECKING:
    from ...errors import InputFailed
    from ...gateway.thread import GatewayThread
    from ...notify.targets import NotifyTarget
    from ...pool.protocols import PoolInterface
    from ...runs.commands.command import Command
    from ...runs.display.eta import PoolForecast
    from ...runs.output.capture import OutputCapture, Redactors
    from ...runs.progress import Progress
    from ...runs.results import ProgressStats, WorkflowResult
    from ...workflows.parallel import CredentialCoordinator, ParallelCoordinator
    from ..gateway.gateway_process import GatewayProcess
    from ..terminal.item_output import LineScreen
    from ..terminal.progress_mode import Reporter
    from .key_monitor import KeyMonitor
    from .request import RunRequest
    from .run_messages import RunMessages
    from .speed_recorder import SpeedFacts

# With --no-wait, a longer cooldown is not waited for; the pool calls such a key parked.
_PARKED_FROM = 600.0

# `timeout 8h agentos run ...` sends SIGTERM twice at once; that counts as one.
_SAME_TERM = 0.3


def run_session(request: RunRequest) -> int:
    """Execute the request, or print its dry run; return the exit code."""
    for warning in request.warnings:
        print(f"agentos: {warning}", file=sys.stderr)
    if request.key_bound is not None and request.option("progress") != "none":
        print(request.key_bound, file=sys.stderr)
    if request.flags.dry_run:
        from .dry_run import print_dry_run

        print_dry_run(request)
        return int(ExitCode.OK)
    with contextlib.ExitStack() as ends:
        return _Session(request, ends).run()


class _Session:
    """Opens the pool, folder, display and records of a run, runs it, and closes them."""

    def __init__(self, request: RunRequest, ends: contextlib.ExitStack) -> None:
        self._request = request
        self._ends = ends
        self._pool: CredentialCoordinator | None = None
        self._runtime: PoolInterface | None = None  # of the pool
        self._redactors: Redactors | None = None
        self._gateway: GatewayThread | GatewayProcess | None = None
        self._coordinator: ParallelCoordinator | None = None
        self._watch: KeyMonitor | None = None
        self._forecast: PoolForecast | None = None
        self._screen: LineScreen | None = None
        self._stdout = sys.stdout  # before PrintCapture replaces it
        self._records: SessionRecords | None = None
        self._owned: RunFolder
        self._has_printed_summary = False
        self._held = False  # the journal cannot be written for now
        self._targets: list[NotifyTarget] = []
        self._messages: RunMessages | None = None
        self._elsewhere: dict[str, Any]
        self._reporter: Reporter
        self._outputs: OutputCapture

    def run(self) -> int:
        """Open everything, run the coordinator and return the exit code."""
        request, ends = self._request, self._ends
        if (forced_exit := find_current()) is not None:
            forced_exit.arm()
        if request.flags.notify or request.settings.notify:
            from .run_messages import find_targets

            self._targets = find_targets(request, os.environ)
        self._pool = build_pool(request)
        if self._pool is not None:
            from ...pool.protocols import runtime_of
            from ...runs.output.stream_redaction import Redaction

            self._runtime = runtime_of(self._pool)
            for target in filter(lambda each: each.url, self._targets):
                self._runtime.masker.add_password(target.url)
            self._redactors = Redaction(self._runtime.masker, self._runtime.get_secret).stream
            ends.callback(self._pool.close)
        command = build_command(request)
        if request.option("gateway"):
            from ..gateway.run_gateway import open_gateway

            self._gateway = open_gateway(request, self._pool, ends)  # first: a module may make its clients on import
        function = None if command is not None else load_function(request, self._redactors, self._masked)
        self._elsewhere = build_cluster_options(request)
        require_own_files(request)
        self._owned = claim_folder(request)
        ends.callback(self._owned.release)
        if self._gateway is not None:
            from ..gateway.run_gateway import recall_sessions

            recall_sessions(self._gateway, self._owned.folder)
        self._show()
        return self._run_coordinator(command, function)

    def _masked(self, text: str) -> str:
        return text if self._runtime is None else self._runtime.masked(text)

    # -- display ----------------------------------------------------------------------------------------------

    def _show(self) -> None:
        """Build the progress display, the item output and the key monitor."""
        from ...runs.output.capture import OutputCapture
        from ..terminal.item_output import build_screen
        from ..terminal.progress_mode import build_reporter

        request, flags, pool = self._request, self._request.flags, self._pool
        if pool is not None:
            from ...runs.display.eta import PoolForecast
            from .key_monitor import KeyMonitor

            self._forecast = PoolForecast(pool, request.parallel)
            self._watch = KeyMonitor(
                pool,
                idle=self._waiting,
                unreachable=self._unreachable,
                on_change=self._on_key_change,
                on_tick=self._note_waiting,
            )
        self._reporter = build_reporter(
            request.option("progress"),
            stream=sys.stderr,
            stdout=sys.stdout,
            environ=os.environ,
            colour_flag=flags.color,
            run_name=request.name,
            keys=None if self._watch is None else self._watch.rows,
            parallel=request.parallel,
            waiting=self._waiting,
            forecast=self._forecast,
            running=self._running,
            last_line=self._last_line,
        )
        self._ends.callback(self._reporter.close)
        if (forced_exit := find_current()) is not None:
            forced_exit.restore_terminal = self._reporter.close
        self._screen = build_screen(
            tag=request.option("tag"),
            group=request.option("group"),
            keep_order=request.option("keep_order"),
            quiet=flags.quiet,
            json=flags.json,
            write=self._reporter.write_above,
        )
        if self._screen is not None:
            self._ends.callback(self._screen.close)
        self._outputs = OutputCapture(request.folder / "logs", self._redactors, self._screen, folder=self._owned.folder)

    def _waiting(self) -> int:
        if self._gateway is not None:
            return self._gateway.waiting_requests
        return 0 if self._coordinator is None else self._coordinator.get_waiting()

    def _unreachable(self) -> tuple[float | None, str]:
        stats = None if self._coordinator is None else self._coordinator.stats
        return (None, "") if stats is None else (stats.unreachable_since, stats.unreachable_why)

    def _running(self) -> list[tuple[str, float]]:
        now = time.time()
        running = [] if self._coordinator is None else self._coordinator.get_running()
        return [(item_id, now - seconds) for item_id, seconds in running]

    def _last_line(self, item_id: str) -> str | None:
        return self._outputs.last_line(item_id)

    def _speed_facts(self) -> SpeedFacts | None:
        """Return what decides the speed now; None before the run begins."""
        from .speed_recorder import collect_facts

        rows = () if self._watch is None else self._watch.rows()
        return collect_facts(self._coordinator, self._request, rows, held=self._held)

    def _on_key_change(self, name: str, state: str, until: float | None, why: str) -> None:
        if self._records is not None:
            self._records.on_key_change(name, state, until, why)

    def _note_waiting(self) -> None:
        if self._records is not None:
            self._records.note_waiting()

    def _on_event(self, event: Progress) -> None:
        """Show and record a progress event of the run."""
        if self._forecast is not None:
            self._forecast.note(event)
        self._reporter(event)
        self._has_printed_summary = event.kind == "run_finished"
        if event.kind in ("held", "going_on"):
            self._held = event.kind == "held"
        if event.kind == "stopping" and self._messages is not None:
            self._messages.note_stopping(event.stats.stopped_by or event.message)
        if self._records is not None:
            self._records.on_event(event)
        if self._watch is not None and event.kind == "item_limited":
            self._watch.wake()

    def _print(self, text: str) -> None:
        """Print lines above the live display, if there is one."""
        above = self._reporter.write_above
        try:
            if above is not None:
                above("stderr", text)
            else:
                sys.stderr.write(text)
                sys.stderr.flush()
        except (OSError, ValueError):
            pass

    # -- the run ----------------------------------------------------------------------------------------------

    def _run_coordinator(self, command: Command | None, function: Callable[..., Any] | None) -> int:
        from ...errors import InputFailed

        request = self._request
        self._coordinator = coordinator = self._new_coordinator(command)
        worker = self._worker(command, function)
        raised_by_signal: BaseException | None = None
        refused = explained = None
        without_display = request.option("progress") == "none"
        log_lines = showing_log(
            self._print, self._masked, without_display=without_display, verbose=request.flags.verbose
        )
        with _treat_hangup_as_term(), log_lines:
            try:
                for result in coordinator.stream(request.items, worker, request.id_of):
                    self._take(result)
            except (KeyboardInterrupt, SystemExit) as error:
                raised_by_signal = error
            except InputFailed as error:
                refused = error
            except AgentOSError as error:
                explained = self._explained(error)
        if explained is not None:
            self._break_off(coordinator.stats, explained)
            raise explained
        if (forced_exit := find_current()) is not None:
            forced_exit.end_on_signal()
            if forced_exit.must_exit:
                return_leases()  # before anything that a full pipe may block
        if coordinator.stats is None or self._records is None:  # a signal came before the run began
            return int(ExitCode.TERMINATED if isinstance(raised_by_signal, SystemExit) else ExitCode.INTERRUPTED)
        if self._watch is not None:
            self._watch.refresh()
        self._records.note_waiting()
        return self._close(self._records, coordinator.stats, raised_by_signal, refused)

    def _begin(self, command: Command | None) -> None:
        """Open the other files of the run; called when its journal is open and checked."""
        self._owned.write_card(self._request)
        if self._request.flags.begun_pipe is not None:
            from .detached_run import report_begun

            report_begun(
                self._request.flags.begun_pipe, self._owned.folder, self._request.name, self._build_folder_option()
            )
        self._records = SessionRecords(self._request, self._owned.folder, self._masked, command, self._stdout)
        self._ends.callback(self._records.close)
        self._records.on_begin(os.getpid(), self._watch)
        if (forced_exit := find_current()) is not None and command is None and self._request.engine is None:
            forced_exit.watch_signals(self._request.option("grace"), _SAME_TERM)
        if self._watch is not None:
            self._watch.start()
            self._ends.callback(self._watch.close)
        from .speed_recorder import SpeedRecorder

        self._start_messages()
        observe = None if self._messages is None else self._messages.observe
        recorder = SpeedRecorder(self._speed_facts, self._records.write_record, on_sample=observe)
        recorder.start()
        self._ends.callback(recorder.close)

    def _start_messages(self) -> None:
        if self._targets:
            from .run_messages import RunMessages

            self._messages = RunMessages(self._request, self._targets, self._build_resume_command(), self._masked)
            self._ends.callback(self._messages.close)

    def _new_coordinator(self, command: Command | None) -> ParallelCoordinator:
        from ...workflows.parallel import ParallelCoordinator

        request, option = self._request, self._request.option
        reopen = request.flags.typed.reopen
        return ParallelCoordinator(
            request.parallel,
            self._pool,
            max_parallelism=request.parallel,
            provider="any",  # the keys have been chosen
            lease="item" if self._gateway is None else "call",
            journal=self._owned.folder,
            retries=2 if option("retries") is None else option("retries"),
            timeout=option("timeout"),
            grace=option("grace"),
            term_window=_SAME_TERM,
            halt=option("halt"),
            deadline=request.deadline,
            max_wait=_PARKED_FROM if option("no_wait") else None,
            retry_failed=request.flags.retry_failed,
            reopen=() if reopen is None else reopen.ids,
            reopen_changed=reopen is not None and reopen.changed,
            results_file=False,  # SessionRecords writes it
            accept_loss=request.flags.force,
            accept_worker=request.flags.new_command,
            on_begin=partial(self._begin, command),
            on_progress=self._on_event,
            **build_retry_options(request),
            **self._elsewhere,
        )

    def _worker(self, command: Command | None, function: Callable[..., Any] | None) -> Any:
        """Return the worker, with its output captured."""
        if command is not None:
            return replace(command, outputs=self._outputs, access=self._gateway)
        assert function is not None  # noqa: S101 - for the type checker: there is one or the other
        from .worker_function import find_journal_name, find_worker_folder

        if self._request.engine is not None:
            from ..terminal.remote_prints import ship_function

            named = str(self._request.flags.worker)
            return ship_function(function, find_journal_name(named), find_worker_folder(named), self._outputs)
        from ..terminal.print_capture import PrintCapture

        prints = PrintCapture(self._outputs, all_to_stderr=self._request.flags.json, write=self._reporter.write_above)
        wrapped = self._ends.enter_context(prints).wrap(function, find_journal_name(str(self._request.flags.worker)))
        setattr(wrapped, "__agentos_access__", self._gateway)  # noqa: B010 - the run records its requests
        return wrapped

    def _take(self, result: WorkflowResult) -> None:
        if self._records is not None:
            self._records.add_result(result)
        if self._screen is not None:
            self._screen.item_settled(result.index)
        elif not result.success and not result.cached:
            from ...runs.failures import describe_result
            from ..terminal.item_output import failure_block

            facts = result.metadata
            tail = facts.get("tail") or (facts.get("traceback") or "").splitlines()
            self._print(failure_block(result.item_id, describe_result(result), tail))

    def _explained(self, error: AgentOSError) -> UsageError:
        """Return a UsageError for an error of the run, with a hint."""
        from ...errors import (
            DuplicateItems,
            EngineUnavailable,
            JournalDamaged,
            JournalInUse,
            JournalMismatch,
            JournalUnavailable,
        )

        hint = None
        if isinstance(error, JournalMismatch):
            hint = "--fresh starts over, --name makes it another run"
            if error.what == "worker":
                hint = f"--new-command continues with it, {hint}"
            elif self._request.source["kind"] != "stdin":
                name = shlex.quote(self._request.name) + self._build_folder_option()
                hint = f"agentos retry {name} --changed  runs the changed items again\n{hint}"
        elif isinstance(error, JournalDamaged):
            hint = "--force continues with the sound part; missing items run again"
        elif isinstance(error, JournalInUse):
            hint = "wait for it, or give this run another --name"
        elif isinstance(error, DuplicateItems):
            hint = "name the field that is unique with --id FIELD"
        elif isinstance(error, EngineUnavailable):
            hint = "start it, or run here: --engine local"
        code = ExitCode.INTERNAL if isinstance(error, (JournalUnavailable, EngineUnavailable)) else ExitCode.USAGE
        return UsageError(self._masked(str(error)), hint, code)

    def _break_off(self, stats: ProgressStats | None, refusal: UsageError) -> None:
        """Close a run that ends by an error after it began, and record the end."""
        if stats is None or self._records is None:
            return
        self._records.note_waiting()
        self._end_messages(int(refusal.code), stats)
        self._ends.pop_all().close()
        self._records.on_end(stats, refusal.code)

    def _close(
        self,
        records: SessionRecords,
        stats: ProgressStats,
        raised_by_signal: BaseException | None,
        refused: InputFailed | None,
    ) -> int:
        code = exit_code(stats, raised_by_signal, total=self._request.total) if refused is None else ExitCode.USAGE
        if self._request.total is None and stats.total == 0 and code is ExitCode.OK:
            code = ExitCode.USAGE  # as for an empty file: the program that should write them may have failed
            self._print("agentos: no items came on standard input\n")
        self._end_messages(int(code), stats)
        self._ends.pop_all().close()  # before the summary, which is printed below the display
        records.on_end(stats, code)
        output_errors = [] if self._screen is None else self._screen.list_errors()
        for output_error in output_errors:
            self._print(f"agentos: {output_error}\n")
        if records.error is not None:
            self._print(f"agentos: {records.error}\n")
        if code is ExitCode.OK and (output_errors or records.error is not None):
            code = ExitCode.OUTPUT
        if raised_by_signal is None and not self._write_report() and code is ExitCode.OK:
            code = ExitCode.OUTPUT
        if refused is not None:
            self._print(f"agentos: {self._masked(str(refused.__cause__ or refused))}\n")
        request = self._request
        if request.option("progress") not in ("none", "json") and not request.flags.json:
            retried = request.flags.retry_failed
            name = shlex.quote(request.name) + self._build_folder_option()
            again = retry = self._build_resume_command("--retry-failed")  # without it, failed items would not run
            if not retried:
                again = self._build_resume_command()
                retry = retry if request.source["kind"] == "stdin" else f"agentos retry {name}"
            if not self._has_printed_summary:  # the progress thread had no time for it
                from ...runs.display.phrases import format_closing

                self._print("".join(f"{line}\n" for line in format_closing(stats, request.name)))
            words = [] if self._watch is None else describe_key_time(self._watch.key_time())
            words += build_next_steps(stats, code, name=name, again=again, retry=retry, retried=retried)
            self._print("".join(f"{line}\n" for line in words))
        return int(code)

    def _end_messages(self, code: int, stats: ProgressStats) -> None:
        if self._messages is not None:
            self._messages.end(code, stats)

    def _write_report(self) -> bool:
        """Write the page that ``--report`` asks for; return False if it cannot be written, and say so."""
        target = self._request.option("report")
        if target is None:
            return True
        from pathlib import Path

        from ...page.report_file import write_report

        try:
            write_report(self._owned.folder.path, Path(target))
        except (OSError, AgentOSError) as error:
            reason = getattr(error, "strerror", None) or self._masked(str(error))
            self._print(f"agentos: the report cannot be written to {target}: {reason}\n")
            return False
        self._print(f"report: {target}\n" if self._request.option("progress") not in ("none", "json") else "")
        return True

    def _build_folder_option(self) -> str:
        """Return the ``--dir`` option that other commands need to find the run, if it was typed."""
        typed = self._request.flags.options["dir"]
        return "" if typed is None else f" --dir {shlex.quote(typed)}"

    def _build_resume_command(self, *more: str) -> str:
        """Return the command that continues the run; items of standard input must be piped again."""
        typed = "agentos run " + shlex.join(self._request.flags.typed.resume_arguments_with(*more))
        return f"... | {typed}" if self._request.source["kind"] == "stdin" else typed


@contextlib.contextmanager
def _treat_hangup_as_term() -> Iterator[None]:
    """Treat SIGHUP as SIGTERM during the run, unless it is ignored (nohup)."""
    from ...runs.execution.signal_watcher import WATCH

    # Not by a Python handler: if another thread gets the signal, it runs only when the main thread wakes up.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        WATCH.meanings[signal.SIGHUP] = signal.SIGTERM
    try:
        yield
    finally:
        WATCH.meanings.pop(signal.SIGHUP, None)
