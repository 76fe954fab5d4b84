"""The HTTP clients of one run: ``context.http``, for plain calls and for any SDK."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..pool.protocols import TransportPool
from ..util.event_loop import running_loop
from ..util.fork_hooks import ForkSafeLocks, register_fork_hooks
from .pool_binding import settings_for

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_CLOSING_SECONDS = 1.0  # for the connections of a loop on another thread


class RunClients(ForkSafeLocks):
    """One client for the threads of a run, and one for each event loop, made on first use.

    Their calls use the lease of the item that makes them. If the item has none, each call takes one.
    """

    def __init__(self, pool: TransportPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._client: Any = None
        self._by_loop: dict[AbstractEventLoop, Any] = {}
        self._closing: set[Any] = set()  # tasks
        register_fork_hooks(self)

    def in_forked_child(self) -> None:
        self._lock = threading.Lock()
        self._client = None  # the connections belong to the parent
        self._by_loop = {}

    def get_client(self) -> Any:
        """Return the asynchronous client of the running loop; without a loop, the client for threads."""
        from .run_client_classes import make_async_client, make_client

        loop = running_loop()
        with self._lock:
            if loop is None:
                if self._client is None:
                    self._client = make_client(self._settings())
                return self._client
            if loop not in self._by_loop:
                self._by_loop[loop] = make_async_client(self._settings())
            return self._by_loop[loop]

    def _settings(self) -> Any:
        return settings_for(self._pool, None, None, 0, "http", None, None, 0)

    async def close_loop(self) -> None:
        """Close the client of the running loop."""
        loop = running_loop()
        with self._lock:
            client = None if loop is None else self._by_loop.pop(loop, None)
        if client is not None:
            await client.end()

    def close(self) -> None:
        """Close all clients: the run is over."""
        with self._lock:
            client, self._client = self._client, None
            by_loop, self._by_loop = self._by_loop, {}
        if client is not None:
            client.end()
        for loop, async_client in by_loop.items():
            self._close_on(loop, async_client)

    def _close_on(self, loop: AbstractEventLoop, client: Any) -> None:
        if loop is running_loop():
            task = loop.create_task(client.end())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        elif loop.is_running():
            from asyncio import run_coroutine_threadsafe

            closing = run_coroutine_threadsafe(client.end(), loop)
            try:
                closing.result(_CLOSING_SECONDS)
            except Exception:  # noqa: BLE001 - a coroutine blocks the loop, or it ended meanwhile: it has the connections
                closing.cancel()
