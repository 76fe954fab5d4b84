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
from email.utils import formatdate
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from .answer_facts import Facts, Headers
from .answer_styles import build_headers, plain_error
from .http_parser import MAX_BODY, BadRequest, HttpRequest, RequestReader
from .model_lists import ModelQuery, parse_model_query
from .parsed_request import NotUnderstood, ParsedRequest, RequestTarget, parse_target, read_request
from .plan import ProviderPlan, Scripted, Style
from .rules import Admitted, Provider, Refused
from .statistics import Statistics
from .success_answers import streamed_answer, whole_answer

_REASONS = {
    200: "OK",
    301: "Moved Permanently",
    302: "Found",
    307: "Temporary Redirect",
    308: "Permanent Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    417: "Expectation Failed",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
    529: "Overloaded",
}
_JSON = "application/json"
_LINGER = 2.0
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
        self._date = (0, "")
        self._strays = _NOT_A_CALL
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self.connections: set[ClientConnection] = set()
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
        """Return the value of the Date header; computed once a second."""
        second = int(self._wall())
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True))
        return self._date[1]

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


class ClientConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._exchange: _Exchange | None = None
        self._waiting: Callable[[], None] | None = None
        self._busy = False  # an answer is due: the next request waits
        self._serving = False
        self._full = False  # the client does not read what was written
        self._hopeless = False  # it sent an invalid request: discard the rest

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection."""
        self._transport = transport  # type: ignore[assignment]
        self._service.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes: a request, part of one, or several."""
        if self._hopeless:
            return
        self._reader.feed(data)
        if not self._busy:
            self._serve()
        if self._transport is not None and self._reader.waiting > 2 * MAX_BODY:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Treat the end of input as a client that has left."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the call of a connection that was closed by either side."""
        self._transport = None
        self._service.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is not None:
            self._service.forget(self._waiting)
            self._waiting = None
        if self._exchange is not None:
            self._end_call(left=True)

    def pause_writing(self) -> None:
        """Start nothing new for a client that does not read."""
        self._full = True

    def resume_writing(self) -> None:
        """Continue when the client reads again."""
        self._full = False
        self._serve()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # Requests, one after the other.

    def _serve(self) -> None:
        if self._serving:
            return  # an immediate answer: the loop below is still running and continues by itself
        self._serving = True
        try:
            while not self._busy and not self._full and self._transport is not None:
                if self._transport.is_closing():
                    return
                request = self._reader.next_request()
                if request is None:
                    if self._reader.expects_continue:
                        self._reader.expects_continue = False
                        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    break
                self._handle(request)
        except BadRequest as error:
            self._give_up(error)
        finally:
            self._serving = False
        if self._transport is not None and not self._busy:
            self._transport.resume_reading()

    def _give_up(self, error: BadRequest) -> None:
        """Answer with the error and keep reading a little: closing with unread bytes would discard the answer."""
        if self._transport is not None:
            self._hopeless = self._busy = True
            self._error(error.status, error.why, HttpRequest("", "", "", {}, b"", keep_alive=True, http10=False))
            self._transport.write_eof()
            self._timer = self._loop.call_at(self._loop.time() + _LINGER, self._transport.abort)

    def _handle(self, request: HttpRequest) -> None:
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
            self._busy = False
            self._json(request, 200, "{}")
            self._serve()

        self._busy = True
        self._waiting = reached
        self._service.when_in_flight(number, reached)

    # Calls.

    def _call(self, place: RequestTarget, request: HttpRequest) -> None:
        style = place.style
        if request.method != "POST":
            self._error(405, None, request, style=style, headers=(("allow", "POST"),))
            return
        try:
            parsed = read_request(place, request.body)
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
        self._busy = True
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
            self._timer = self._loop.call_at(self._loop.time() + seconds, then, *arguments)

    def _refuse(self, request: HttpRequest, parsed: ParsedRequest, refused: Refused) -> None:
        self._timer = None
        self._busy = False
        self._json(request, refused.status, _error_body(parsed, refused.body, refused.scripted), refused.headers)
        self._serve()

    def _answer(self) -> None:
        exchange = self._exchange
        if exchange is None or self._transport is None:
            return
        self._timer = None
        _, admitted, parsed, request = exchange
        if admitted.fate != "hang":
            self._end_call()
        if admitted.fate == "drop":
            self._transport.abort()
            return
        body = admitted.body
        text = whole_answer(parsed, admitted) if body is None else _error_body(parsed, body, admitted.scripted).encode()
        head = self._head(request, admitted.status, admitted.headers, f"content-length: {len(text)}\r\n", _JSON)
        if admitted.fate in ("cut", "hang"):
            self._transport.write(head + text[: len(text) // 2])
            if admitted.fate == "cut":
                self._transport.close()
            return
        self._busy = False
        self._write(request, head + text)
        self._serve()

    def _stream(self, pieces: list[bytes], place: int, pause: float) -> None:
        """Send the pieces of a stream one by one; the last one comes when the latency is over."""
        if pause <= 0:
            for each in range(len(pieces)):
                self._send_piece(pieces, each, pause)
        else:
            self._timer = self._loop.call_at(self._loop.time() + pause, self._send_piece, pieces, place, pause)

    def _send_piece(self, pieces: list[bytes], place: int, pause: float) -> None:
        exchange = self._exchange
        if exchange is None or self._transport is None:
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
            self._transport.write(piece[: len(piece) // 2])
            self._transport.close()
        elif not last:
            self._transport.write(piece)
            if pause > 0:
                self._stream(pieces, place + 1, pause)
        else:
            self._end_call()
            self._busy = False
            self._write(request, piece if request.http10 else piece + b"0\r\n\r\n", close=request.http10)
            self._serve()

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
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        if "\ncontent-type:" not in f"\n{lines.lower()}":  # a script may have set its own
            framing = f"content-type: {kind}\r\n{framing}"
        if not request.keep_alive:
            framing += "connection: close\r\n"
        elif request.http10:
            framing += "connection: keep-alive\r\n"
        reason = _REASONS.get(status, "Status")
        start = f"HTTP/1.1 {status} {reason}\r\ndate: {self._service.date()}\r\n"
        return f"{start}{framing}{lines}\r\n".encode("latin-1")

    def _write(self, request: HttpRequest, data: bytes, *, close: bool = False) -> None:
        if self._transport is not None:
            self._transport.write(data)
            if close or not request.keep_alive:
                self._transport.close()


class Listening:
    """A listening server: its address, and how to close it."""

    def __init__(self, server: asyncio.Server, service: Service) -> None:
        self._server = server
        self._service = service
        address = server.sockets[0].getsockname()
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        self.url = f"http://{host}:{address[1]}"

    async def close(self) -> None:
        """Close every connection and release the port."""
        loop = asyncio.get_running_loop()
        for listening in self._server.sockets:
            loop.remove_reader(listening)
        # A client accepted in this turn of the loop belongs to the server in the next, and is one of our connections in
        # the one after. A server closed before that would report an error, or wait for it forever.
        for _ in range(2):
            await asyncio.sleep(0)
        self._server.close()
        while self._service.connections:
            for connection in tuple(self._service.connections):
                connection.abort()
            await asyncio.sleep(0)  # each connection is notified on the next turn of the loop
        await self._server.wait_closed()


async def listen(service: Service, *, host: str = "127.0.0.1", port: int = 0) -> Listening:
    """Serve on *port*, by default any free one. Raises ValueError for a host that is not this machine alone."""
    _require_loopback(host)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(service, loop), host, port, backlog=1024)
    return Listening(server, service)


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
