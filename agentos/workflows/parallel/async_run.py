"""A run on the event loop of its caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ...runs.engines.asyncio_tasks import AsyncioEngine
from ...runs.engines.choose import build_engine
from ...runs.execution.item_source import ItemSource
from ...runs.execution.run import Run
from ...runs.worker import Worker
from ...util.async_wakeup import AsyncWakeup
from .run_scope import SignalScope

if TYPE_CHECKING:
    from .coordinator import ParallelCoordinator

T = TypeVar("T")


class AsyncRun:
    """Start a run on the running loop, and conclude it however it ends."""

    def __init__(
        self, coordinator: ParallelCoordinator, worker: Worker, source: ItemSource, *, streamed: bool = False
    ) -> None:
        self._coordinator = coordinator
        self._worker = worker
        self._source = source
        self._streamed = streamed
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Run:
        loop = asyncio.get_running_loop()
        coordinator, worker, source = self._coordinator, self._worker, self._source
        stops = coordinator._stops
        prepare = partial(
            coordinator._prepare,
            worker,
            source,
            AsyncWakeup(loop),
            streamed=self._streamed,
            on_main_thread=threading.current_thread() is threading.main_thread(),
        )
        # A journal of a million entries takes seconds to read; the loop must not block.
        self._run = run = await run_in_thread(prepare, unwanted=lambda run: run.recorder.close(5.0))
        self._signals = SignalScope(run)
        try:
            self._signals.__enter__()
            on_this_loop = worker.is_async and run.state.options.engine is None
            coordinator._start(
                run, AsyncioEngine(run.attempts, loop) if on_this_loop else build_engine(run.attempts), stops
            )
            if source.is_async:
                self._pump = loop.create_task(self._deliver(run), name="agentos-input")
        except BaseException:
            await self.__aexit__()
            raise
        return run

    async def __aexit__(self, *_: object) -> None:
        run = self._run
        try:
            if self._pump is not None:
                self._pump.cancel()
            if not run.is_over:
                # Left early: by an exception, by cancellation, or by leaving the loop over the results.
                run.stop("its caller, which stopped waiting", force=True)
                while not run.is_over:
                    await run.wakeup.wait()
            if not run.shutdown.concluded:
                # Otherwise no step of the loop is needed: after a second signal it may not run any more.
                await run_in_thread(run.conclude)
                if run.state.clients is not None:
                    await run.state.clients.close_loop()
        finally:
            self._coordinator._end(run)
            self._signals.__exit__()

    async def _deliver(self, run: Run) -> None:
        """Feed the items of an async iterable to the run, as far as there is room."""
        loop = asyncio.get_running_loop()
        room = AsyncWakeup(loop)
        run.state.on_room = room.wake
        try:
            async for payload in self._source.async_items:
                run.dispatcher.push(payload)
                while run.dispatcher.input_room() <= 0 and not run.state.closing:
                    await room.wait()
                if run.state.closing:
                    break
        except Exception as error:  # noqa: BLE001 - the user's input; the run ends and reports it
            run.shutdown.on_input_error(error)
        finally:
            run.dispatcher.end_input()


async def run_in_thread(function: Callable[[], T], unwanted: Callable[[T], object] | None = None) -> T:
    """Call *function* on a thread without blocking the loop. If the caller is cancelled, pass the result to *unwanted*.

    The loop's own executor is not used: the user's work may have filled it.
    """
    wakeup = AsyncWakeup(asyncio.get_running_loop())
    lock = threading.Lock()
    results: list[T] = []
    errors: list[BaseException] = []
    cancelled = False

    def call() -> None:
        try:
            result = function()
            with lock:
                results.append(result)
            if cancelled and unwanted is not None:
                unwanted(result)
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            errors.append(error)
        finally:
            wakeup.wake()

    threading.Thread(target=call, name="agentos-blocking-call", daemon=True).start()
    try:
        await wakeup.wait()
    except BaseException:
        with lock:
            cancelled = True
        if results and unwanted is not None:
            unwanted(results[0])
        raise
    if errors:
        raise errors[0]
    return results[0]
