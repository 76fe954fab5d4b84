"""Build the worker of a run, a command or a function, and check it before the run starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import CommandFailed
from ..config.store_url import find_variable
from ..exit_codes import ExitCode
from ..usage_error import UsageError
from .agent_options import build_agent
from .run_pool import list_variables

if TYPE_CHECKING:
    from ...runs.commands.command import Command
    from ...runs.output.capture import Redactors
    from .request import RunRequest


def build_command(request: RunRequest) -> Command | None:
    """Return the typed command, or None for a function. Raise ``UsageError`` if the command cannot be run."""
    argv = request.command
    if argv is None:
        return None
    from ...runs.commands.command import Command
    from ...runs.commands.template import TemplateError, fill_text

    if request.agent is not None:
        from ...stores.sqlite.location import state_folder

        try:
            agent = build_agent(
                request.agent,
                state_folder(os.environ) / "agents",
                request.folder,
                env_key=list_variables(request),
                idle_timeout=request.option("idle_timeout"),
                kill_after=request.option("kill_after"),
                without=_withheld_variables(request),
                run_id=request.name,
            )
            if request.total is not None:
                first = next(iter(request.items))
                agent.template.check(first)
                fill_text(agent.prompt, first, "id", 1)
                if agent.after_template is not None:
                    agent.after_template.check(first)
        except TemplateError as error:
            raise UsageError(str(error), error.hint) from None
        return agent
    if request.engine is None and "{" not in argv[0] and shutil.which(argv[0]) is None:
        raise UsageError(f"command not found: {argv[0]}", "nothing was run")
    try:
        command = Command(
            argv,
            env_key=list_variables(request),
            stdin=bool(request.option("stdin")),
            idle_timeout=request.option("idle_timeout"),
            kill_after=request.option("kill_after"),
            without=_withheld_variables(request),
            run_id=request.name,
        )
        if request.total is not None:
            command.template.check(next(iter(request.items)))  # reports a missing field at once
    except TemplateError as error:
        raise UsageError(str(error), error.hint) from None
    return command


def _withheld_variables(request: RunRequest) -> frozenset[str]:
    """Return variables that hold the secret of any key, selected or not, or the URL of the store."""
    of_entries = (str(entry.place) for entry in request.settings.credentials if entry.source == "env")
    of_store = find_variable(request.option("store"))
    withheld = frozenset(
        [*of_entries, *(name for key in request.keys for name in key.sources), *([of_store] if of_store else [])]
    )
    if (request.option("gateway") or (request.agent is not None and request.keys)) and request.command is not None:
        from ...gateway.program_access import find_variables_to_remove

        withheld |= find_variables_to_remove(request.command[0])
    return withheld


def load_function(request: RunRequest, redactors: Redactors | None, masked: Callable[[str], str]) -> Callable[..., Any]:
    """Return the named function. What its module prints or raises during import is redacted."""
    from ..terminal.print_capture import build_redacted_streams
    from .worker_function import load_worker

    try:
        with build_redacted_streams(redactors, all_to_stderr=request.flags.json):
            return load_worker(str(request.flags.worker))
    except UsageError as refusal:
        raise UsageError(masked(refusal.message), refusal.hint, refusal.code) from None


def build_cluster_options(request: RunRequest) -> dict[str, Any]:
    """Return the cluster arguments of ``ParallelCoordinator``, empty without a cluster. Raise ``UsageError``."""
    if request.engine is None:
        return {}
    from ...runs.remote.dask_config import Dask

    if (refusal := find_missing_package_error(request)) is not None:
        raise refusal
    return {"engine": Dask(request.engine), "ship_secrets": request.option("ship_secrets")}


def find_missing_package_error(request: RunRequest) -> UsageError | None:
    """Return the error for a package that the cluster engine lacks on this machine, or None."""
    if request.engine is None:
        return None
    from ...runs.remote.dask_config import PACKAGES, find_missing_package

    missing = find_missing_package()
    return None if missing is None else UsageError(f"--engine needs the package {missing}", f"pip install {PACKAGES}")


def build_retry_options(request: RunRequest) -> dict[str, Any]:
    """Return which failures are retried. A function keeps the run's own rule, which also reads provider answers."""
    if request.command is None:
        return {}
    return {"retry_if": _is_transient if request.option("retries") is None else _any_failure}


def _is_transient(error: BaseException) -> bool:
    """Return whether a retry may help: transient errors, and commands with exit code 75.

    A command that timed out has worked, and spent, as long as it was allowed to: a retry would most likely do it again.
    """
    from ...runs.execution.error_policy import is_transient

    if isinstance(error, CommandFailed):
        return error.exit == ExitCode.PARKED
    return is_transient(error) and not isinstance(error, TimeoutError)


def _any_failure(error: BaseException) -> bool:
    """Return whether to retry with --retries: any exit code but 0, as with GNU parallel."""
    from ...runs.execution.error_policy import is_transient

    return is_transient(error) or isinstance(error, CommandFailed)
