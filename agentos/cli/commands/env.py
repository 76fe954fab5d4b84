"""``agentos env``: print what an agent program needs to use the gateway."""

from __future__ import annotations

import json as json_format
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..completion import offer
from ..config.run_options import PROGRAM_NAMES
from ..usage_error import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ...agents.program import Program
    from ...agents.running_gateway import RunningGateway

_FROM_VARIABLE = "env:"


def env(
    program: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join(PROGRAM_NAMES)}; openai and anthropic are for programs that use these SDKs.",
            metavar="PROGRAM",
            autocompletion=offer(*PROGRAM_NAMES),
        ),
    ],
    url: Annotated[
        str | None, typer.Option("--url", help="The gateway's address, if it is not one that runs here.", metavar="URL")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", help="The variable that has its token, as env:NAME.", metavar="env:NAME")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Which of several gateways.", metavar="PORT")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of shell commands.")] = False,
) -> int:
    """Print the variables, flags and settings by which a program uses the gateway.

    Type: eval "$(agentos env claude)". The address and token are those of the gateway that runs on this machine.
    The program's own timeouts are raised, so that it waits for a key as long as the gateway does.
    """
    from ...agents.programs import PROGRAMS

    known = PROGRAMS.get(program)
    if known is None:
        raise UsageError(f"there is no program {program!r} in the tables", f"one of {', '.join(PROGRAMS)}")
    gateway = _find_gateway(url, token, port, os.environ)
    variables = known.environment(gateway.url, gateway.token)
    if known.settings is not None:
        from ...agents.settings import write_settings
        from ...stores.sqlite.location import state_folder

        variables |= write_settings(known.settings, state_folder(os.environ) / "agents" / known.name, os.environ)
    flags = known.arguments(gateway.url, gateway.token)
    if json:
        facts = {"program": known.name, "unset": known.unset, "variables": variables, "flags": flags}
        print(json_format.dumps(facts))
    else:
        print("\n".join(_shell_lines(known, gateway.url, variables, flags)))
    return 0


def _shell_lines(program: Program, url: str, variables: Mapping[str, str], flags: list[str]) -> Iterator[str]:
    yield f"# {program.name} through {url}"
    yield from (f"# note: {trap}" for trap in program.traps)
    if program.unset:
        yield f"unset {' '.join(program.unset)}"
    for name, value in variables.items():
        yield f"export {name}={shlex.quote(value)}"
    if flags:
        name = program.executables[0]
        yield f'{name}() {{ command {name} {shlex.join(flags)} "$@"; }}'


def _find_gateway(url: str | None, token: str | None, port: int | None, environ: Mapping[str, str]) -> RunningGateway:
    from ...agents.running_gateway import FOLDER, RunningGateway, find_gateways
    from ...stores.sqlite.location import state_folder

    if (url is None) != (token is None):
        raise UsageError("--url and --token go together", "or neither: the gateway that runs here is used")
    if url is not None and token is not None:
        return RunningGateway(_checked_url(url), _read_token(token, environ))
    folder: Path = state_folder(environ) / FOLDER
    running = find_gateways(folder)
    chosen = [gateway for gateway in running if port is None or gateway.port == port]
    if not chosen:
        where = "" if port is None else f" on port {port}"
        raise UsageError(
            f"no gateway runs{where}: there is no file of one in {folder}",
            "start one: agentos gateway\nor name one: agentos env PROGRAM --url URL --token env:NAME",
        )
    if len(chosen) > 1:
        raise UsageError(
            f"{len(chosen)} gateways run", f"choose one with --port: {', '.join(str(each.port) for each in chosen)}"
        )
    return chosen[0]


def _checked_url(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        valid = valid and not parts.query and not parts.fragment and url.isprintable() and " " not in url
        _ = parts.port
    except ValueError:
        valid = False
    if not valid:
        raise UsageError("--url must be an address such as http://127.0.0.1:8089, without a user name or a query")
    return url.rstrip("/")


def _read_token(token: str, environ: Mapping[str, str]) -> str:
    if not token.startswith(_FROM_VARIABLE):
        raise UsageError(
            "--token must be env:NAME: others can read what is typed here", "put the token into a variable, and name it"
        )
    name = token.removeprefix(_FROM_VARIABLE)
    value = environ.get(name, "").strip()
    if not value:
        raise UsageError(f"--token: the variable {name or '(no name)'} is not set, or empty")
    return value
