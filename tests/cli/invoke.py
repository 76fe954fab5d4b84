"""Call one command as `agentos` would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from agentos.cli.config.trusted_runs import TrustedRuns
from agentos.cli.session.run_folder import enrol
from agentos.util.private_folder import PrivateFolder


def call(command: Callable[..., Any], *typed: str) -> int:
    """Its exit code. What it refuses comes as the Refusal it raised."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    code: int = app(list(typed), standalone_mode=False)
    return code


def remember(folder: Path) -> None:
    """Let the run in *folder* be one that this user has started."""
    with PrivateFolder.at(folder) as opened:
        enrol(opened, TrustedRuns())
