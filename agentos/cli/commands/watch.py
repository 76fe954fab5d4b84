"""``agentos watch``: the page of runs in the browser, live."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..completion import complete_run
from ..exit_codes import ExitCode
from ..session.find_run import BaseFolder, base_folder, find_run, list_runs, require_begun
from ..usage_error import UsageError


def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The run to show first: its name, the beginning of it, or its folder. Else a list of all runs.",
            metavar="RUN",
            autocompletion=complete_run,
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(help="Listen on this port of 127.0.0.1; by default any free one.", metavar="N", min=0, max=65535),
    ] = 0,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
) -> int:
    """Serve a live page about the runs of this folder, for your browser, until Ctrl-C.

    It shows what agentos report writes, as it happens, and the logs of running items. It only reads, in a process of
    its own: runs go on whether it is there or not. Open the address that it prints: it holds a token that is valid as
    long as this command runs. From another machine: ssh -L N:127.0.0.1:N, with --port N.
    """
    base = base_folder(dir)
    chosen = None
    if run is not None:
        chosen = find_run(base, run)
        require_begun(chosen)
    return _serve(base, chosen, port)


def _serve(base: BaseFolder, chosen: Path | None, port: int) -> int:
    import asyncio
    import signal

    from ...page.live.server import PageServer

    def list_folders() -> list[Path]:
        folders = list_runs(base)
        return folders if chosen is None or chosen in folders else [chosen, *folders]

    async def serve() -> None:
        server = PageServer(list_folders, chosen=None if chosen is None else chosen.name)
        try:
            address = await server.listen(port)
        except OSError as error:
            raise UsageError(
                f"127.0.0.1:{port} cannot be listened on: {error.strerror}", "leave out --port, or name another one"
            ) from None
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        print(f"open in a browser: {address}", flush=True)
        print("Ctrl-C ends this page; runs go on", file=sys.stderr, flush=True)
        try:
            await stopped.wait()
        finally:
            await server.close()

    asyncio.run(serve())
    return ExitCode.OK
