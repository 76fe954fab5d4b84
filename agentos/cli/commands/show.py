"""``agentos show``: report on one run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..completion import complete_run, offer
from ..exit_codes import ExitCode
from ..session.find_run import base_folder, find_run, require_begun
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...runs.report.item_states import ItemState

_STATES: Final = ("pending", "running", "done", "failed", "interrupted", "parked")


def show(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The run: its name, the beginning of it, or its folder. Else the newest.",
            metavar="RUN",
            autocompletion=complete_run,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Argument(
            help="With --items: only items that are pending, running, done, failed, interrupted or parked.",
            metavar="STATE",
            autocompletion=offer(*_STATES),
        ),
    ] = None,
    items: Annotated[bool, typer.Option("--items", help="List every item and its state, one a line.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="List the failed items, each with its traceback or last lines.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="For programs: one JSON object, or one a line of items.")
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="As Markdown, for the summary of a CI job: >> $GITHUB_STEP_SUMMARY."),
    ] = False,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
    color: Annotated[str, typer.Option(help="auto, always or never.", metavar="WHEN")] = "auto",
) -> int:
    """Show a run: items by state, failures by cause, its keys, how long it stood still, what to type next.

    It works during the run, and after a crash.
    """
    if (items or failed) and state is None and run in _STATES:
        run, state = None, run  # `show --items failed` is about the newest run
    if failed:
        if state not in (None, "failed"):
            raise UsageError(f"--failed lists failed items, and {state} ones were asked for", "use --items STATE")
        state = "failed"
    if state is not None and state not in _STATES:
        raise UsageError(f"there is no state {state!r}", f"an item is {', '.join(_STATES[:-1])} or {_STATES[-1]}")
    if markdown and (json or items or failed or state is not None):
        raise UsageError("--markdown shows the whole run", "leave out --json, --items, --failed and STATE")
    folder = find_run(base_folder(dir), run)
    require_begun(folder)
    if markdown:
        _show_markdown(folder)
        return ExitCode.OK
    if items or failed or state is not None:
        _list_items(folder, state, as_json=json, with_details=failed)
    else:
        _show(folder, as_json=json, color=color, base=dir)
    return ExitCode.OK


def _show(folder: Path, *, as_json: bool, color: str, base: str | None) -> None:
    import os
    import time

    from ...runs.report.run_report import build_report

    report = build_report(folder)
    if as_json:
        import json

        print(json.dumps(report.as_json(), allow_nan=False))
        return
    from ..terminal.color import use_color
    from ..terminal.phrases import Paint
    from ..terminal.report_text import format_report
    from ..terminal.table import find_width

    paint = Paint(use_color(sys.stdout, os.environ, color))
    width = find_width(sys.stdout)
    for line in format_report(report, now=time.time(), paint=paint, cwd=os.getcwd(), base=base, width=width):
        print(line)


def _show_markdown(folder: Path) -> None:
    import time

    from ...page.head_facts import build_head
    from ...page.markdown import build_markdown
    from ...runs.report.run_report import build_report

    sys.stdout.buffer.write(build_markdown(build_head(build_report(folder), time.time())).encode("utf-8", "replace"))


def _list_items(folder: Path, state: str | None, *, as_json: bool, with_details: bool) -> None:
    from ...runs.journal.journal_files import locate_files
    from ...runs.report.item_states import list_items

    to_line = _json_line if as_json else _line
    for item in list_items(locate_files(folder), state):
        sys.stdout.write(to_line(item))
        if with_details and not as_json:
            sys.stdout.writelines(_detail_lines(item))


def _json_line(item: ItemState) -> str:
    import json

    return f"{json.dumps(item.as_json())}\n"


def _line(item: ItemState) -> str:
    from ..terminal.report_text import clean

    state = item.state if item.begun else "pending (not begun)"
    why = ""
    if item.error:
        from ...runs.failures import describe_failure

        why = f"\t{clean(describe_failure(item.error, item.error_type, item.place), 300)}"
    return f"{state}\t{clean(item.id, 1_000)}{why}\n"


def _detail_lines(item: ItemState) -> Iterator[str]:
    """Yield the traceback of a failure, or the last lines of a command, indented."""
    from ...util.sanitize import make_printable

    for line in item.traceback.rstrip("\n").split("\n") if item.traceback else item.tail:
        yield f"    {make_printable(line)}\n"
