"""A gateway on a thread of its own, for a run whose workers are commands: each attempt gets a token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TYPE_CHECKING, Any, Final

from ..costs.usage_log import UsageLog
from ..providers.wire_verdict import WireVerdict
from .server import Gateway
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

    def flush(self) -> None:
        """Do nothing: the end of an attempt's access waits for its requests."""

    def open(self, item_id: str, attempt: int, usage_log: UsageLog, program: str) -> TokenAccess:
        """Return the access of one attempt, whose command begins with *program*."""
        return TokenAccess(self, TokenHolder(item_id, attempt, usage_log), program)

    def settle(self, holder: TokenHolder) -> None:
        """End the requests of *holder*, and wait until they are accounted for."""
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


class TokenAccess:
    """The access of one attempt: a token that is valid until the attempt ends."""

    def __init__(self, thread: GatewayThread, holder: TokenHolder, program: str) -> None:
        self._thread = thread
        self._holder = holder
        self._program = program
        self._token = thread.gateway.tokens.issue(holder)

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables for the attempt's processes."""
        return self._thread.programs.build_environment(self._program, self._token)

    def add_arguments(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command with the arguments that its program needs."""
        return self._thread.programs.build_arguments(argv, self._token)

    def waited(self) -> float:
        """Return the seconds in which requests of the attempt have waited for keys so far, those of now included."""
        return self._holder.wire.waited + self._thread.gateway.longest_wait(self._holder)

    def close(self) -> WireVerdict | None:
        """Refuse the token from now on. Return what the providers' answers say of the attempt."""
        self._thread.gateway.tokens.revoke(self._token)
        self._thread.settle(self._holder)
        return self._holder.wire.verdict()
