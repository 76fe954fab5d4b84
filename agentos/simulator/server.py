"""Serve the provider over real HTTP, on this machine only: one asyncio protocol, and no task per request.

The rules decide, this module waits and writes. Each connection has at most one call in progress and at most one timer;
further requests on it wait in the buffer. When a connection is lost, its call ends and its slot is free.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from ..util.http_server.connection import HttpConnection, HttpDate, HttpListener, build_head
from ..util.http_server.request_parser import NO_BODY, BadRequest, HttpRequest, RequestReader
from .answer_facts import Facts, Headers
from .answer_styles import build_headers, plain_error
from .model_lists import ModelQuery, parse_model_query
from .parsed_request import NotUnderstood, ParsedRequest, RequestTarget, parse_target, read_request
from .plan import ProviderPlan, Scripted, Style
from .rules import Admitted, Provider, Refused
from .statistics import Statistics
from .success_answers import streamed_answer, whole_answer

_JSON = "application/json"
_GEMINI = "/v1beta/"  # only Gemini's addresses begin with this
_EVENTS = "text/event-stream; charset=utf-8"
_NOT_A_CALL = 0xE000_0000_0000  # requests that never reached the rules are numbered from here: far above any call


class Service:
    """One provider and its clock, for all connections.

    *clock* is monotonic seconds, *wall* epoch seconds; the provider's time starts with the service, and again with each
    :meth:`reset`.
    """

    def __init__(
        self, plan: ProviderPlan, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._wall = wall
        self._date = HttpDate()
        self._strays = _NOT_A_CALL
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self.connections: set[HttpConnection] = set()
        self.reset()

    def reset(self) -> None:
        """Start over: every limit full, nothing counted. Calls in flight are not counted when they end."""
        self._start = self._clock()
        self.provider = Provider(self._plan, epoch=self._wall())

    def now(self) -> float:
        """Return the seconds since the provider's start."""
        return self._clock() - self._start

    def statistics(self) -> Statistics:
        """Return the provider's statistics."""
        return self.provider.statistics()

    def date(self) -> str:
        """Return the value of the Date header."""
        return self._date.text(self._wall())

    def facts(self, style: Style | None = None) -> Facts:
        """Return facts for an answer to a request that is not a call: only its request's id."""
        self._strays += 1
        return Facts(style or self._plan.style, "none", False, self._strays, 0.0)

    def when_in_flight(self, number: int, then: Callable[[], None]) -> None:
        """Call *then* as soon as exactly *number* calls are in flight, which may be now."""
        self._waiting.append((number, then))
        self.changed()

    def forget(self, then: Callable[[], None]) -> None:
        """Remove the waiter *then*, which has left."""
        self._waiting = [each for each in self._waiting if each[1] != then]

    def changed(self) -> None:
        """Notify waiters after the number of calls in flight may have changed."""
        if self._waiting:
            number = self.provider.in_flight
            due = [then for wanted, then in self._waiting if wanted == number]
            self._waiting = [each for each in self._waiting if each[0] != number]
            for then in due:
                then()


class _Exchange(NamedTuple):
    """One call in progress."""

    provider: Provider  # the provider that admitted it: after a reset it is no longer the service's
    admitted: Admitted
    parsed: ParsedRequest
    request: HttpRequest


