"""Complete the values of arguments and options in a shell. Errors give no completions, never a message."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

Completion = Callable[[str], list[str]]


def offer(*words: str) -> Completion:
    """Return a completion that offers fixed words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the names of runs, the most recently changed first."""
    from .session.find_run import base_folder, list_runs

    with contextlib.suppress(Exception):
        folders = list_runs(base_folder(context.params.get("dir")))
        return [folder.name for folder in folders if folder.name.startswith(incomplete)]
    return []


def complete_key(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the names of credentials in agentos.toml."""
    return [name for name in _key_names(context) if name.startswith(incomplete)]


def complete_keys(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the values of ``--keys``: credentials in agentos.toml, variables that look like keys, or none."""
    variables = sorted(f"env:{name}" for name in os.environ if name.endswith("_API_KEY"))
    return [word for word in (*_key_names(context), *variables, "none") if word.startswith(incomplete)]


def _key_names(context: typer.Context) -> Iterator[str]:
    from .config.files import load_settings

    with contextlib.suppress(Exception):
        config = context.params.get("config")
        settings = load_settings(None if config is None else Path(config), Path.cwd(), os.environ)
        yield from (entry.name for entry in settings.credentials)
