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


def run_worker_slot(post: DriverEndpoint) -> None:
    """Run attempts one after the other, until the driver dismisses the slot or is lost.

    Raise ``DriverUnreachable`` if the driver cannot be reached from here.
    """
    link = CLIENTS.join(post)
    try:
        job: WorkerJob = pickle.loads(link.welcome.result())  # noqa: S301 - from the authenticated driver
        if job.function is None:
            _run_commands(link, job)
        elif job.is_async:
            asyncio.run(_run_coroutines(link, job.function, job.width))
        else:
            _run_functions(link, job.function)
    finally:
        CLIENTS.leave(post, link)


class _Clients:
    """The clients of this process, by run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, WorkerClient] = {}
        self._slots: dict[WorkerClient, int] = {}

    def join(self, post: DriverEndpoint) -> WorkerClient:
        """Return the client for one more slot."""
        with self._lock:
            link = self._clients.get(post.run_id)
            if link is None or link.fenced:
                link = self._clients[post.run_id] = WorkerClient(post)
                link.start()
            self._slots[link] = self._slots.get(link, 0) + 1
            return link

    def leave(self, post: DriverEndpoint, link: WorkerClient) -> None:
        """Remove a slot. The last one closes the client."""
        with self._lock:
            self._slots[link] -= 1
            if self._slots[link]:
                return
            del self._slots[link]
            if self._clients.get(post.run_id) is link:
                del self._clients[post.run_id]
        link.close()


CLIENTS = _Clients()


def _attempts(link: WorkerClient) -> Iterator[AssignedAttempt]:
    """Yield assigned attempts until the driver dismisses the slot."""
    answers: queue.SimpleQueue[AssignedAttempt | None] = queue.SimpleQueue()
    while True:
        link.request_work(answers.put)
        handed = answers.get()
        if handed is None:
            return
        yield handed


def _run_functions(link: WorkerClient, function: PickledObject) -> None:
    for handed in _attempts(link):
        with _reporting(link, handed) as report:
            report(
                run_assignment(
                    function,
                    _assignment(handed),
                    stopping=handed.stopping,
                    lost=handed.lost,
                    tell=partial(_send_message, link, handed),
                )
            )


def _run_commands(link: WorkerClient, job: WorkerJob) -> None:
    assert job.commands is not None  # noqa: S101 - for the type checker: a job is one or the other
    workshop = link.shared(partial(WorkerCommandRunner, job.commands, link.ttl))
    for handed in _attempts(link):
        with _reporting(link, handed) as report:
            report(
                workshop.run(
                    _assignment(handed),
                    partial(_let_end, handed),
                    partial(_send_output, link, handed),
                    handed.lost,
                )
            )


async def _run_coroutines(link: WorkerClient, function: PickledObject, width: int) -> None:
    await asyncio.gather(*(_run_coroutine_loop(link, function) for _ in range(width)))


async def _run_coroutine_loop(link: WorkerClient, function: PickledObject) -> None:
    loop = asyncio.get_running_loop()
    while True:
        answered: asyncio.Future[AssignedAttempt | None] = loop.create_future()
        link.request_work(partial(_answer, link, loop, answered))
        handed = await answered
        if handed is None:
            return
        task = loop.create_task(_run_async(link, function, handed))
        task.add_done_callback(partial(_build_task_report, link, handed))
        handed.on_kill(partial(_cancel, loop, task))
        await asyncio.wait([task])  # unlike `await task`, separates the task's cancellation from ours


async def _run_async(link: WorkerClient, function: PickledObject, handed: AssignedAttempt) -> AttemptReport:
    return await run_assignment_async(
        function,
        _assignment(handed),
        stopping=handed.stopping,
        lost=handed.lost,
        tell=partial(_send_message, link, handed),
    )


def _build_task_report(link: WorkerClient, handed: AssignedAttempt, task: asyncio.Task[AttemptReport]) -> None:
    with _reporting(link, handed) as report:
        report(_cancelled(handed) if task.cancelled() else task.result())


def _answer(
    link: WorkerClient,
    loop: asyncio.AbstractEventLoop,
    answered: asyncio.Future[AssignedAttempt | None],
    handed: AssignedAttempt | None,
) -> None:
    def take() -> None:
        if not answered.done():
            answered.set_result(handed)
        elif handed is not None:
            _report(link, handed, _cancelled(handed))  # the requester is gone

    try:
        loop.call_soon_threadsafe(take)
    except RuntimeError:  # the slot's loop is closed
        if handed is not None:
            _report(link, handed, _cancelled(handed))


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], _after: float) -> None:
    try:
        loop.call_soon_threadsafe(task.cancel)
    except RuntimeError:
        pass  # the slot's loop is closed


def _assignment(handed: AssignedAttempt) -> Assignment:
    assignment: Assignment = pickle.loads(handed.body)  # noqa: S301 - from the authenticated driver
    return assignment


def _send_message(link: WorkerClient, handed: AssignedAttempt, thing: LeaseMessage | LogLine | Printed) -> None:
    if isinstance(thing, Printed):
        _send_output(link, handed, thing.stream, thing.data)
    else:
        link.send_data(handed, Channel.MESSAGE, pickle.dumps(thing))


def _let_end(handed: AssignedAttempt, running: RunningCommand) -> None:
    handed.on_kill(running.end)


def _send_output(link: WorkerClient, handed: AssignedAttempt, stream: str, data: bytes) -> None:
    link.send_data(handed, CHANNEL_OF[stream], data)


@contextmanager
def _reporting(link: WorkerClient, handed: AssignedAttempt) -> Iterator[Callable[[AttemptReport], None]]:
    """Report on the attempt in any case: the driver waits for a report as long as this process lives."""
    try:
        yield partial(_report, link, handed)
    except BaseException as error:  # noqa: BLE001 - it fails the item, not the slot
        _report(link, handed, AttemptReport(handed.token, failure=build_failure(error)))


def _cancelled(handed: AssignedAttempt) -> AttemptReport:
    """Build the report of an attempt that was cancelled before it began."""
    return AttemptReport(handed.token, failure=build_failure(Interrupted("its task was cancelled")), cancelled=True)


def _report(link: WorkerClient, handed: AssignedAttempt, report: AttemptReport) -> None:
    try:
        link.report(handed, pickle.dumps(report))
    except FrameTooLarge as error:
        link.report(handed, pickle.dumps(AttemptReport(handed.token, failure=build_failure(error))))
