"""``agentos demo``: a demonstration in half a minute, with keys of a simulated provider."""

from __future__ import annotations

from typing import Annotated

import typer

from ..exit_codes import ExitCode


def demo(
    items: Annotated[int, typer.Option(min=20, help="How many items the run has.", metavar="N")] = 300,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the folder of the demo, and say where it is, to look around in it.")
    ] = False,
) -> int:
    """Demonstrate agentos in half a minute, without a key of your own.

    A provider is simulated on this machine, with eight keys in three organisations, one key slow and one dead. A run of
    300 items is killed half-way, the same command continues it, and the promises are checked against the calls that
    the provider counted. Everything is in a temporary folder; only a report of the run is left, one HTML file beside
    that folder. Exit code 1: a promise was not kept.
    """
    from ..demo.scenario import run_demo

    try:
        return run_demo(items, keep=keep)
    except BrokenPipeError:
        return ExitCode.OK  # the reader closed the pipe; the parser would call it a failure
