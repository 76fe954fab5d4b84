"""What runs in the other process: it calls the user's worker, and makes a report of whatever comes of that."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import CoroutineType
from typing import Any

from ...errors import AgentOSError, Interrupted, NotPicklable
from .assignment import Assignment
from .attempt_report import AttemptReport, LogLine, Printed, build_failure
from .pickled import PickledObject, pack, unpack
from .worker_context import RemoteContext
from .worker_lease import LeaseMessage, RemoteLease
from .worker_secrets import resolve_secret

log = logging.getLogger("agentos")

Tell = Callable[[LeaseMessage | LogLine | Printed], object]


def agentos_item(function: PickledObject, assignment: Assignment, is_async: bool) -> AttemptReport:
    """Carry out one assignment in a process of an executor. Its name is what a dashboard shows."""
    if os.getpid() != assignment.driver:
        _leave_interrupts_to_the_driver()
    return run_assignment(function, assignment, is_async=is_async)


def _leave_interrupts_to_the_driver() -> None:
    """Ctrl-C reaches every process of a terminal. What runs here may end: whether it is waited for is decided there.

    For good, not for this item alone: between two items it would end this process, and with it the whole executor.
    """
    here = threading.current_thread() is threading.main_thread()  # only there it can be set
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
    """Call the worker, once, and report. Never raises: whatever the worker raises is in the report.

    *function* is the user's worker; *is_async*, it is a coroutine function and gets a loop of its own. *stopping* is
    what the worker sees as ``context.stopping``; *lost*, once set, ends its lease. *tell* gets what the worker says of
    its key, what it logs and the output it sends, at once; without it, messages and log lines go with the report.
    """
    if is_async:
        later = run_assignment_async(function, assignment, stopping=stopping, lost=lost, tell=tell, environ=environ)
        try:
            return asyncio.run(later)
        except BaseException as error:  # noqa: BLE001 - a loop that runs in this thread already, or cannot be closed
            later.close()
            return AttemptReport(assignment.token, failure=build_failure(error))
    errand = _AssignmentRun(assignment, stopping, lost, tell, environ)
    try:
        value = errand.build_call(function)()
        if type(value) is CoroutineType:
            value.close()
            raise TypeError("the worker returned a coroutine and did not await it: declare it `async def`")  # noqa: TRY301
        return errand.done(value)
    except _NotReady as unready:
        return errand.unready(str(unready))
    except BaseException as error:  # noqa: BLE001 - whatever a worker raises fails its item, not its process
        return errand.failed(error)


async def run_assignment_async(
    function: PickledObject,
    assignment: Assignment,
    *,
    stopping: threading.Event | None = None,
    lost: threading.Event | None = None,
    tell: Tell | None = None,
    environ: Mapping[str, str] | None = None,
) -> AttemptReport:
    """The same for a coroutine function, on the loop that runs. If its task is cancelled, the report says so."""
    errand = _AssignmentRun(assignment, stopping, lost, tell, environ)
    task = asyncio.current_task()
    try:
        return errand.done(await errand.build_call(function)())
    except _NotReady as unready:
        return errand.unready(str(unready))
    except asyncio.CancelledError as error:
        if task is None or not task.cancelling():
            return errand.failed(error)  # something of its own was cancelled
        task.uncancel()  # it was meant for the worker; the report still has to go
        return errand.failed(Interrupted("its task was cancelled"), cancelled=True)
    except BaseException as error:  # noqa: BLE001 - see above
        return errand.failed(error)


class _NotReady(Exception):
    """The worker cannot be called here. The text says why."""


class _AssignmentRun:
    """One assignment on its way: what was said so far, and the report at its end."""

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
        self._hear: Callable[[LeaseMessage], object] = (
            self._lease_messages.append if tell is None else self._send_message
        )
        self._say: Callable[[LogLine], object] = self._lines.append if tell is None else self._send_message
        self._lease: RemoteLease | None = None
        self._began_at = time.monotonic()

    def build_call(self, function: PickledObject) -> Callable[[], Any]:
        """The call to make."""
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
                self._hear,
                requester=assignment.item_id,
                model=assignment.model,
                lost=self._lost,
            )
        send_output = None if self._tell is None else self._send_output
        context = RemoteContext(assignment, self._lease, self._stopping or threading.Event(), self._say, send_output)
        return partial(call, payload, secret, context=context)

    def _send_output(self, stream: str, data: bytes) -> None:
        self._send_message(Printed(stream, data))

    def _send_message(self, thing: LeaseMessage | LogLine | Printed) -> None:
        assert self._tell is not None  # noqa: S101 - for the type checker: else it goes with the report
        try:
            self._tell(thing)
        except Exception as error:  # noqa: BLE001 - what cannot be sent is lost; the item is not
            item_id = self._assignment.item_id
            log.warning("[COORDINATOR] %s: what it said could not be sent (%s)", item_id, type(error).__name__)

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
    """The worker, made once in this process: as under threads, an object is the same for all its items."""
    made: Callable[..., Any] = unpack(PickledObject(data), "the worker function")
    return made
