"""Decide whether to write in colour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from ...util.terminal import is_terminal
from ..usage_error import UsageError

_OFF = ("NO_COLOR", "AGENTOS_NO_COLOR")


def use_color(stream: TextIO | None, environ: Mapping[str, str], flag: str = "auto") -> bool:
    """Decide whether to use colours: by *flag* (``--color``), the environment, or whether *stream* is a terminal.

    A variable counts if it is not empty. ``NO_COLOR`` overrides ``FORCE_COLOR``: a log without colours does no harm.
    """
    if flag in ("always", "never"):
        return flag == "always"
    if flag != "auto":
        raise UsageError(f"--color: {flag!r} is not known", "give auto, always or never")
    if any(environ.get(name) for name in _OFF):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return not is_dumb(environ) and is_terminal(stream)


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal is declared to support only printing."""
    return environ.get("TERM", "").lower() in ("dumb", "unknown")
