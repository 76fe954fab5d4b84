"""How a task of a loop that waits is woken."""

from __future__ import annotations

import asyncio


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
