"""The state that all connections of a gateway share, and its settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_plus

from ..util.http_server.connection import HttpConnection, HttpDate
from ..util.http_server.request_body import BodyMemory
from .error_answers import explain_error, judge_error
from .records import GatewayRequest
from .request_facts import digest_state
from .sessions import SessionTable
from .upstream_body import upstream_body
from .waiting.lanes import LaneTable
from .waiting.places import PlacesInLine
from .waiting.timer_wheel import TimerWheel

if TYPE_CHECKING:
    from ..pool.protocols import GatewayPool
    from ..providers.wire_verdict import WireVerdict
    from ..transport import AsyncPoolTransport
    from ..util.http_server.request_parser import HttpRequest
    from .client_connection import GatewayConnection
    from .exchange import Exchange
    from .refusals import GatewayRefusal
    from .routes import Route

log = logging.getLogger("agentos")

_MOST_URLS: Final = 256
MEMORY_FOR_BODIES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Settings of a gateway; times in seconds."""

    max_wait: float | None = None  # for a key; None: without end
    park_after: float | None = None  # a request whose key opens later than this is refused; None: never
    connect_timeout: float = 30.0
    silence: float = 300.0  # of the provider, before and during an answer
    head_timeout: float = 30.0  # for the head of a request
    body_timeout: float = 300.0  # for the whole request
    idle_timeout: float = 600.0  # of a connection without a request
    sweep: float = 2.0  # between two looks at slow clients

    def __post_init__(self) -> None:
        """Raise ValueError for a wait that is none."""
        for name, value in (("max_wait", self.max_wait), ("park_after", self.park_after)):
            if value is not None and not (isinstance(value, int | float) and value >= 0):
                raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value!r}")


class GatewayService:
    """Serves the connections of one gateway, in one event loop."""

    def __init__(
        self,
        pool: GatewayPool,
        transport: AsyncPoolTransport,
        settings: GatewaySettings,
        on_request: Callable[[GatewayRequest], None],
        sessions: SessionTable,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.clock = pool.clock
        self.connections: set[HttpConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.sessions = sessions
        self.places = PlacesInLine()
        self.lanes = LaneTable()
        self.memory = BodyMemory(MEMORY_FOR_BODIES)
        self.date = HttpDate()
        self.wheel = TimerWheel(loop)
        self.is_draining = False
        self._on_request = on_request
        self._transport = transport
        self._loop = loop
        self._urls: dict[tuple[str, str], Any] = {}
        from ..transport.httpx_compat import library  # the only optional dependency, imported when it is needed

        self._library = library
        self._body_class = upstream_body(library)
        self._timeout = {
            "connect": settings.connect_timeout,
            "read": settings.silence,
            "write": settings.silence,
            "pool": None,
        }
        self.wheel.add(settings.sweep, self._sweep)

    async def send(
        self, route: Route, request: HttpRequest, headers: list[tuple[str, str]], extensions: dict[str, Any]
    ) -> Any:
        """Send a request with a key of the pool; return the provider's answer, its body unread."""
        query = _without_key(request.query)
        sent = self._library.Request(
            request.method,
            self._build_url(route.origin, f"{route.path}?{query}" if query else route.path),
            headers=headers,
            stream=self._body_class(request.body),
            extensions={"timeout": self._timeout, **extensions},
        )
        return await self._transport.handle_async_request(sent)

    def _build_url(self, origin: str, target: str) -> Any:
        """Return the URL of a request. Programs call few addresses, and each is parsed once."""
        url = self._urls.get((origin, target))
        if url is None:
            if len(self._urls) >= _MOST_URLS:
                self._urls.clear()
            parsed = self._library.URL(origin).copy_with(raw_path=target.encode("latin-1"))
            url = self._urls[origin, target] = parsed
        return url

    def record(self, request: GatewayRequest) -> None:
        """Record a request. What goes wrong there must not reach its client."""
        try:
            self._on_request(request)
        except Exception as error:  # noqa: BLE001 - the recorder is another's code
            log.warning("[GATEWAY] a request could not be recorded: %s", type(error).__name__)

    def explain(self, error: Exception, provider: str = "") -> GatewayRefusal:
        """Return the answer to a request that failed before the provider answered it."""
        is_transport = isinstance(error, self._library.TransportError)
        return explain_error(error, provider, self.pool.masked, self.clock.wall(), is_transport=is_transport)

    def judge(self, status: int, headers: Any, body: bytes, provider: str, model: str | None) -> WireVerdict:
        """Return what a provider's error says of the item that made the call."""
        return judge_error(status, headers, body, provider=provider, model=model, wall=self.clock.wall())

    def note_turn_state(self, state: str, quota: str) -> None:
        """Remember which quota gave a client this routing state, which it sends back with its next request."""
        self.sessions.note_state(digest_state(state), quota)

    def _sweep(self) -> float:
        """Refuse requests that arrive too slowly, and close idle connections."""
        now, settings = self._loop.time(), self.settings
        for connection in tuple(self.connections):
            each: GatewayConnection = connection  # type: ignore[assignment]
            if each.is_busy:
                continue
            allowed = settings.body_timeout if each.is_reading_body else settings.head_timeout
            if now - each.began_at > (allowed if each.is_reading else settings.idle_timeout):
                each.time_out()
        return settings.sweep


def _without_key(query: str) -> str:
    if "key=" not in query:
        return query
    return "&".join(part for part in query.split("&") if unquote_plus(part.partition("=")[0]) != "key")
