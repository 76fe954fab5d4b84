"""Clients that stay open until their run ends: an SDK closes the client that it was given."""

from __future__ import annotations

from typing import Any

from .httpx_compat import AsyncClient, Client, Timeout
from .settings import TransportSettings
from .transport import AsyncPoolTransport, PoolTransport

# As the SDKs of openai and anthropic: an answer may take minutes, a connection may not.
_TIMEOUT = Timeout(600.0, connect=5.0)


class RunClient(Client):
    """``context.http`` of a worker on a thread. Closing it does nothing; the run closes it."""

    def close(self) -> None:
        """Do nothing: other items use the client, too."""

    def __enter__(self) -> RunClient:
        return self

    def __exit__(self, *_: object) -> None: ...

    def end(self) -> None:
        """Close the connections."""
        super().close()


class AsyncRunClient(AsyncClient):
    """``context.http`` of a coroutine. Closing it does nothing; the run closes it."""

    async def aclose(self) -> None:
        """Do nothing: other items use the client, too."""

    async def __aenter__(self) -> AsyncRunClient:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def end(self) -> None:
        """Close the connections."""
        await super().aclose()


def make_client(settings: TransportSettings) -> Any:
    """Return a client for threads."""
    return RunClient(transport=PoolTransport(settings), timeout=_TIMEOUT, follow_redirects=True)


def make_async_client(settings: TransportSettings) -> Any:
    """Return a client for the running loop."""
    return AsyncRunClient(transport=AsyncPoolTransport(settings), timeout=_TIMEOUT, follow_redirects=True)
