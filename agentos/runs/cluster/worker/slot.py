"""A worker slot: a long-lived task on a cluster worker that runs one attempt after the other."""

from __future__ import annotations

import asyncio
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ....errors import Interrupted
from ...commands.process import RunningCommand
from ...remote.assignment import Assignment
from ...remote.attempt_report import AttemptReport, LogLine, Printed, build_failure
from ...remote.pickled import PickledObject
from ...remote.worker_call import run_assignment, run_assignment_async
from ...remote.worker_lease import LeaseMessage
from ..wire.messages import CHANNEL_OF, Channel, FrameTooLarge
from .assigned_attempt import AssignedAttempt
from .client import DriverEndpoint, WorkerClient
from .command_runner import WorkerCommandRunner, WorkerEnvironment


@dataclass(frozen=True, slots=True, repr=False)
class WorkerJob:
    """The work of a run's slots: call a function, or run commands.

    Each slot runs *width* items at once; more than one only for coroutines.
    """

    function: PickledObject | None = None
    commands: WorkerEnvironment | None = None
    is_async: bool = False
    width: int = 1


def run_worker_slot(endpoint: DriverEndpoint) -> None:
    """Run attempts one after the other, until the driver dismisses the slot or is lost.

    Raise ``DriverUnreachable`` if the driver cannot be reached from here.
    """
    client = CLIENTS.join(endpoint)
    try:
        job: WorkerJob = pickle.loads(client.welcome.result())  # noqa: S301 - from the authenticated driver
        if job.function is None:
            _run_commands(client, job)
        elif job.is_async:
            asyncio.run(_run_coroutines(client, job.function, job.width))
        else:
            _run_functions(client, job.function)
    finally:
        CLIENTS.leave(endpoint, client)


