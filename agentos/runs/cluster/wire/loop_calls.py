"""Schedule calls from other threads on an event loop's thread, or refuse them once the loop has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class LoopCalls:
    """Calls from other threads to *loop*.

    The loop itself would accept a call after its last iteration and never make it, and a caller that waits for the
    result would wait forever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.RLock()  # a finalizer may call during a call
        self._closed = False

    def call(self, callback: Callable[[*Arguments], object], *arguments: *Arguments) -> bool:
        """Schedule a call on the loop's thread; for any thread. Return False if the loop has ended."""
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(callback, *arguments)
            return not self._closed

    def close(self) -> None:
        """Make the pending calls and close the ended loop; for its own thread."""
        with self._lock:
            self._closed = True
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
