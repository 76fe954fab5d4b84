"""How one who waits is woken: a thread, or a task of a loop."""

from __future__ import annotations

import asyncio
import threading


class ThreadBell:
    """One thread waits; anybody rings. A ring before the wait is not lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it rings already

    def wait(self) -> None:
        self._lock.acquire()

    def silence(self) -> None:
        """Take back a ring that was not needed."""
        self._lock.acquire(False)


class AsyncBell:
    """One task waits; anybody rings, from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rung = asyncio.Event()

    def ring(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._rung.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:
            pass  # the loop is closed

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung.clear()

    def silence(self) -> None:
        """Take back a ring that was not needed."""
        self._rung.clear()
