"""A gateway on a thread of its own, for a run whose workers are commands: each attempt gets a token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TYPE_CHECKING, Any, Final

from ..costs.usage_log import UsageLog
from .server import Gateway
from .token_access import TokenAccess
from .tokens import TokenHolder

if TYPE_CHECKING:
    from .program_access import ProgramAccess
    from .records import GatewayRequest

_CLOSED_WITHIN: Final = 5.0


class GatewayThread:
    """Runs a gateway until it is closed. It is the ``AttemptAccess`` of a run.

    *make* builds the gateway with a function for its records, *point* what points programs at its address. Raises what
    the gateway raises when it cannot listen.
    """

    def __init__(
        self,
        make: Callable[[Callable[[GatewayRequest], None]], Gateway],
        point: Callable[[str], ProgramAccess],
    ) -> None:
        self._record: Callable[[Any], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None
        self._started: Future[None] = Future()
        self.gateway = make(self._on_request)
        self._thread = threading.Thread(target=self._run, name="agentos-gateway", daemon=True)
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            raise
        self.programs = point(self.gateway.url)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - whoever starts the thread raises it
            if not self._started.done():
                self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        async with self.gateway:
            self._started.set_result(None)
            await self._done.wait()

    def _on_request(self, request: GatewayRequest) -> None:
        if self._record is not None:
            self._record(request)

    @property
    def waiting_requests(self) -> int:
        """Return the number of requests that wait for a key."""
        return self.gateway.waiting_requests

    def bind(self, record: Callable[[Any], None]) -> None:
        """Pass a record of each request to *record*, from now on."""
        self._record = record

    def open(self, item_id: str, attempt: int, usage_log: UsageLog, program: str) -> TokenAccess:
        """Return the access of one attempt, whose command begins with *program*."""
        return TokenAccess(self, TokenHolder(item_id, attempt, usage_log), program)

    def issue(self, holder: TokenHolder) -> str:
        """Return a new token for *holder*, valid until it is revoked."""
        return self.gateway.tokens.issue(holder)

    def longest_wait(self, holder: TokenHolder) -> float:
        """Return how long the oldest request of *holder* that waits for a key has waited."""
        return self.gateway.longest_wait(holder)

    def revoke(self, token: str, holder: TokenHolder) -> None:
        """Make *token* invalid, end the requests of *holder*, and wait until they are accounted for."""
        self.gateway.tokens.revoke(token)
        loop = self._loop
        if loop is None or not loop.is_running():
            return
        ending = asyncio.run_coroutine_threadsafe(self.gateway.end_requests(holder), loop)
        try:
            ending.result(_CLOSED_WITHIN)
        except (NotInTime, RuntimeError):
            ending.cancel()

    def close(self) -> None:
        """End all requests and the thread. Idempotent."""
        loop, done = self._loop, self._done
        if loop is not None and done is not None and self._thread.is_alive():
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # the loop has ended
            self._thread.join(_CLOSED_WITHIN)
