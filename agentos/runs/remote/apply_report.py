"""Apply a remote worker's report in the driver: to the pool, the log and the attempt."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...costs.usage import NO_USAGE
from ...errors import Interrupted, NotPicklable
from ...pool.lease import ItemLease
from ..core.records import Attempt
from ..core.states import Cause
from ..execution.attempt import PooledAttempt
from .attempt_report import AttemptReport, LogLine, build_error
from .pickled import unpack
from .worker_lease import LeaseMessage

if TYPE_CHECKING:
    from ..execution.engine_run import EngineRun

log = logging.getLogger("agentos")
worker_log = logging.getLogger("agentos.worker")


def apply_report(run: EngineRun, attempt: Attempt, report: AttemptReport) -> tuple[Any, BaseException | None]:
    """Return the value or error to finish *attempt* with, after applying its messages. Call it before ``run.finish``.

    An error keeps the meaning it had where it was raised. If the worker could not be called there at all, the run stops
    with that reason: every item would fail by it.
    """
    for line in report.log_lines:
        log_line(run, line)
    for message in report.lease_messages:
        apply_lease_message(attempt, message, age=report.duration - message.at)
    if report.unready is not None:
        if not run.state.closing:
            run.shutdown.stop(f"a worker that could not start: {run.state.masked(report.unready)}", cause=Cause.FAULT)
        return None, Interrupted(report.unready)
    if report.cancelled and attempt.cancelled is not None:
        return None, run.build_cancellation(attempt)
    if report.failure is not None:
        error = build_error(report.failure)
        if report.failure.reported and attempt.lease is not None:
            attempt.lease.last_report = error  # reported to the pool already
        return None, error
    try:
        return None if report.value is None else unpack(report.value, "what its worker returned"), None
    except NotPicklable as error:
        return None, error


def log_line(run: EngineRun, line: LogLine) -> None:
    """Log a remote worker's line here. Never raises: handlers are user code."""
    try:
        worker_log.log(line.level, "%s", run.state.masked(line.text))
    except Exception as error:  # noqa: BLE001 - only the line is lost
        log.debug("a line of a worker could not be logged (%s)", type(error).__name__)


def apply_lease_message(attempt: Attempt, message: LeaseMessage, *, age: float = 0.0) -> None:
    """Apply to the lease what a remote worker reported about its key *age* seconds ago."""
    if not isinstance(attempt, PooledAttempt) or attempt.grant is None:
        if message.billed is not None:
            attempt.usage_log.set_total(None, None, message.billed)
        return
    lease = attempt.item_lease()
    try:
        _call_lease(lease, message, age)
    except Exception as error:  # noqa: BLE001 - only the message is lost
        log.warning(
            "[COORDINATOR] %s: what its worker reported about its key is invalid (%s)",
            attempt.item.id,
            type(error).__name__,
        )


def _call_lease(lease: ItemLease, message: LeaseMessage, age: float) -> None:
    left = None if message.delay is None else message.delay - age
    if message.verb == "settle":
        lease.settle_stated(message.used or {}, message.billed or NO_USAGE)
    elif message.verb == "rate_limited" and left is not None and left <= 0:
        lease.trouble = "limited"  # that cooldown is over
    elif message.verb == "rate_limited":
        lease.rate_limited(left, message.model)
    elif message.verb == "rejected":
        lease.rejected(message.reason)
    elif message.verb == "spent":
        lease.spent(message.reason)
    elif message.signal is not None:
        delay = message.signal.delay
        lease.report(message.signal if delay is None else replace(message.signal, delay=max(0.0, delay - age)))
