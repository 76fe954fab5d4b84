"""The demo: a run that is killed half-way, the same command again, the report, and the checks."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...util.durations import format_duration
from ...util.terminal import is_terminal
from ..exit_codes import ExitCode
from ..terminal.color import use_color
from ..terminal.phrases import BOLD, CYAN, DIM, GREEN, RED, Paint, align_table, format_count
from ..usage_error import UsageError
from .checks import Evidence, check_promises
from .demo_folder import RUN, DemoFolder
from .demo_provider import DEAD, ORGANISATIONS, build_provider, count_slots

if TYPE_CHECKING:
    from ...simulator import Running

_POLL_INTERVAL: Final = 0.02
_TERM_TIMEOUT: Final = 1.0  # after SIGTERM; then it is sent once more
_SHOW_CURSOR: Final = "\x1b[?25h"


def run_demo(items: int, *, keep: bool) -> ExitCode:
    """Run the demo. At any end no process is left, and without *keep* no file."""
    began = time.monotonic()
    with _ending_on_signals(), _folder(keep=keep) as path, _served(items) as simulator:
        folder = DemoFolder(path)
        page = path / "report.html" if keep else path.with_suffix(".html")
        try:
            folder.fill(simulator, count_slots(), items)
        except OSError as error:
            raise _no_folder(error) from None
        code = _Demo(folder, page, simulator, items, Paint(use_color(sys.stdout, os.environ))).run(began, kept=keep)
    return code


class _Demo:
    def __init__(self, folder: DemoFolder, page: Path, simulator: Running, items: int, paint: Paint) -> None:
        self._folder = folder
        self._page = page
        self._simulator = simulator
        self._items = items
        self._paint = paint
        self._ended_badly: list[str] = []

    def run(self, began: float, *, kept: bool) -> ExitCode:
        self._introduce(kept=kept)
        self._run_and_kill()
        # Calls of the killed client end when the provider notices.
        self._simulator.wait_idle()
        done_before, at_kill = self._done(), self._simulator.statistics()
        self._run_to_the_end(*RUN)
        self._run_to_the_end("show")
        self._run_to_the_end("keys")
        self._run_to_the_end("report", "-o", str(self._page))
        evidence = Evidence(
            items=self._items,
            done_before=done_before,
            done=self._done(),
            at_kill=at_kill,
            at_end=self._simulator.statistics(),
            slots=count_slots(),
            dead=DEAD,
            leaks=tuple(self._folder.find_leaks(self._simulator.keys)),
            ended_badly=tuple(self._ended_badly),
        )
        code = self._check_promises(evidence)
        self._print_end(time.monotonic() - began, kept=kept)
        return code

    # -- output -----------------------------------------------------------------------------------------------

    def _introduce(self, *, kept: bool) -> None:
        slots = count_slots()
        self._print(
            self._paint(f"{self._items:,} prompts, {len(slots)} keys, one crash.", BOLD)
            + " The provider is simulated, and its limits are not configured:",
            *(f"  {line}" for line in align_table(_print_introduction())),
            f"All of it is in {self._folder.path}{'' if kept else ', and removed at the end, but for a report'}.",
        )

    def _check_promises(self, evidence: Evidence) -> ExitCode:
        self._print("", self._paint("What was promised, by the journal and by the provider's own count:", BOLD))
        broken = 0
        for promise in check_promises(evidence):
            broken += not promise.kept
            mark = self._paint("kept  ", GREEN) if promise.kept else self._paint("BROKEN", RED, BOLD)
            self._print(f"  {mark}  {promise.text}")
        if broken:
            self._print(f"{format_count(broken, 'promise')} not kept: please report this, with what is above.")
        return ExitCode.SOME_FAILED if broken else ExitCode.OK

    def _print_end(self, seconds: float, *, kept: bool) -> None:
        self._print("", f"The run as a page, to open in a browser: {self._paint(str(self._page), CYAN)}")
        self._print(f"That took {format_duration(seconds)}. Now with keys of your own:")
        for typed, meaning in (
            ("agentos init", "writes an agentos.toml, with the keys it finds in your environment"),
            ("agentos run --help", "items from files, globs and pipes; commands and Python functions"),
        ):
            self._print(f"  {self._paint(f'{typed:<18}', CYAN)}  {meaning}")
        self._print("The README has a tour of five minutes.")
        if kept:
            self._print(f"Look around: cd {shlex.quote(str(self._folder.path))}; agentos show; agentos keys")

    def _print(self, *lines: str) -> None:
        print(*lines, sep="\n", flush=True)

    def _echo(self, arguments: tuple[str, ...]) -> None:
        self._print("", f"{self._paint('$', DIM)} {self._paint(shlex.join(('agentos', *arguments)), CYAN)}")

    # -- actions ----------------------------------------------------------------------------------------------

    def _run_and_kill(self) -> None:
        self._echo(RUN)
        with self._started(RUN) as child:
            while self._folder.count_finished() < self._items // 2:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    raise _too_early(child.wait(_POLL_INTERVAL))
            child.kill()
            child.wait()
        _restore_terminal()
        text = f", with {self._folder.count_finished():,} of {self._items:,} done. The same command goes on:"
        self._print(self._paint(f"kill -9 {child.pid}", RED, BOLD) + text)

    def _run_to_the_end(self, *arguments: str) -> None:
        self._echo(arguments)
        with self._started(arguments) as child:
            code = child.wait()
        if code != ExitCode.OK:
            self._ended_badly.append(f"{shlex.join(('agentos', *arguments))} ended with code {code}")

    @contextlib.contextmanager
    def _started(self, arguments: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
        """Run the command on the same terminal; end it if the demo is ended."""
        child = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-m", "agentos.cli", *arguments],
            cwd=self._folder.path,
            env=self._folder.environment(os.environ),
        )
        try:
            yield child
        except BaseException:
            _end(child)
            raise

    def _done(self) -> Mapping[str, float]:
        from ...runs.journal.journal_files import locate_files
        from ...runs.report.item_states import list_items

        run = self._folder.run
        return {} if run is None else {item.id: item.at or 0.0 for item in list_items(locate_files(run), "done")}


def _print_introduction() -> Iterator[tuple[str, str, str]]:
    for each in ORGANISATIONS:
        yield (
            each.name,
            f"{format_count(each.keys, 'key')} with {format_count(each.slots, 'slot')} each",
            each.description,
        )


def _too_early(code: int) -> UsageError:
    return UsageError(
        f"the run ended with code {code} before it could be killed half-way",
        "its output is above; if this machine is not the cause, please report it",
        ExitCode.SOME_FAILED,
    )


@contextlib.contextmanager
def _folder(*, keep: bool) -> Iterator[Path]:
    import tempfile

    prefix = "agentos-demo-"
    try:
        # Resolved: a link would be another path for the commands that run in the folder.
        made = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    except OSError as error:
        raise _no_folder(error) from None
    try:
        yield made
    finally:
        if not keep:
            import shutil

            shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _served(items: int) -> Iterator[Running]:
    from ...simulator import Simulator

    simulator = Simulator(build_provider(items))
    try:
        simulator.start()
    except OSError as error:
        raise UsageError(
            f"the simulated provider cannot listen on 127.0.0.1: {error.strerror}", code=ExitCode.SOME_FAILED
        ) from None
    with contextlib.closing(simulator):
        yield simulator


def _no_folder(error: OSError) -> UsageError:
    return UsageError(
        f"the demo's folder cannot be written: {error.strerror}", "set TMPDIR to a folder of yours that has room"
    )


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does, unless they are ignored."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    caught = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in caught:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for each in caught:
            signal.signal(each, signal.SIG_DFL)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM twice (a run stops at once on the second), then SIGKILL."""
    try:
        for _ in range(2):
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_TERM_TIMEOUT)
    finally:  # also on a second Ctrl-C
        if child.poll() is None:
            child.kill()
            child.wait()
            _restore_terminal()


def _restore_terminal() -> None:
    """Show the cursor again, which a killed display leaves hidden."""
    if is_terminal(sys.stderr):
        print(_SHOW_CURSOR, file=sys.stderr, flush=True)
