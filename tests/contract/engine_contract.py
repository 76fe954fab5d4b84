"""The engine contract's fixture: one scenario with one worker, run by every engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from agentos import CredentialCoordinator, ParallelCoordinator, Progress, ProgressStats, WorkflowResult
from agentos.runs.core.states import Phase
from agentos.runs.execution.run import Run
from agentos.testing import FakeClock

from .local_cluster import Seats

PATIENCE = 40.0

Body = Callable[..., Awaitable[Any]]
Outcome = tuple[ProgressStats, list[WorkflowResult]]


@dataclass(frozen=True)
class Engine:
    """A way to run workers.

    ``coroutines``: its workers are coroutine functions, and can be cancelled. ``in_loop``: its caller has a loop.
    ``given`` makes what a run is given as its engine; workers must be in this process, where the gates are. ``away``:
    they run apart from the driver all the same: its pool is not at hand, and what it says takes a moment to get there.
    """

    name: str
    coroutines: bool
    in_loop: bool
    given: Callable[[], Executor] | None = None
    away: bool = False

    @property
    def clean_up(self) -> float:
        """Return how long a cancelled worker may take to end before it is abandoned."""
        return 2.0 if self.away else 1.0

    @property
    def lag(self) -> float:
        """Return how long it may take until a worker learns that the run stops."""
        return PATIENCE if self.away else 0.0

    def worker(self, body: Body, *, context: bool = False) -> Callable[..., Any]:
        """The body as this engine wants its workers, known to a journal by the name of the body."""
        made = _coroutine_of(body, context) if self.coroutines else _function_of(body, context)
        made.__module__, made.__qualname__ = body.__module__, body.__qualname__
        return made

    def execute(
        self,
        run: ParallelCoordinator,
        items: Any,
        worker: Any,
        id_of: Callable[[Any], Any] = str,
        tell: Callable[[Outcome], object] = id,
    ) -> Outcome:
        """Run it, *tell* the outcome as soon as the caller has it, and return it."""

        async def main() -> Outcome:
            outcome = await run.execute_async(items, worker, id_of)
            tell(outcome)  # asyncio.run() waits for tasks that were left behind; the run does not
            return outcome

        self._place(run)
        if self.in_loop:
            return asyncio.run(main())
        outcome = run.execute_parallel(items, worker, id_of)
        tell(outcome)
        return outcome

    def stream(
        self, run: ParallelCoordinator, items: Any, worker: Any, id_of: Callable[[Any], Any] = str
    ) -> list[WorkflowResult]:
        async def collect() -> list[WorkflowResult]:
            return [result async for result in run.stream_async(items, worker, id_of)]

        self._place(run)
        return asyncio.run(collect()) if self.in_loop else list(run.stream(items, worker, id_of))

    def _place(self, run: ParallelCoordinator) -> None:
        """As if the run had been made for this engine: the stories make theirs without one."""
        if self.given is not None:
            run._options = replace(run._options, engine=self.given(), ship_secrets=True)

    def inputs(self, items: Iterable[Any]) -> list[Any]:
        """The same items in every form of input that this engine's caller may give."""
        found: list[Any] = [list(items), iter(list(items))]
        return [*found, _one_by_one(items)] if self.in_loop else found


# More threads than any story has workers: those that it leaves behind are not to hold up the others.
_THREADS = 96


def _threads() -> Executor:
    return ThreadPoolExecutor(_THREADS)  # its threads end when nobody has it any more


ENGINES = [
    Engine("threads", coroutines=False, in_loop=False),
    Engine("own loop", coroutines=True, in_loop=False),
    Engine("the caller's loop", coroutines=True, in_loop=True),
    Engine("threads under a loop", coroutines=False, in_loop=True),
    Engine("an executor", coroutines=False, in_loop=False, given=_threads),
    Engine("an executor under a loop", coroutines=False, in_loop=True, given=_threads),
    Engine("seats", coroutines=False, in_loop=False, given=Seats, away=True),
    Engine("coroutines in seats", coroutines=True, in_loop=False, given=Seats, away=True),
]


def _coroutine_of(body: Body, context: bool) -> Callable[..., Any]:
    if context:

        async def with_context(item: Any, credential: str | None, context: Any) -> Any:
            return await body(item, credential, context)

        return with_context

    async def without(item: Any, credential: str | None) -> Any:
        return await body(item, credential)

    return without


def _function_of(body: Body, context: bool) -> Callable[..., Any]:
    if context:

        def with_context(item: Any, credential: str | None, context: Any) -> Any:
            return _run_to_its_end(body(item, credential, context))

        return with_context

    def without(item: Any, credential: str | None) -> Any:
        return _run_to_its_end(body(item, credential))

    return without


def _run_to_its_end(body: Awaitable[Any]) -> Any:
    try:
        next(iter(body.__await__()))
    except StopIteration as end:
        return end.value
    raise AssertionError("a body may only wait at a gate")


