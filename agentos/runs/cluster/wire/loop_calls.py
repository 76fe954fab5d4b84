"""How other threads call what happens on the thread of an event loop: each call is made there, or refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class LoopCalls:
    """The calls of other threads to *loop*.

    The loop itself would take a call after its last round and never make it; whoever waits for its answer would wait
    for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.RLock()  # a finalizer may call in the midst of a call
        self._closed = False

    def call(self, callback: Callable[[*Arguments], object], *arguments: *Arguments) -> bool:
        """For any thread: have it called on the loop's own. False: it will not be, for the loop has ended."""
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(callback, *arguments)
            return not self._closed

    def close(self) -> None:
        """Make the last calls, and close the loop, which has ended: for its own thread."""
        with self._lock:
            self._closed = True
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
