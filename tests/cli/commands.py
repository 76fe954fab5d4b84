"""Calling one command as `agentos` would, with what was typed after its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def call(command: Callable[..., Any], *typed: str) -> int:
    """Its exit code. What it refuses comes as the Refusal it raised."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    code: int = app(list(typed), standalone_mode=False)
    return code
