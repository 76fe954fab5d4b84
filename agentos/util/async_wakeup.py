"""Wake-up of a waiting asyncio task."""

from __future__ import annotations

import asyncio


class AsyncWakeup:
    """Lets one task wait; any thread may wake it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._woken = asyncio.Event()

    def wake(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._woken.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            pass  # the loop is closed

    async def wait(self) -> None:
        await self._woken.wait()
        self._woken.clear()
