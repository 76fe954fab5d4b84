"""The exit code of a run, and the closing advice on what to type next."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from ..exit_codes import ExitCode

if TYPE_CHECKING:
    from ...runs.report.key_time import KeyTime
    from ...runs.results import ProgressStats


def exit_code(stats: ProgressStats, pressed: BaseException | None = None, *, total: int | None = None) -> ExitCode:
    """Return the exit code. *pressed*: what a second signal raised; *total*: the number of items, if known."""
    if isinstance(pressed, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(pressed, SystemExit):
        return ExitCode.TERMINATED
    from ...runs.results import Cause

    if total is not None and stats.completed >= total and stats.cause in (Cause.SIGNAL, Cause.DEADLINE):
        return ExitCode.SOME_FAILED if stats.failed else ExitCode.OK  # the stop came after the last item
    if stats.cause is Cause.SIGNAL:
        return ExitCode.TERMINATED if stats.stopped_by == signal.SIGTERM.name else ExitCode.INTERRUPTED
    codes: dict[Cause | None, ExitCode] = {
        Cause.HALT: ExitCode.HALTED,
        Cause.DEADLINE: ExitCode.HALTED,
        Cause.PARKED: ExitCode.PARKED,
        Cause.CREDENTIALS: ExitCode.NO_CREDENTIAL,
        Cause.FAULT: ExitCode.INTERNAL,
    }
    if stats.cause in codes:
        return codes[stats.cause]
    return ExitCode.SOME_FAILED if stats.failed else ExitCode.OK


def describe_key_time(spent: KeyTime) -> list[str]:
    """Return what the closing summary says about keys and time: refused keys, standing still, the used share."""
    from ...util.sanitize import make_printable

    return [make_printable(line) for line in spent.describe()]


def describe_retry(left: int, failed: int) -> str:
    """Return what ``agentos retry`` runs: the failed items, and those that are *left*."""
    if not left:
        return "retry the failed item" if failed == 1 else f"retry the {failed:,} failed items"
    unfinished = "the unfinished item" if left == 1 else f"the {left:,} unfinished items"
    return f"run {unfinished} and retry the {'failed one' if failed == 1 else f'{failed:,} failed ones'}"


def build_next_steps(
    stats: ProgressStats, code: ExitCode, *, name: str, again: str, retry: str, retried: bool
) -> list[str]:
    """Return the commands to type next; none if all is done and was done now. *name* identifies the run."""
    words: list[str] = []
    left = stats.unfinished or 0
    count = "1 item" if left == 1 else f"{left} items"
    if not left and stats.cached == stats.total and stats.total:
        what = "done" if not stats.failed else f"finished ({stats.failed} failed)"
        words.append(f"all {stats.total} {what}; --fresh runs again")
    if stats.failed and not retried:
        again = f"{describe_retry(left, stats.failed)}:"
        words += [f"{'failures by cause:'.ljust(len(again))}  agentos show {name}", f"{again}  {retry}"]
    elif stats.failed:
        words.append(f"failures by cause:  agentos show {name}")
    if left:
        if code is ExitCode.PARKED and stats.wakes_at is not None:
            import time

            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stats.wakes_at))
            words.append(f"{count} waiting for rate limits that end at {when}; resume then with:  {again}")
        elif code is ExitCode.NO_CREDENTIAL:
            words += [f"{count} left, but no key can serve them:  agentos keys", f"then resume with:  {again}"]
        else:
            words.append(f"{count} left; resume with the same command:  {again}")
    return words
