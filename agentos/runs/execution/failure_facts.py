"""Facts about a failed attempt besides its message: type, place, traceback, code; for results and the journal."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable
from typing import Any

from ...errors import CommandFailed
from ...providers import Signal
from ..journal.entry_text import replace_surrogates
from .tracebacks import find_place, format_traceback


def build_failure_facts(
    error: BaseException, signal: Signal | None, masked: Callable[[str], str], *, with_traceback: bool = True
) -> dict[str, Any]:
    """Return the facts about *error* as ``WorkflowResult.metadata`` has them, without secrets.

    ``code`` is the exit code or the name of the signal of a command, or the HTTP status that *signal* has.
    """
    facts: dict[str, Any] = {"error_type": masked(type(error).__qualname__)}
    if isinstance(error, CommandFailed):
        return {**facts, **_describe_end(error), "exit": error.exit, "signal": error.signal, "tail": error.tail}
    if signal is not None and signal.status is not None:
        facts["code"] = signal.status
    try:
        place = find_place(error)
    except Exception:  # noqa: BLE001 - the exception's own attributes may raise anything
        place = None
    if place is not None:
        facts["place"] = replace_surrogates(masked(place))
    if with_traceback and (trace := masked(format_traceback(error))):
        facts["traceback"] = replace_surrogates(trace)  # SQLite cannot return them from JSON
    return facts


def _describe_end(error: CommandFailed) -> dict[str, Any]:
    if error.signal is not None:
        return {"code": name_signal(error.signal)}
    return {} if error.exit is None else {"code": error.exit}


def name_signal(number: int) -> str:
    """Return ``SIGKILL``, or ``signal 77`` for one without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
