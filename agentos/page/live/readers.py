"""Read files on threads for an event loop. The threads are daemons: a read that takes long does not hold the exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def read_on_thread(read: Callable[[], T]) -> Awaitable[T]:
    """Call *read* on a thread of its own; the awaitable has its result or its exception."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.cancelled():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = read()
        except BaseException as raised:  # noqa: BLE001 - it is raised where the answer is awaited
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=run, name="agentos-page", daemon=True).start()
    return answer
