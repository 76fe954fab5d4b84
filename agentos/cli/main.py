"""The Typer application: register the subcommands and turn errors into one-line messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from ..version import __version__
from .commands import (
    attach,
    demo,
    env,
    gateway,
    init,
    keys,
    logs,
    report,
    results,
    retry,
    rm,
    run,
    runs,
    show,
    trust,
    watch,
)
from .exit_codes import ExitCode
from .session.argv import Reopen, split_arguments, with_number
from .session.typed_options import OptionTable, split_retry
from .usage_error import UsageError

app = typer.Typer(
    name="agentos",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback with the values of variables would show secrets
    rich_markup_mode=None,  # half the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"agentos {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Run a long list of agent or LLM work over a handful of rate-limited credentials, and lose none of it."""


app.command("run", options_metavar="[OPTIONS]", epilog=run.EPILOG)(run.run)
app.command("runs")(runs.runs)
app.command("show")(show.show)
app.command("report")(report.report)
app.command("attach")(attach.attach)
app.command("watch")(watch.watch)
app.command("results")(results.results)
app.command("logs")(logs.logs)
app.command("retry")(retry.retry)
app.command("trust")(trust.trust)
app.command("rm")(rm.rm)
app.add_typer(keys.app, name="keys")
app.command("env")(env.env)
app.command("gateway")(gateway.gateway)
app.command("init")(init.init)
app.command("demo")(demo.demo)


def main(arguments: Sequence[str] | None = None, reopen: Reopen | None = None) -> int:
    """Run the command with *arguments* and return the exit code. *reopen*: the items that a run executes again."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    typed: object = None
    try:
        if given[:1] == ["run"]:
            typed = replace(split_arguments(given[1:]), reopen=reopen)
            given = ["run", *typed.options]
        elif given[:1] == ["retry"]:
            own, typed = split_retry(with_number(given[1:]), _run_options())
            given = ["retry", *own]
        code = app(given, prog_name="agentos", standalone_mode=False, obj=typed)
    except UsageError as refusal:
        print_error(f"agentos: {refusal.message}", *(f"  {line}" for line in (refusal.hint or "").splitlines()))
        return int(refusal.code)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        return int(ExitCode.INTERRUPTED)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        discard_stdout()
        return int(ExitCode.OK)  # the reader closed the pipe
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):  # which the parser makes an exit code of 1
            raise
        discard_stdout()
        return int(ExitCode.OK)
    except Exception as error:  # noqa: BLE001 - usage errors of the parser, and bugs
        return _other(error)
    return int(code or 0)


def _run_options() -> OptionTable:
    command: Any = typer.main.get_command(app)
    return OptionTable(command.commands["run"].params)


def _other(error: Exception) -> int:
    formatted = getattr(error, "format_message", None)
    if callable(formatted):  # a usage error of the parser
        context = getattr(error, "ctx", None)
        path = "agentos" if context is None else context.command_path
        text = str(formatted())
        if path == "agentos run" and "extra argument" in text:
            print_error(f"agentos: {text}", "  put -- before the command: agentos run ITEMS -- COMMAND {}")
        else:
            print_error(f"agentos: {text}", f"  try: {path} --help")
        return int(ExitCode.USAGE)
    from ..errors import AgentOSError

    if isinstance(error, AgentOSError):
        print_error(f"agentos: {error}")
        return int(ExitCode.USAGE)
    if isinstance(error, OSError):
        what = getattr(error, "what", None)  # set by UnsafePath
        text = str(error) if what else f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        print_error(f"agentos: {text}")
        return int(ExitCode.OUTPUT)
    import traceback

    # The location only: values and the message may hold a secret.
    places = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)[-3:]))
    print_error(f"agentos: internal error of agentos ({type(error).__name__}); please report this:", places.rstrip())
    return int(ExitCode.INTERNAL)


def print_error(*lines: str) -> None:
    """Print to standard error, ignoring a closed stream."""
    try:
        print(*lines, sep="\n", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def discard_stdout() -> None:
    """Replace standard output by /dev/null, so that the interpreter has nothing to flush at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError:
        pass
