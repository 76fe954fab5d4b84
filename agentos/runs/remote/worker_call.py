"""Call the user's worker in a remote process, and build the report of its outcome."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from ...errors import AgentOSError, Interrupted, NotPicklable
from ..worker import refuse_awaitable
from .assignment import Assignment
from .attempt_report import AttemptReport, LogLine, Printed, build_failure
from .pickled import PickledObject, pack, unpack
from .worker_context import RemoteContext
from .worker_lease import LeaseMessage, RemoteLease
from .worker_secrets import resolve_secret

log = logging.getLogger("agentos")

Tell = Callable[[LeaseMessage | LogLine | Printed], object]


def agentos_item(function: PickledObject, assignment: Assignment, is_async: bool) -> AttemptReport:
    """Execute one assignment in a process of an executor. Dashboards show this function's name."""
    if os.getpid() != assignment.driver:
        _leave_interrupts_to_the_driver()
    return run_assignment(function, assignment, is_async=is_async)


def _leave_interrupts_to_the_driver() -> None:
    """Ignore SIGINT in this process for good: Ctrl-C reaches every process of a terminal, the driver decides.

    Between two items a SIGINT would end this process, and with it the whole executor.
    """
    here = threading.current_thread() is threading.main_thread()  # only the main thread can set a handler
    if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_assignment(
    function: PickledObject,
    assignment: Assignment,
    *,
    is_async: bool = False,
    stopping: threading.Event | None = None,
    lost: threading.Event | None = None,
    tell: Tell | None = None,
    environ: Mapping[str, str] | None = None,
) -> AttemptReport:
    """Call the worker once and return the report. Never raises: the worker's error is in the report.

    *function* is the user's worker; with *is_async* it is a coroutine function and gets its own loop. *stopping* is the
    worker's ``context.stopping``; *lost*, once set, ends its lease. *tell* receives the worker's lease messages, log
    lines and output at once; without it, messages and log lines are part of the report.
    """
    if is_async:
        later = run_assignment_async(function, assignment, stopping=stopping, lost=lost, tell=tell, environ=environ)
        try:
            return asyncio.run(later)
        except BaseException as error:  # noqa: BLE001 - a loop already runs in this thread, or cannot be closed
            later.close()
            return AttemptReport(assignment.token, failure=build_failure(error))
    execution = _AssignmentRun(assignment, stopping, lost, tell, environ)
    try:
        value = execution.build_call(function)()
        refuse_awaitable(value)
        return execution.done(value)
    except _NotReady as unready:
        return execution.unready(str(unready))
    except BaseException as error:  # noqa: BLE001 - any error of a worker fails its item, not its process
        return execution.failed(error)


async def run_assignment_async(
    function: PickledObject,
    assignment: Assignment,
    *,
    stopping: threading.Event | None = None,
    lost: threading.Event | None = None,
    tell: Tell | None = None,
    environ: Mapping[str, str] | None = None,
) -> AttemptReport:
    """Do the same for a coroutine function, on the running loop. The report records a cancellation of its task."""
    execution = _AssignmentRun(assignment, stopping, lost, tell, environ)
    task = asyncio.current_task()
    try:
        value = await execution.build_call(function)()
        refuse_awaitable(value, in_coroutine=True)
        return execution.done(value)
    except _NotReady as unready:
        return execution.unready(str(unready))
    except asyncio.CancelledError as error:
        if task is None or not task.cancelling():
            return execution.failed(error)  # the worker cancelled something itself
        task.uncancel()  # it was meant for the worker; the report must still be sent
        return execution.failed(Interrupted("its task was cancelled"), cancelled=True)
    except BaseException as error:  # noqa: BLE001 - see above
        return execution.failed(error)


class _NotReady(Exception):
    """The worker cannot be called here. The text says why."""


class _AssignmentRun:
    """The execution of one assignment: collects its messages and builds its report."""

    def __init__(
        self,
        assignment: Assignment,
        stopping: threading.Event | None,
        lost: threading.Event | None,
        tell: Tell | None,
        environ: Mapping[str, str] | None,
    ) -> None:
        self._assignment = assignment
        self._stopping = stopping
        self._lost = lost
        self._environ = os.environ if environ is None else environ
        self._lease_messages: list[LeaseMessage] = []
        self._lines: list[LogLine] = []
        self._tell = tell
        self._on_message: Callable[[LeaseMessage], object] = (
            self._lease_messages.append if tell is None else self._send_message
        )
        self._on_log_line: Callable[[LogLine], object] = self._lines.append if tell is None else self._send_message
        self._lease: RemoteLease | None = None
        self._began_at = time.monotonic()

    def build_call(self, function: PickledObject) -> Callable[[], Any]:
        """Prepare the call of the worker."""
        assignment = self._assignment
        try:
            secret = resolve_secret(assignment, self._environ)
            call = _function(function.data)
        except AgentOSError as error:
            raise _NotReady(str(error)) from None
        payload = unpack(assignment.payload, "the item")
        if not assignment.wants_context:
            return partial(call, payload, secret)
        if assignment.lease is not None and assignment.credential is not None:
            self._lease = RemoteLease(
                assignment.credential,
                assignment.lease,
                secret or "",
                self._on_message,
                requester=assignment.item_id,
                model=assignment.model,
                lost=self._lost,
            )
        send_output = None if self._tell is None else self._send_output
        context = RemoteContext(
            assignment,
            self._lease,
            self._stopping or threading.Event(),
            self._on_log_line,
            self._on_message,
            send_output,
        )
        return partial(call, payload, secret, context=context)

    def _send_output(self, stream: str, data: bytes) -> None:
        self._send_message(Printed(stream, data))

    def _send_message(self, thing: LeaseMessage | LogLine | Printed) -> None:
        assert self._tell is not None  # noqa: S101 - for the type checker: else it is part of the report
        try:
            self._tell(thing)
        except Exception as error:  # noqa: BLE001 - only the message is lost
            item_id = self._assignment.item_id
            log.warning("[COORDINATOR] %s: a message could not be sent (%s)", item_id, type(error).__name__)

    def done(self, value: Any) -> AttemptReport:
        if value is None:
            return self._report()
        try:
            return self._report(value=pack(value, "what its worker returned", same_main=self._assignment.same_main))
        except NotPicklable as error:
            return self.failed(error)

    def failed(self, error: BaseException, *, cancelled: bool = False) -> AttemptReport:
        failure = build_failure(
            error,
            model=self._assignment.model,
            reported=self._lease is not None and self._lease.has_reported(error),
            same_main=self._assignment.same_main,
        )
        return self._report(failure=failure, cancelled=cancelled)

    def unready(self, why: str) -> AttemptReport:
        return self._report(unready=why)

    def _report(self, **how: Any) -> AttemptReport:
        return AttemptReport(
            self._assignment.token,
            lease_messages=tuple(self._lease_messages),
            log_lines=tuple(self._lines),
            duration=time.monotonic() - self._began_at,
            **how,
        )


@lru_cache(maxsize=8)
def _function(data: bytes) -> Callable[..., Any]:
    """Return the worker, unpickled once per process: as on threads, all items share one object."""
    made: Callable[..., Any] = unpack(PickledObject(data), "the worker function")
    return made
