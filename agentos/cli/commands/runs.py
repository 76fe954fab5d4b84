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
    """List the runs, the newest first: how each stands, what is done, failed and left, when and how long it was on."""
    base = base_folder(dir)
    briefs = [_build_summary(base, folder) for folder in list_runs(base)]
    briefs.sort(key=lambda brief: brief.started_at or 0.0, reverse=True)
    if json:
        _print_json(briefs)
    elif briefs:
        _print_table(briefs, color)
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


def _print_json(briefs: list[RunSummary]) -> None:
    import json

    for brief in briefs:
        print(json.dumps(brief.as_json()))


def _print_table(briefs: list[RunSummary], color: str) -> None:
    import os
    import time

    from ...util.durations import format_duration
    from ..terminal.color import use_color
    from ..terminal.phrases import DIM, Paint, align_table, format_ago
    from ..terminal.report_text import clean, color_state

    paint = Paint(use_color(sys.stdout, os.environ, color))
    now = time.time()
    head = ("run", "state", "done", "failed", "left", "started", "on for")
    rows = [
        (
            clean(brief.name, 60),
            clean(str(brief.state), 40),
            f"{brief.done:,}",
            f"{brief.failed:,}",
            "?" if brief.left is None else f"{brief.left:,}",
            "-" if brief.started_at is None else format_ago(brief.started_at, now),
            "-" if brief.seconds is None else format_duration(brief.seconds),
        )
        for brief in briefs
    ]
    lines = align_table([head, *rows], right=(2, 3, 4))
    print(paint(lines[0], DIM))
    for brief, row, line in zip(briefs, rows, lines[1:], strict=True):
        # Colored last: the table would count escape sequences as width.
        begin = line.index(row[1], len(row[0]))
        end = begin + len(row[1])
        print(line[:begin] + color_state(brief.state.word, row[1], paint) + line[end:])
    for brief in briefs:
        if brief.problem is not None:
            print(f"agentos: {clean(brief.name, 60)}: {clean(brief.problem, 300)}", file=sys.stderr)
