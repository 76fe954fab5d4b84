"""A seat: a place on a worker in which one item after the other is run. The cluster starts it; it does the rest."""

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
from ...commands.process import Running
from ...remote.assignment import Assignment
from ...remote.attempt_report import Line, Printed, Report, failure_of
from ...remote.pickled import Parcel
from ...remote.worker_call import carry_out, carry_out_async
from ...remote.worker_lease import Told
from ..wire.messages import CHANNEL_OF, Channel, TooLarge
from .assigned_attempt import Handed
from .client import Link, Post
from .command_runner import Surrounding, Workshop


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """What the seats of a run do: call a function, or perform commands.

    Each runs *width* items at once: more than one only of coroutines.
    """

    function: Parcel | None = None
    commands: Surrounding | None = None
    is_async: bool = False
    width: int = 1


def sit(post: Post) -> None:
    """Run items of the run, one after the other, until the driver lets the seat go or is lost.

    Raises ``NoDriver`` if it cannot be reached from here.
    """
    link = LINKS.join(post)
    try:
        job: Job = pickle.loads(link.welcome.result())  # noqa: S301 - from the driver, who proved that it is
        if job.function is None:
            _sit_for_commands(link, job)
        elif job.is_async:
            asyncio.run(_sit_for_coroutines(link, job.function, job.width))
        else:
            _sit_for_functions(link, job.function)
    finally:
        LINKS.leave(post, link)


class _Links:
    """The links of this process, by run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        self._seats: dict[Link, int] = {}

    def join(self, post: Post) -> Link:
        """The link for one more seat."""
        with self._lock:
            link = self._links.get(post.run_id)
            if link is None or link.fenced:
                link = self._links[post.run_id] = Link(post)
                link.start()
            self._seats[link] = self._seats.get(link, 0) + 1
            return link

    def leave(self, post: Post, link: Link) -> None:
        """A seat goes. The last one closes the link."""
        with self._lock:
            self._seats[link] -= 1
            if self._seats[link]:
                return
            del self._seats[link]
            if self._links.get(post.run_id) is link:
                del self._links[post.run_id]
        link.close()


LINKS = _Links()


def _attempts(link: Link) -> Iterator[Handed]:
    """One after the other, until the seat may go."""
    answers: queue.SimpleQueue[Handed | None] = queue.SimpleQueue()
    while True:
        link.ask(answers.put)
        handed = answers.get()
        if handed is None:
            return
        yield handed


def _sit_for_functions(link: Link, function: Parcel) -> None:
    for handed in _attempts(link):
        with _reporting(link, handed) as report:
            report(
                carry_out(
                    function,
                    _assignment(handed),
                    stopping=handed.stopping,
                    lost=handed.lost,
                    tell=partial(_tell, link, handed),
                )
            )


def _sit_for_commands(link: Link, job: Job) -> None:
    assert job.commands is not None  # noqa: S101 - for the type checker: a job is one or the other
    workshop = link.shared(partial(Workshop, job.commands, link.ttl))
    for handed in _attempts(link):
        with _reporting(link, handed) as report:
            report(
                workshop.perform(
                    _assignment(handed),
                    partial(_let_end, handed),
                    partial(_print, link, handed),
                    handed.lost,
                )
            )


async def _sit_for_coroutines(link: Link, function: Parcel, width: int) -> None:
    await asyncio.gather(*(_take_turns(link, function) for _ in range(width)))


async def _take_turns(link: Link, function: Parcel) -> None:
    loop = asyncio.get_running_loop()
    while True:
        answered: asyncio.Future[Handed | None] = loop.create_future()
        link.ask(partial(_answer, link, loop, answered))
        handed = await answered
        if handed is None:
            return
        task = loop.create_task(_carry_out_async(link, function, handed))
        task.add_done_callback(partial(_report_of_task, link, handed))
        handed.on_kill(partial(_cancel, loop, task))
        await asyncio.wait([task])  # which, unlike `await task`, keeps apart whose cancellation it was


async def _carry_out_async(link: Link, function: Parcel, handed: Handed) -> Report:
    return await carry_out_async(
        function,
        _assignment(handed),
        stopping=handed.stopping,
        lost=handed.lost,
        tell=partial(_tell, link, handed),
    )


def _report_of_task(link: Link, handed: Handed, task: asyncio.Task[Report]) -> None:
    with _reporting(link, handed) as report:
        report(_cancelled(handed) if task.cancelled() else task.result())


def _answer(
    link: Link, loop: asyncio.AbstractEventLoop, answered: asyncio.Future[Handed | None], handed: Handed | None
) -> None:
    def take() -> None:
        if not answered.done():
            answered.set_result(handed)
        elif handed is not None:
            _report(link, handed, _cancelled(handed))  # who asked has gone meanwhile

    try:
        loop.call_soon_threadsafe(take)
    except RuntimeError:  # the seat is gone
        if handed is not None:
            _report(link, handed, _cancelled(handed))


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], _after: float) -> None:
    try:
        loop.call_soon_threadsafe(task.cancel)
    except RuntimeError:
        pass  # the seat is gone


def _assignment(handed: Handed) -> Assignment:
    assignment: Assignment = pickle.loads(handed.body)  # noqa: S301 - from the driver, who proved that it is
    return assignment


def _tell(link: Link, handed: Handed, thing: Told | Line | Printed) -> None:
    if isinstance(thing, Printed):
        _print(link, handed, thing.stream, thing.data)
    else:
        link.say(handed, Channel.NEWS, pickle.dumps(thing))


def _let_end(handed: Handed, running: Running) -> None:
    handed.on_kill(running.end)


def _print(link: Link, handed: Handed, stream: str, data: bytes) -> None:
    link.say(handed, CHANNEL_OF[stream], data)


@contextmanager
def _reporting(link: Link, handed: Handed) -> Iterator[Callable[[Report], None]]:
    """Reports on the attempt, whatever happens: the driver waits for that as long as this process lives."""
    try:
        yield partial(_report, link, handed)
    except BaseException as error:  # noqa: BLE001 - it fails its item, not its seat
        _report(link, handed, Report(handed.token, failure=failure_of(error)))


def _cancelled(handed: Handed) -> Report:
    """On an attempt that ended before it had begun."""
    return Report(handed.token, failure=failure_of(Interrupted("its task was cancelled")), cancelled=True)


def _report(link: Link, handed: Handed, report: Report) -> None:
    try:
        link.report(handed, pickle.dumps(report))
    except TooLarge as error:
        link.report(handed, pickle.dumps(Report(handed.token, failure=failure_of(error))))
