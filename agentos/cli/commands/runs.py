"""``agentos runs``: all runs, the newest first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..exit_codes import ExitCode
from ..session.find_run import Base, base_folder, require_no_link, runs_in
from ..usage_error import Refusal

if TYPE_CHECKING:
    from ...runs.report.run_summary import Brief


def runs(
    json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object a line.")] = False,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
    color: Annotated[str, typer.Option(help="auto, always or never.", metavar="WHEN")] = "auto",
) -> int:
    """List the runs, the newest first: how each stands, what is done, failed and left, when and how long it was on."""
    base = base_folder(dir)
    briefs = [_brief_of(base, folder) for folder in runs_in(base)]
    briefs.sort(key=lambda brief: brief.started_at or 0.0, reverse=True)
    if json:
        _print_json(briefs)
    elif briefs:
        _print_table(briefs, color)
    else:
        print(f"there are no runs in {base}; agentos run starts one", file=sys.stderr)
    return ExitCode.OK


def _brief_of(base: Base, folder: Path) -> Brief:
    from ...runs.report.run_summary import Brief, brief_of
    from ...runs.report.status import Standing

    try:
        require_no_link(base, folder)
    except Refusal as refusal:
        return Brief(folder.name, str(folder), Standing("unreadable"), problem=refusal.message)
    return brief_of(folder)


def _print_json(briefs: list[Brief]) -> None:
    import json

    for brief in briefs:
        print(json.dumps(brief.as_json()))


def _print_table(briefs: list[Brief], color: str) -> None:
    import os
    import time

    from ...util.durations import how_long
    from ..terminal.color import colour
    from ..terminal.phrases import DIM, Paint, ago, table
    from ..terminal.report_text import clean, state_in_colour

    paint = Paint(colour(sys.stdout, os.environ, color))
    now = time.time()
    head = ("run", "state", "done", "failed", "left", "started", "on for")
    rows = [
        (
            clean(brief.name, 60),
            clean(str(brief.state), 40),
            f"{brief.done:,}",
            f"{brief.failed:,}",
            "?" if brief.left is None else f"{brief.left:,}",
            "-" if brief.started_at is None else ago(brief.started_at, now),
            "-" if brief.seconds is None else how_long(brief.seconds),
        )
        for brief in briefs
    ]
    lines = table([head, *rows], right=(2, 3, 4))
    print(paint(lines[0], DIM))
    for brief, row, line in zip(briefs, rows, lines[1:], strict=True):
        # Painted last: colours have no width, and the table could not know.
        begin = line.index(row[1], len(row[0]))
        end = begin + len(row[1])
        print(line[:begin] + state_in_colour(brief.state.word, row[1], paint) + line[end:])
    for brief in briefs:
        if brief.problem is not None:
            print(f"agentos: {clean(brief.name, 60)}: {clean(brief.problem, 300)}", file=sys.stderr)