class ClientConnection(HttpConnection):
    """One client's connection."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, RequestReader())
        self._service = service
        self._timer: asyncio.TimerHandle | None = None
        self._exchange: _Exchange | None = None
        self._waiting: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection."""
        super().connection_made(transport)
        self._service.connections.add(self)

    def on_lost(self) -> None:
        """End the call of a connection that was closed by either side."""
        self._service.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is not None:
            self._service.forget(self._waiting)
            self._waiting = None
        if self._exchange is not None:
            self._end_call(left=True)

    def on_bad_request(self, error: BadRequest) -> bytes:
        """Return the provider's error."""
        facts = self._service.facts()
        body = plain_error(facts, error.status, error.why).encode()
        length = f"content-length: {len(body)}\r\n"
        nobody = HttpRequest("", "", "", {}, NO_BODY, keep_alive=True, http10=False)
        return self._head(nobody, error.status, build_headers(facts), length, _JSON) + body

    def on_request(self, request: HttpRequest) -> None:
        """Answer a request by its address."""
        place = parse_target(request.path, request.query)
        if place is not None:
            self._call(place, request)
        elif (models := parse_model_query(request.path, request.headers)) is not None:
            self._list_models(models, request)
        elif request.path.startswith("/simulator/"):
            self._admin(request)
        elif request.path == "/health":
            if request.method in ("GET", "HEAD"):
                self._json(request, 200, '{"status": "ok"}')
            else:
                self._error(405, None, request, headers=(("allow", "GET, HEAD"),))
        else:
            self._error(404, "There is no such address.", request, style="gemini" if _GEMINI in request.path else None)

    def _list_models(self, query: ModelQuery, request: HttpRequest) -> None:
        if request.method != "GET":
            self._error(405, None, request, style=query.style, headers=(("allow", "GET"),))
        elif not self._service.provider.is_valid(_find_secret(request, query.style)):
            self._error(401, "The key is not valid.", request, style=query.style)
        else:
            self._json(request, 200, query.answer())

    def _admin(self, request: HttpRequest) -> None:
        service = self._service
        what = (request.method, request.path)
        if what == ("GET", "/simulator/statistics"):
            self._json(request, 200, json.dumps(service.statistics().to_dict()))
        elif what == ("POST", "/simulator/reset"):
            service.reset()
            self._json(request, 200, "{}")
            service.changed()
        elif what == ("GET", "/simulator/wait"):
            (number,) = parse_qs(request.query).get("in_flight", ["0"])[:1]
            if not number.isdecimal() or len(number) > 9:
                self._error(400, "in_flight must be a number.", request)
            else:
                self._wait_in_flight(request, int(number))
        else:
            self._error(404, "There is no such address.", request)

    def _wait_in_flight(self, request: HttpRequest, number: int) -> None:
        def reached() -> None:
            self._waiting = None
            self._json(request, 200, "{}")
            self.finished()

        self.begin()
        self._waiting = reached
        self._service.when_in_flight(number, reached)

    # Calls.

    def _call(self, place: RequestTarget, request: HttpRequest) -> None:
        style = place.style
        if request.method != "POST":
            self._error(405, None, request, style=style, headers=(("allow", "POST"),))
            return
        try:
            parsed = read_request(place, request.body.read())
        except NotUnderstood as error:
            self._error(400, str(error), request, style=style)
            return
        service = self._service
        answer = service.provider.arrive(
            _find_secret(request, style),
            parsed.tokens,
            service.now(),
            max_output=parsed.max_output,
            model=parsed.model,
            stream=parsed.stream,
            style=style,
        )
        self.begin()
        if isinstance(answer, Admitted):
            self._exchange = _Exchange(service.provider, answer, parsed, request)
            service.changed()
            if parsed.stream and answer.fate in ("ok", "cut", "hang") and answer.body is None:
                pieces = streamed_answer(parsed, answer)
                self._stream(pieces, 0, answer.latency / len(pieces))
            else:
                self._after(answer.latency, self._answer)
        else:
            self._after(answer.latency, self._refuse, request, parsed, answer)

    def _after(self, seconds: float, then: Callable[..., None], *arguments: Any) -> None:
        if seconds <= 0:
            then(*arguments)
        elif seconds != float("inf"):
            self._timer = self.loop.call_at(self.loop.time() + seconds, then, *arguments)

    def _refuse(self, request: HttpRequest, parsed: ParsedRequest, refused: Refused) -> None:
        self._timer = None
        self._json(request, refused.status, _error_body(parsed, refused.body, refused.scripted), refused.headers)
        self.finished()

    def _answer(self) -> None:
        exchange = self._exchange
        if exchange is None or self.transport is None:
            return
        self._timer = None
        _, admitted, parsed, request = exchange
        if admitted.fate != "hang":
            self._end_call()
        if admitted.fate == "drop":
            self.transport.abort()
            return
        body = admitted.body
        text = whole_answer(parsed, admitted) if body is None else _error_body(parsed, body, admitted.scripted).encode()
        head = self._head(request, admitted.status, admitted.headers, f"content-length: {len(text)}\r\n", _JSON)
        if admitted.fate in ("cut", "hang"):
            self.transport.write(head + text[: len(text) // 2])
            if admitted.fate == "cut":
                self.transport.close()
            return
        self._write(request, head + text)
        self.finished()

    def _stream(self, pieces: list[bytes], place: int, pause: float) -> None:
        """Send the pieces of a stream one by one; the last one comes when the latency is over."""
        if pause <= 0:
            for each in range(len(pieces)):
                self._send_piece(pieces, each, pause)
        else:
            self._timer = self.loop.call_at(self.loop.time() + pause, self._send_piece, pieces, place, pause)

    def _send_piece(self, pieces: list[bytes], place: int, pause: float) -> None:
        exchange = self._exchange
        if exchange is None or self.transport is None:
            return
        self._timer = None
        _, admitted, parsed, request = exchange
        if admitted.fate == "hang" and place >= len(pieces) // 2:
            return
        piece = pieces[place] if request.http10 else b"%x\r\n%b\r\n" % (len(pieces[place]), pieces[place])
        if place == 0:
            framing = "" if request.http10 else "transfer-encoding: chunked\r\n"
            kind = _JSON if parsed.target.as_list else _EVENTS
            piece = self._head(request, 200, admitted.headers, framing, kind) + piece
        last = place == len(pieces) - 1
        if admitted.fate == "cut" and place == len(pieces) // 2:
            self._end_call()
            self.transport.write(piece[: len(piece) // 2])
            self.transport.close()
        elif not last:
            self.transport.write(piece)
            if pause > 0:
                self._stream(pieces, place + 1, pause)
        else:
            self._end_call()
            self._write(request, piece if request.http10 else piece + b"0\r\n\r\n", close=request.http10)
            self.finished()

    def _end_call(self, *, left: bool = False) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            service = self._service
            exchange.provider.finish(exchange.admitted, service.now(), left=left)
            service.changed()

    # Writing.

    def _json(self, request: HttpRequest, status: int, text: str, headers: Headers = ()) -> None:
        body = text.encode()
        head = self._head(request, status, headers, f"content-length: {len(body)}\r\n", _JSON)
        self._write(request, head if request.method == "HEAD" else head + body)

    def _error(
        self,
        status: int,
        why: str | None,
        request: HttpRequest,
        *,
        style: Style | None = None,
        headers: Headers = (),
    ) -> None:
        facts = self._service.facts(style)
        self._json(request, status, plain_error(facts, status, why), build_headers(facts) + headers)

    def _head(self, request: HttpRequest, status: int, headers: Headers, framing: str, kind: str) -> bytes:
        name, _, value = framing.rstrip("\r\n").partition(": ")
        lines = [(name, value), *headers] if name else [*headers]
        if not any(name.lower() == "content-type" for name, _ in headers):  # a script may have set its own
            lines.insert(0, ("content-type", kind))
        return build_head(
            status, lines, date=self._service.date(), keep_alive=request.keep_alive, http10=request.http10
        )

    def _write(self, request: HttpRequest, data: bytes, *, close: bool = False) -> None:
        if self.transport is not None:
            self.transport.write(data)
            if close or not request.keep_alive:
                self.transport.close()


async def listen(service: Service, *, host: str = "127.0.0.1", port: int = 0) -> HttpListener:
    """Serve on *port*, by default any free one. Raises ValueError for a host that is not this machine alone."""
    _require_loopback(host)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(service, loop), host, port, backlog=1024)
    return HttpListener(server, service.connections)


def _require_loopback(host: str) -> None:
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(f"host must be an address of this machine alone, such as 127.0.0.1, not {host!r}")


def _find_secret(request: HttpRequest, style: Style) -> str | None:
    if style == "anthropic" and "x-api-key" in request.headers:
        return request.headers["x-api-key"]
    if style == "gemini":
        found = request.headers.get("x-goog-api-key") or next(iter(parse_qs(request.query).get("key", ())), None)
        if found is not None:
            return found
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def _error_body(parsed: ParsedRequest, body: str, scripted: Scripted | None) -> str:
    """Return the body as it is sent. Where the answer would be a JSON list, so is an error that is not scripted."""
    own = scripted is None or scripted.text is None
    return f"[{body}]" if own and parsed.target.as_list else body
