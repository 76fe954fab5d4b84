"""The gateway: a local HTTP server that leases a key of the pool for each request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..util.http_server.connection import HttpListener
from .admission import Admission, build_hosts, is_loopback
from .client_connection import GatewayConnection
from .records import GatewayRequest
from .service import GatewayService, GatewaySettings
from .sessions import SessionTable
from .tokens import TokenHolder, TokenTable, new_token, require_strong

if TYPE_CHECKING:
    from ..pool.protocols import GatewayPool
    from ..transport import AsyncPoolTransport

_BACKLOG = 4096


class Gateway:
    """A gateway over one pool: ``async with pool.gateway() as gateway: ...``, ``gateway.url``, ``gateway.token``.

    It serves until the block ends; requests in progress are then ended, unless :meth:`drain` waited for them.
    """

    def __init__(
        self,
        pool: GatewayPool,
        make_transport: Callable[[], AsyncPoolTransport],
        *,
        listen: str = "127.0.0.1",
        host_names: Sequence[str] = (),
        port: int = 0,
        unix_socket: Path | None = None,
        token: str | None = None,
        settings: GatewaySettings | None = None,
        on_request: Callable[[GatewayRequest], None] | None = None,
    ) -> None:
        self.token = new_token() if token is None else require_strong(token)
        self.tokens = TokenTable(self.token)
        pool.masker.add(self.token)
        pool.masker.add(self.tokens.stem)
        self.url = ""  # known when it listens
        self._pool = pool
        self._make_transport = make_transport
        self._listen = listen
        self._host_names = host_names
        self.port = port  # 0: any, until it listens
        self._unix_socket = unix_socket
        self._settings = settings or GatewaySettings()
        self._on_request = on_request or _ignore
        self._listeners: list[HttpListener] = []
        self._sessions = SessionTable()
        self._service: GatewayService | None = None
        self._transport: AsyncPoolTransport | None = None

    def __repr__(self) -> str:
        return f"<Gateway {self.url or 'not listening'}>"

    @property
    def open_requests(self) -> int:
        """Return the number of requests in progress."""
        return 0 if self._service is None else len(self._service.exchanges)

    @property
    def waiting_requests(self) -> int:
        """Return the number of requests that wait for a key."""
        return 0 if self._service is None else sum(each.is_waiting for each in tuple(self._service.exchanges))

    def remember_sessions(self, keys: Mapping[str, str]) -> None:
        """Note the key that served each session last, as an earlier gateway recorded it; to be called before requests.

        What such a session carries was made by that key's quota. Keys that are gone are left out.
        """
        for session, key in keys.items():
            with contextlib.suppress(ValueError):
                self._sessions.note_earlier(session, self._pool.find_quota(key))

    async def start(self) -> None:
        """Listen. Raises OSError if the port or the socket's path is taken."""
        loop = asyncio.get_running_loop()
        self._transport = self._make_transport()
        self._service = service = GatewayService(
            self._pool, self._transport, self._settings, self._on_request, self._sessions, loop
        )
        names = build_hosts(self._listen, self._host_names)
        by_name = Admission(self.tokens, names, any_address=not is_loopback(self._listen))
        server = await loop.create_server(
            lambda: GatewayConnection(service, by_name, loop), self._listen, self.port, backlog=_BACKLOG
        )
        self._listeners.append(HttpListener(server, service.connections))
        self.url, self.port = self._listeners[0].url, self._listeners[0].address[1]
        if self._unix_socket is not None:
            try:
                self._listeners.append(await self._listen_on_path(service, self._unix_socket, loop))
            except OSError as error:
                path, self._unix_socket = self._unix_socket, None  # it is another's
                await self.close()
                raise OSError(error.errno, error.strerror or str(error), str(path)) from None

    async def _listen_on_path(
        self, service: GatewayService, path: Path, loop: asyncio.AbstractEventLoop
    ) -> HttpListener:
        anyone = Admission(self.tokens, None)
        if os.path.lexists(path):
            _remove_dead_socket(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            os.chmod(path, 0o600)  # nobody can connect before it listens
            server = await loop.create_unix_server(
                lambda: GatewayConnection(service, anyone, loop), sock=listening, backlog=_BACKLOG
            )
        except BaseException:
            listening.close()
            raise
        return HttpListener(server, service.connections)

    def longest_wait(self, holder: TokenHolder) -> float:
        """Return how long the oldest request of *holder* that waits for a key has waited."""
        exchanges = () if self._service is None else tuple(self._service.exchanges)
        return max((each.elapsed for each in exchanges if each.holder is holder and each.is_held), default=0.0)

    async def end_requests(self, holder: TokenHolder) -> None:
        """End the requests of *holder*, and wait until they are accounted for."""
        exchanges = () if self._service is None else tuple(self._service.exchanges)
        tasks = [task for each in exchanges if each.holder is holder and (task := each.end()) is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def wait_recorded(self) -> None:
        """Wait until the requests whose clients have their answers are recorded."""
        exchanges = () if self._service is None else tuple(self._service.exchanges)
        tasks = [task for each in exchanges if (task := each.told_task) is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def drain(self) -> None:
        """Accept nothing new, and wait for the requests in progress."""
        service = self._service
        if service is None:
            return
        service.is_draining = True
        for listener in self._listeners:
            await listener.stop_accepting()
        while service.exchanges:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End all requests and release the port. Idempotent."""
        service, self._service = self._service, None
        if service is None:
            return
        service.is_draining = True
        for exchange in tuple(service.exchanges):
            exchange.end()
        while self._listeners:
            await self._listeners.pop().close()
        while service.exchanges:
            await asyncio.sleep(0)
        service.wheel.close()
        if self._transport is not None:
            await self._transport.aclose()
        if self._unix_socket is not None:
            self._unix_socket.unlink(missing_ok=True)

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.close()


def _remove_dead_socket(path: Path) -> None:
    """Remove the socket of a gateway that is gone. Raises FileExistsError if one listens there, or it is no socket."""
    if not path.is_socket():
        raise FileExistsError(errno.EEXIST, "there is a file that is not a socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise FileExistsError(errno.EEXIST, "another gateway listens there", str(path))


def _ignore(_: GatewayRequest) -> None:
    """Record nothing."""
