"""``agentos rm``: remove runs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..exit_codes import ExitCode
from ..session.find_run import base_folder
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ..session.remove_run import RunToRemove

_SHOWN: Final = 5


def rm(
    runs: Annotated[
        list[str], typer.Argument(help="The runs: whole names as agentos runs lists them, or paths.", metavar="RUN...")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
) -> int:
    """Remove runs: their journals, results and logs.

    Only runs that you started here, and none that is on. Files in a run's folder that agentos did not make are left,
    and links are not followed.
    """
    from ..session.remove_run import claim_to_remove

    base = base_folder(dir)
    with ExitStack() as ends:
        claimed = [ends.enter_context(claim_to_remove(base, run)) for run in dict.fromkeys(runs)]
        if not yes and not _confirm(claimed):
            print("nothing was removed", file=sys.stderr)
            return ExitCode.SOME_FAILED
        for run in claimed:
            _remove(run)
    return ExitCode.OK


def _confirm(claimed: list[RunToRemove]) -> bool:
    """Show what would be removed, and ask. Raise UsageError if there is nobody to ask."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError("nothing was removed, because there is no terminal to ask on", "add --yes to remove them")
    for run in claimed:
        print(f"{run.folder.path}  {_describe(run)}", file=sys.stderr)
    what = "this run" if len(claimed) == 1 else f"these {len(claimed)} runs"
    print(f"remove {what}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _describe(run: RunToRemove) -> str:
    from ..terminal.phrases import format_count

    files = run.list_files()
    return f"{format_count(len(files), 'file')}, {_format_size(sum(size for _, size in files))}"


def _remove(run: RunToRemove) -> None:
    what = _describe(run)
    left = run.remove()
    print(f"removed {run.name}: {what}")
    if left:
        from ..terminal.report_text import clean

        shown = ", ".join(clean(name, 100) for name in left[:_SHOWN])
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        print(f"  left in {run.folder.path}, because agentos did not make it: {shown}{more}")


def _format_size(size: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
