"""``agentos gateway``: serve the providers' APIs on this machine, with a key of the pool for each request."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..completion import complete_keys, offer
from ..usage_error import UsageError


def gateway(
    port: Annotated[
        int,
        typer.Option(
            "--port",
            help="The port; else any free one. The same port keeps its token.",
            metavar="PORT",
            show_default=False,
        ),
    ] = 0,
    socket: Annotated[
        Path | None, typer.Option("--socket", help="Listen on this unix socket too.", metavar="PATH")
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            help="Credentials, as for agentos run. Else all of agentos.toml.",
            metavar="SOURCE",
            autocompletion=complete_keys,
        ),
    ] = None,
    slots: Annotated[
        str | None,
        typer.Option(
            help="How many requests may use a key at once: a number, or auto to find out, the default.",
            metavar="N|auto",
            autocompletion=offer("auto"),
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            help="Where the state of the keys is kept, as for agentos run.",
            autocompletion=offer("sqlite", "memory", "redis://"),
        ),
    ] = None,
    max_wait: Annotated[
        str | None, typer.Option(help="The longest wait of one request for a key; else it has no end.", metavar="TIME")
    ] = None,
    park_after: Annotated[
        str | None, typer.Option(help="Refuse a request whose key opens only after this.", metavar="TIME")
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Make another token than the one this port had before.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", help="Listen on this address, which others can reach; needs --token.", metavar="ADDRESS"
        ),
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", help="The variable that has the token, as env:NAME.", metavar="env:NAME")
    ] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option("--host-name", help="A name by which clients call the address of --listen.", metavar="NAME"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Read this file instead of ./agentos.toml.", metavar="FILE")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> int:
    """Serve the providers' APIs on this machine: any program shares the keys, and waits for one instead of failing.

    A program gets the printed address as its base URL and the token as its key; agentos env PROGRAM prints what it
    needs. Ctrl-C waits for the requests in progress; a second one ends them.
    """
    from ..config.run_options import parse_flag
    from ..gateway.gateway_session import GatewayOptions, run_gateway

    if listen is not None and token is None:
        raise UsageError(
            "--listen needs --token env:NAME: others can reach that address", "put a long random text into a variable"
        )
    if not 0 <= port < 65_536:
        raise UsageError(f"--port must be a number from 1 to 65535, not {port}")
    return run_gateway(
        GatewayOptions(
            port=port,
            socket=socket,
            keys=tuple(keys or ()),
            slots=None if slots is None else parse_flag("slots", slots),
            store=None if store is None else parse_flag("store", store),
            max_wait=None if max_wait is None else parse_flag("max_wait", max_wait),
            park_after=None if park_after is None else parse_flag("park_after", park_after),
            new_token=new_token,
            listen=listen or "127.0.0.1",
            token=None if token is None else _read_token(token),
            host_names=tuple(host_name or ()),
            config=config,
            verbose=verbose,
        ),
        sys.stdout,
    )


_SHORTEST_TOKEN = 20


def _read_token(source: str) -> str:
    if not source.startswith("env:"):
        raise UsageError("--token must be env:NAME: others can read what is typed here")
    value = os.environ.get(source.removeprefix("env:"), "").strip()
    if len(value) < _SHORTEST_TOKEN or not value.isascii() or not value.isprintable() or " " in value:
        raise UsageError(
            f"--token: the variable must hold at least {_SHORTEST_TOKEN} letters and digits",
            "make one: export NAME=$(openssl rand -hex 24)",
        )
    return value