class _Clients:
    """The clients of this process, by run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, WorkerClient] = {}
        self._slots: dict[WorkerClient, int] = {}

    def join(self, endpoint: DriverEndpoint) -> WorkerClient:
        """Return the client for one more slot."""
        with self._lock:
            client = self._clients.get(endpoint.run_id)
            if client is None or client.fenced:
                client = self._clients[endpoint.run_id] = WorkerClient(endpoint)
                client.start()
            self._slots[client] = self._slots.get(client, 0) + 1
            return client

    def leave(self, endpoint: DriverEndpoint, client: WorkerClient) -> None:
        """Remove a slot. The last one closes the client."""
        with self._lock:
            self._slots[client] -= 1
            if self._slots[client]:
                return
            del self._slots[client]
            if self._clients.get(endpoint.run_id) is client:
                del self._clients[endpoint.run_id]
        client.close()


CLIENTS = _Clients()


def _attempts(client: WorkerClient) -> Iterator[AssignedAttempt]:
    """Yield assigned attempts until the driver dismisses the slot."""
    answers: queue.SimpleQueue[AssignedAttempt | None] = queue.SimpleQueue()
    while True:
        client.request_work(answers.put)
        attempt = answers.get()
        if attempt is None:
            return
        yield attempt


def _run_functions(client: WorkerClient, function: PickledObject) -> None:
    for attempt in _attempts(client):
        with _reporting(client, attempt) as report:
            report(
                run_assignment(
                    function,
                    _assignment(attempt),
                    stopping=attempt.stopping,
                    lost=attempt.lost,
                    tell=partial(_send_message, client, attempt),
                )
            )


def _run_commands(client: WorkerClient, job: WorkerJob) -> None:
    assert job.commands is not None  # noqa: S101 - for the type checker: a job is one or the other
    runner = client.shared(partial(WorkerCommandRunner, job.commands, client.ttl))
    for attempt in _attempts(client):
        with _reporting(client, attempt) as report:
            report(
                runner.run(
                    _assignment(attempt),
                    partial(_let_end, attempt),
                    partial(_send_output, client, attempt),
                    attempt.lost,
                )
            )


async def _run_coroutines(client: WorkerClient, function: PickledObject, width: int) -> None:
    await asyncio.gather(*(_run_coroutine_loop(client, function) for _ in range(width)))


async def _run_coroutine_loop(client: WorkerClient, function: PickledObject) -> None:
    loop = asyncio.get_running_loop()
    while True:
        answered: asyncio.Future[AssignedAttempt | None] = loop.create_future()
        client.request_work(partial(_answer, client, loop, answered))
        attempt = await answered
        if attempt is None:
            return
        task = loop.create_task(_run_async(client, function, attempt))
        task.add_done_callback(partial(_build_task_report, client, attempt))
        attempt.on_kill(partial(_cancel, loop, task))
        await asyncio.wait([task])  # unlike `await task`, separates the task's cancellation from ours


async def _run_async(client: WorkerClient, function: PickledObject, attempt: AssignedAttempt) -> AttemptReport:
    return await run_assignment_async(
        function,
        _assignment(attempt),
        stopping=attempt.stopping,
        lost=attempt.lost,
        tell=partial(_send_message, client, attempt),
    )


def _build_task_report(client: WorkerClient, attempt: AssignedAttempt, task: asyncio.Task[AttemptReport]) -> None:
    with _reporting(client, attempt) as report:
        report(_cancelled(attempt) if task.cancelled() else task.result())


def _answer(
    client: WorkerClient,
    loop: asyncio.AbstractEventLoop,
    answered: asyncio.Future[AssignedAttempt | None],
    attempt: AssignedAttempt | None,
) -> None:
    def take() -> None:
        if not answered.done():
            answered.set_result(attempt)
        elif attempt is not None:
            _report(client, attempt, _cancelled(attempt))  # the requester is gone

    try:
        loop.call_soon_threadsafe(take)
    except RuntimeError:  # the slot's loop is closed
        if attempt is not None:
            _report(client, attempt, _cancelled(attempt))


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], _after: float) -> None:
    try:
        loop.call_soon_threadsafe(task.cancel)
    except RuntimeError:
        pass  # the slot's loop is closed


def _assignment(attempt: AssignedAttempt) -> Assignment:
    assignment: Assignment = pickle.loads(attempt.body)  # noqa: S301 - from the authenticated driver
    return assignment


def _send_message(client: WorkerClient, attempt: AssignedAttempt, message: LeaseMessage | LogLine | Printed) -> None:
    if isinstance(message, Printed):
        _send_output(client, attempt, message.stream, message.data)
    else:
        client.send_data(attempt, Channel.MESSAGE, pickle.dumps(message))


def _let_end(attempt: AssignedAttempt, running: RunningCommand) -> None:
    attempt.on_kill(running.end)


def _send_output(client: WorkerClient, attempt: AssignedAttempt, stream: str, data: bytes) -> None:
    client.send_data(attempt, CHANNEL_OF[stream], data)


@contextmanager
def _reporting(client: WorkerClient, attempt: AssignedAttempt) -> Iterator[Callable[[AttemptReport], None]]:
    """Report on the attempt in any case: the driver waits for a report as long as this process lives."""
    try:
        yield partial(_report, client, attempt)
    except BaseException as error:  # noqa: BLE001 - it fails the item, not the slot
        _report(client, attempt, AttemptReport(attempt.token, failure=build_failure(error)))


def _cancelled(attempt: AssignedAttempt) -> AttemptReport:
    """Build the report of an attempt that was cancelled before it began."""
    return AttemptReport(attempt.token, failure=build_failure(Interrupted("its task was cancelled")), cancelled=True)


def _report(client: WorkerClient, attempt: AssignedAttempt, report: AttemptReport) -> None:
    try:
        client.report(attempt, pickle.dumps(report))
    except FrameTooLarge as error:
        client.report(attempt, pickle.dumps(AttemptReport(attempt.token, failure=build_failure(error))))
