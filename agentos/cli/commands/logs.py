"""``agentos logs``: print the log of an item."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..completion import complete_run
from ..exit_codes import ExitCode
from ..session.find_run import base_folder, find_run
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...runs.journal.journal_files import JournalFiles
    from ..terminal.follow import GrowingFile

_PAUSE: Final = 0.2  # seconds between two reads of a followed log


def logs(
    run: Annotated[
        str,
        typer.Argument(
            help="The run: its name, the beginning of it, or its folder.", metavar="RUN", autocompletion=complete_run
        ),
    ],
    item: Annotated[str, typer.Argument(help="The item: its id, or the beginning of it.", metavar="ITEM")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue as it prints more, until it ends or Ctrl-C.")
    ] = False,
    tail: Annotated[int | None, typer.Option(help="Only the last N lines.", metavar="N", min=0)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print control sequences unchanged, also on a terminal.")] = False,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
) -> int:
    """Print the log of an item: its attempts, what each printed and how it ended, without secrets."""
    from ...runs.context import build_file_name
    from ...runs.journal.journal_files import locate_files

    folder = find_run(base_folder(dir), run)
    files = locate_files(folder)
    _require_no_link(folder)
    if not _find_log(folder, build_file_name(item)).exists():
        item = _find_item(files, item, folder.name)
    path = _find_log(folder, build_file_name(item))
    if follow or path.exists():
        shown = _print_log(path, tail=tail, raw=raw, ended=_build_end_check(files, item) if follow else None)
        if shown:
            _explain_open_end(files, item)
            return ExitCode.OK
    _explain_missing_log(files, item, folder.name, is_empty=path.exists())
    return ExitCode.OK


def _require_no_link(folder: Path) -> None:
    """Refuse logs behind a link that may have come with a repository."""
    from ...util.private_folder import PrivateFolder, UnsafePath
    from ..session.find_run import accepted_to_read, build_link_error

    try:
        with PrivateFolder.at(folder, accept=accepted_to_read()) as run:
            run.enter("logs").close()
    except UnsafePath as unsafe:
        raise build_link_error(unsafe) from None
    except OSError:
        pass  # there are none yet


def _find_log(folder: Path, file_name: str) -> Path:
    return folder / "logs" / f"{file_name}.log"


def _find_item(files: JournalFiles, given: str, run: str) -> str:
    """Return the id that *given* abbreviates."""
    from ...runs.report.item_states import find_ids

    if files.size(files.db) is None:
        raise UsageError(f"{run} has not begun, and so has no logs")
    found = find_ids(files, given)
    if len(found) == 1:
        return found[0]
    from ..terminal.report_text import clean

    if found:
        raise UsageError(f"several items of {run} begin with {given!r}", f"which one: {clean(', '.join(found), 500)}?")
    raise UsageError(f"{run} has no item {given!r}", f"agentos show {run} --items lists them")


def _print_log(path: Path, *, tail: int | None, raw: bool, ended: Callable[[], bool] | None) -> bool:
    """Print the log, and what is added until *ended*. Return False if nothing was printed."""
    from ..terminal.follow import GrowingFile, SanitizedLines

    neutralised = None
    if sys.stdout.isatty() and not raw:
        from ...util.sanitize import make_printable

        neutralised = SanitizedLines(sys.stdout.write, make_printable)
    growing = GrowingFile(path, sys.stdout.buffer.write if neutralised is None else neutralised.feed, lines=tail)
    try:
        shown = growing.write_new()
        if ended is not None:
            shown = _follow(growing, ended) or shown
        if neutralised is not None:
            neutralised.flush()
    finally:
        growing.close()
    return shown or (tail == 0 and path.exists())


def _follow(growing: GrowingFile, ended: Callable[[], bool]) -> bool:
    """Print what is added until *ended*, which is called before the last read so that no output is missed."""
    shown = False
    while True:
        sys.stdout.flush()
        is_over = ended()
        came = growing.write_new()
        shown = shown or came
        if is_over:
            _pause()  # the line that says how it ended may follow the journal's entry
            return growing.write_new() or shown
        if not came:
            _pause()


def _pause() -> None:
    import time

    time.sleep(_PAUSE)


def _build_end_check(files: JournalFiles, item_id: str) -> Callable[[], bool]:
    """Return a function that reports whether the item has ended or no process runs it; it reads new entries only."""
    from ...runs.journal.entry_text import replace_surrogates
    from ...runs.report.item_states import find_last_entry
    from ...runs.report.status import find_owner

    seen = 0

    def ended() -> bool:
        nonlocal seen
        is_on = find_owner(files.lock) is not None  # checked first, so that the last commit is seen below
        last = find_last_entry(files, replace_surrogates(item_id), after=seen)
        if last is not None:
            seen = last.seq
        return not is_on or (last is not None and last.final)

    return ended


def _explain_open_end(files: JournalFiles, item_id: str) -> None:
    """Say if the log ends because the run was killed; its next start writes that into the log."""
    from ...errors import JournalError
    from ...runs.journal.entry_text import replace_surrogates
    from ...runs.report.item_states import find_last_entry
    from ...runs.report.status import find_owner
    from ..terminal.report_text import clean

    if files.size(files.db) is None or find_owner(files.lock) is not None:
        return
    try:
        last = find_last_entry(files, replace_surrogates(item_id))
    except JournalError:
        return  # a log needs no journal
    if last is not None and last.kind == "start":
        sys.stdout.flush()
        print(f"agentos: {clean(item_id)} was running when the run was killed; a resume runs it again", file=sys.stderr)


def _explain_missing_log(files: JournalFiles, item_id: str, run: str, *, is_empty: bool) -> None:
    """Print why there is no log, and what the journal has of the item."""
    from ...runs.journal.entry_text import replace_surrogates
    from ...runs.report.item_states import find_last_entry
    from ..terminal.report_text import clean

    last = find_last_entry(files, replace_surrogates(item_id)) if files.size(files.db) is not None else None
    name = clean(item_id)
    if last is None:
        print(f"agentos: {name} has not started; agentos show {run} tells how the run stands", file=sys.stderr)
        return
    nothing = "its log is empty" if is_empty else "it printed nothing"
    print(f"agentos: {name} is {last.state}; {nothing}", file=sys.stderr)
    _print_attempts(files, replace_surrogates(item_id))


def _print_attempts(files: JournalFiles, item_id: str) -> None:
    """Print what the journal has of the item's attempts, as a log has it."""
    from ...runs.output.attempt_ends import format_end, format_heading
    from ...runs.report.attempts import list_attempts
    from ...runs.report.status import find_owner

    is_on = find_owner(files.lock) is not None
    for each in list_attempts(files, item_id):
        print(format_heading(each.number, each.began_at, each.key))
        if each.kind != "start":
            print(format_end(each.number, each.kind, each.duration, each.error, each.facts, output=False))
        elif not is_on:
            print(f"--- attempt {each.number} interrupted: the run was killed ---")