async def _one_by_one(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


class Gate:
    """Workers wait here until the test lets them through, and the test until enough workers have arrived."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.arrived: list[Any] = []

    async def wait(self, who: Any = None) -> None:
        """For a worker, whether it is a thread or a task."""
        loop = asyncio._get_running_loop()
        future = None if loop is None else loop.create_future()
        with self._changed:
            self.arrived.append(who)
            self._changed.notify_all()
            if self._open:
                return
            if future is not None and loop is not None:
                self._waiting.append((loop, future))
            else:
                assert self._changed.wait_for(lambda: self._open, PATIENCE), "nobody opened the gate"
        if future is not None:
            await future

    async def wait_stubbornly(self, who: Any = None) -> None:
        """As a worker that cannot be stopped: it heeds no cancellation."""
        while not self._open:
            try:
                await self.wait(who)
            except asyncio.CancelledError:
                continue

    def open(self) -> None:
        with self._changed:
            self._open = True
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(lambda future=future: future.done() or future.set_result(None))  # type: ignore[misc]
            except RuntimeError:
                pass  # its loop is closed

    def wait_for(self, count: int) -> list[Any]:
        """For the test: until so many have arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.arrived) >= count, PATIENCE), f"only {self.arrived} arrived"
            return list(self.arrived)


class Events:
    """The events of a run, as ``on_progress`` gets them, to be waited for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Progress] = []

    def __call__(self, event: Progress) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def wait_for(self, kind: str, item_id: str | None = None) -> Progress:
        def found() -> list[Progress]:
            return [event for event in self._events if event.kind == kind and item_id in (None, event.item_id)]

        with self._changed:
            assert self._changed.wait_for(found, PATIENCE), f"no {kind} came"
            return found()[0]


class Story:
    """A run under way in a thread of its own, while the test acts."""

    def __init__(
        self, engine: Engine, run: ParallelCoordinator, items: Any, worker: Any, clock: FakeClock | None = None
    ) -> None:
        self.run = run
        self.clock = clock
        self._outcome: list[Outcome] = []
        self._error: list[BaseException] = []
        self._ended = threading.Event()

        def ended(outcome: Outcome) -> None:
            self._outcome.append(outcome)
            self._ended.set()

        def go() -> None:
            try:
                engine.execute(run, items, worker, tell=ended)
            except BaseException as error:
                self._error.append(error)
                self._ended.set()

        threading.Thread(target=go, name="story", daemon=True).start()

    @property
    def inside(self) -> Run:
        """The run itself, for what has no front door."""
        eventually(lambda: self.run._running)
        return self.run._running[0]

    def end(self) -> Outcome:
        """Wait for the end; if there is a clock, time goes on to whatever is awaited next."""
        deadline = time.monotonic() + PATIENCE
        while not self._ended.wait(PATIENCE if self.clock is None else 0.002) and time.monotonic() < deadline:
            if self.clock is not None and self._waits_for_time(self.clock):
                go_on(self.clock)
        assert self._ended.is_set(), "the run did not end"
        if self._error:
            raise self._error[0]
        return self._outcome[0]

    def _waits_for_time(self, clock: FakeClock) -> bool:
        """Nobody has anything to do before time goes on: or it would pass by somebody who was about to sleep.

        Once the run stops, it waits for some who may not come back; then time is all there is to wait for.
        """
        for run in self.run._running:
            if run.state.scheduler.phase is not Phase.RUNNING:
                return True
            workers = min(run.state.options.max_workers, run.source.total or run.state.options.max_workers)
            if run.state.scheduler.running or not nothing_to_do(run, workers):
                return False
            return sleeps_until(clock, run.timers._next_instant())
        return False


def nothing_to_do(run: Run, workers: int) -> bool:
    """So many of its workers wait, and none has an item in hand: who is about to sleep looks for one once more."""
    return len(run.state.idle) == workers and len(run.state.scheduler.admitted) == len(run.dispatcher.requests)


def go_on(clock: FakeClock) -> None:
    """Move the clock to the next instant that somebody sleeps until, if there is one."""
    with clock._changed:
        instants = [until for until, _ in clock._sleepers.values() if until < float("inf")]
    if instants:
        clock.advance(max(0.0, min(instants) - clock.now()))


def sleeps_until(clock: FakeClock, at: float) -> bool:
    """Return whether a thread sleeps until *at*."""
    with clock._changed:
        return any(abs(until - at) < 1e-6 for until, _ in clock._sleepers.values())


def wait_for_alarm(clock: FakeClock, at: float) -> None:
    """Until somebody sleeps until *at*."""
    with clock._changed:
        assert clock._changed.wait_for(lambda: sleeps_until(clock, at), PATIENCE), f"nobody sleeps until {at}"


def eventually(condition: Callable[[], object]) -> None:
    """Until something holds that nobody tells of."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.001)


def by_id(results: Iterable[WorkflowResult]) -> dict[str, WorkflowResult]:
    return {result.item_id: result for result in results}


def nobody_waits(pool: CredentialCoordinator) -> bool:
    """Nobody is in the pool's line."""
    core, scheduler = pool._runtime.core, pool._runtime.scheduler
    with scheduler.locked():
        return not core.waiting and not list(core.tickets()) and not scheduler.waiters.queues


def all_are_back(pool: CredentialCoordinator) -> bool:
    """No lease is out, and nobody waits for one."""
    return not pool._runtime.core.leases and nobody_waits(pool)


def secrets(count: int) -> list[str]:
    return [f"contract-secret-{number:03d}" for number in range(count)]


def counted(items: Iterable[Any], taken: list[Any]) -> Iterator[Any]:
    """The items, noting each as it is taken."""
    for item in items:
        taken.append(item)
        yield item
