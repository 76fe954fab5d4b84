"""``agentos runs``: list all runs, the newest first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..exit_codes import ExitCode
from ..session.find_run import BaseFolder, base_folder, list_runs, require_no_link
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...runs.report.run_summary import RunSummary


def runs(
    json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object a line.")] = False,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
    color: Annotated[str, typer.Option(help="auto, always or never.", metavar="WHEN")] = "auto",
) -> int:
    """List the runs, the newest first: state, items done, failed and left, start and duration."""
    base = base_folder(dir)
    summaries = [_build_summary(base, folder) for folder in list_runs(base)]
    summaries.sort(key=lambda summary: summary.started_at or 0.0, reverse=True)
    if json:
        _print_json(summaries)
    elif summaries:
        _print_table(summaries, color)
    else:
        print(f"there are no runs in {base}; agentos run starts one", file=sys.stderr)
    return ExitCode.OK


def _build_summary(base: BaseFolder, folder: Path) -> RunSummary:
    from ...runs.report.run_summary import RunSummary, build_summary
    from ...runs.report.status import RunStatus

    try:
        require_no_link(base, folder)
    except UsageError as refusal:
        return RunSummary(folder.name, str(folder), RunStatus("unreadable"), problem=refusal.message)
    return build_summary(folder)


def _print_json(summaries: list[RunSummary]) -> None:
    import json

    for summary in summaries:
        print(json.dumps(summary.as_json()))


def _print_table(summaries: list[RunSummary], color: str) -> None:
    import os
    import time

    from ...util.durations import format_duration
    from ..terminal.color import use_color
    from ..terminal.phrases import DIM, Paint, format_ago
    from ..terminal.report_text import clean, find_color
    from ..terminal.table import find_width, format_table

    is_colorful = use_color(sys.stdout, os.environ, color)
    paint = Paint(is_colorful)
    now = time.time()
    head = ("run", "state", "done", "failed", "left", "started", "ran for")
    rows = [
        (
            clean(summary.name, 60),
            clean(str(summary.state), 40),
            f"{summary.done:,}",
            f"{summary.failed:,}",
            "?" if summary.left is None else f"{summary.left:,}",
            "-" if summary.started_at is None else format_ago(summary.started_at, now),
            "-" if summary.seconds is None else format_duration(summary.seconds),
        )
        for summary in summaries
    ]
    colors = [find_color(summary.state.word) if is_colorful else None for summary in summaries]
    width = find_width(sys.stdout)
    heading, *lines = format_table(head, rows, colors, coloured_column=1, right=(2, 3, 4), width=width)
    print(paint(heading, DIM), *lines, sep="\n")
    for summary in summaries:
        if summary.problem is not None:
            print(f"agentos: {clean(summary.name, 60)}: {clean(summary.problem, 300)}", file=sys.stderr)
