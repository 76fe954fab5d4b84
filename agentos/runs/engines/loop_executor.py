"""The default executor of an event loop, which counts the calls that each attempt has started.

Calls of ``asyncio.to_thread`` and ``loop.run_in_executor(None, ...)`` continue when their coroutine is cancelled, and
still use the attempt's credential. So ``submit``, which runs in the caller's context, counts the calls of each attempt,
and the credential is released when the last of them has ended.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StartedCalls:
    """The calls that one attempt has started in the executor and that have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._on_end: Callable[[], object] | None = None

    def add(self, call: Future[T]) -> None:
        """Count *call* until it has returned, or was cancelled before a thread took it."""
        with self._lock:
            self._running += 1
        call.add_done_callback(self._ended)

    def when_ended(self, on_end: Callable[[], object]) -> bool:
        """Call *on_end* once all of them have ended, on the thread of the last. False: none is running."""
        with self._lock:
            if not self._running:
                return False
            self._on_end = on_end
            return True

    def _ended(self, _call: Future[T]) -> None:
        on_end = None
        with self._lock:
            self._running -= 1
            if not self._running:
                on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


# Set for the current attempt of a task. Tasks and threads that it starts inherit it.
STARTED: ContextVar[StartedCalls | None] = ContextVar("agentos_started_calls", default=None)


class LoopExecutor(ThreadPoolExecutor):
    """A thread pool of the size of a loop's own default executor."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="agentos-to-thread")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        call = super().submit(fn, *args, **kwargs)
        started = STARTED.get()
        if started is not None:
            started.add(call)
        return call


def install_loop_executor(loop: AbstractEventLoop) -> None:
    """Install a LoopExecutor in *loop*, unless it has a default executor already, or hides it."""
    # There is no public way to read it; a loop class that hides it is left as it is.
    if getattr(loop, "_default_executor", loop) is None:
        loop.set_default_executor(LoopExecutor())
