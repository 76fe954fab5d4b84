"""``agentos report``: write the report of a run as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from ..completion import complete_run
from ..exit_codes import ExitCode
from ..session.find_run import base_folder, find_run, require_begun
from ..usage_error import UsageError


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The run: its name, the beginning of it, or its folder. Else the newest.",
            metavar="RUN",
            autocompletion=complete_run,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Write to this file: RUN.html by default; - is standard output."),
    ] = None,
    perfetto: Annotated[
        bool,
        typer.Option(
            "--perfetto",
            help="Write a trace for ui.perfetto.dev instead, RUN.trace.json: each slot of a key is a track.",
        ),
    ] = False,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
) -> int:
    """Write a run as one HTML file that needs no network: timeline by key, failures, every item.

    It works during the run, after a crash, and on a damaged journal. It has no secrets, but the beginnings of items and
    values, and the ends of failed items' logs: look before you forward it.
    """
    folder = find_run(base_folder(dir), run)
    require_begun(folder)
    target = f"{folder.name}.{'trace.json' if perfetto else 'html'}" if output is None else output
    if target == "-":
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
        _write(folder, sys.stdout, perfetto=perfetto)
        return ExitCode.OK
    save_report(folder, Path(target), perfetto=perfetto)
    print(f"wrote {target}")
    return ExitCode.OK


def _write(folder: Path, stream: TextIO, *, perfetto: bool) -> None:
    if perfetto:
        from ...page.perfetto import write_trace

        write_trace(folder, stream)
    else:
        from ...page.report_file import write_page

        write_page(folder, stream)


def save_report(folder: Path, target: Path, *, perfetto: bool = False) -> None:
    """Write the report of the run in *folder* to *target*. Raises UsageError if that cannot be written."""
    from ...page.report_file import write_report

    if target.is_dir():
        raise UsageError(f"{target} is a folder", "name the file of the report: -o report.html")
    try:
        if perfetto:
            with open(target, "w", encoding="utf-8", errors="replace") as file:
                _write(folder, file, perfetto=True)
        else:
            write_report(folder, target)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"the report cannot be written to {target}: {reason}", code=ExitCode.OUTPUT) from None
