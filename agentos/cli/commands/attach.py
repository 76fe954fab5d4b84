"""``agentos attach``: the display of a run that is on, in this terminal."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ..completion import complete_run, offer
from ..config.run_options import PROGRESS
from ..exit_codes import ExitCode
from ..session.find_run import base_folder, find_run, require_begun
from ..usage_error import UsageError

_POLL: Final = 0.25  # seconds between two looks at the journal


def attach(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The run: its name, the beginning of it, or its folder. Else the newest.",
            metavar="RUN",
            autocompletion=complete_run,
        ),
    ] = None,
    progress: Annotated[
        str,
        typer.Option(
            help="auto (bar on a terminal, plain in a pipe), bar, plain, json or none.",
            metavar="HOW",
            autocompletion=offer(*PROGRESS),
        ),
    ] = "auto",
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
    color: Annotated[str, typer.Option(help="auto, always or never.", metavar="WHEN")] = "auto",
) -> int:
    """Show the progress of a run that is on in this terminal, until it ends. Ctrl-C leaves; the run goes on.

    It reads the run's folder, so it works from any terminal, and for runs of agentos run --detach, cron and nohup.
    """
    folder = find_run(base_folder(dir), run)
    require_begun(folder)
    return _follow(folder, progress, color, "" if dir is None else f" --dir {shlex.quote(dir)}")


def _follow(folder: Path, progress: str, color: str, place: str) -> int:
    import time

    from ...runs.report.followed_run import FollowedRun
    from ...runs.report.run_report import build_report
    from ..terminal.progress_mode import build_reporter

    followed = FollowedRun(folder)
    name = shlex.quote(folder.name)
    if followed.state is None:
        raise UsageError(
            f"{folder.name} is not running: it is {build_report(folder).state}", f"agentos show {name}{place}"
        )
    reporter = build_reporter(
        progress,
        stream=sys.stderr,
        stdout=sys.stdout,
        environ=os.environ,
        colour_flag=color,
        run_name=folder.name,
        keys=followed.list_keys,
        parallel=followed.parallel,
        running=followed.list_running,
        last_line=followed.last_line,
    )
    try:
        reporter(followed.begin())
        while True:
            state = followed.state
            for event in followed.poll():  # after the look at its owner, so that its last entries are seen
                reporter(event)
            if state is None or followed.stats.end_time is not None:
                break
            time.sleep(_POLL)
        reporter(followed.end())
    except KeyboardInterrupt:
        reporter.close()
        print(f"left; the run goes on: agentos attach {name}{place}", file=sys.stderr)
        return ExitCode.OK
    finally:
        reporter.close()
    if build_report(folder).state.word == "crashed":
        print(f"{folder.name} crashed; agentos show {name}{place} tells what is left", file=sys.stderr)
    return ExitCode.OK
