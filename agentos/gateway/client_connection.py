"""One client's connection to the gateway."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import TYPE_CHECKING, Final

from ..util.http_server.connection import Headers, HttpConnection, build_head
from ..util.http_server.request_body import RequestBody
from ..util.http_server.request_parser import BadRequest, HttpRequest, RequestReader
from .exchange import Exchange
from .refusals import GatewayRefusal
from .request_facts import read_facts
from .routes import WireForm
from .tokens import MOST_HELD

if TYPE_CHECKING:
    from .admission import Admission
    from .service import GatewayService
    from .tokens import TokenHolder

SPOOL_ABOVE: Final = 1024 * 1024
MAX_BODY: Final = 64 * 1024 * 1024
_READS_WITHIN: Final = 300.0  # seconds for a client to take what was written


class GatewayConnection(HttpConnection):
    """Serves one request at a time. A client that leaves ends its request."""

    __slots__ = ("_admission", "_drained", "_exchange", "_pending", "_service", "began_at")

    def __init__(self, service: GatewayService, admission: Admission, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._admission = admission
        super().__init__(
            loop,
            RequestReader(max_body=MAX_BODY, new_body=self._new_body, check_head=admission.check_head),
        )
        self._exchange: Exchange | None = None
        self._drained: asyncio.Future[None] | None = None
        self._pending = b""  # a head that goes out with the first piece
        self.began_at = 0.0  # when the request that is being read began to arrive, or the last one ended

    def _new_body(self) -> RequestBody:
        return RequestBody(SPOOL_ABOVE, self._service.memory)

    # Called by asyncio and the base class.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, unless it is another user's."""
        super().connection_made(transport)
        self._service.connections.add(self)
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is not None and peer.family == socket.AF_UNIX and not _is_own_user(peer):
            self.abort()
            return
        self.began_at = self.loop.time()  # the first request is due

    def data_received(self, data: bytes) -> None:
        """Read; and note since when a request is incomplete."""
        was_reading = self.is_reading
        super().data_received(data)
        if self.is_reading and not was_reading:
            self.began_at = self.loop.time()

    def on_request(self, request: HttpRequest) -> None:
        """Serve a complete request."""
        try:
            holder, route = self._admission.admit(request)  # once more: a token may have been revoked meanwhile
            self._require_room(holder, request)
        except BadRequest:
            request.body.close()
            raise
        self.begin()
        facts = read_facts(route, request.headers, request.query, request.body, holder.name)
        self._exchange = Exchange(self._service, self, request, holder, route, facts)
        self._exchange.start()

    def _require_room(self, holder: TokenHolder, request: HttpRequest) -> None:
        if self._service.is_draining:
            raise BadRequest(503, "the gateway is closing", request)
        if holder.item_id is not None and holder.held >= MOST_HELD:
            why = f"this item has {MOST_HELD} requests in progress, and may not have more"
            raise BadRequest(429, why, request)

    def on_bad_request(self, error: BadRequest) -> bytes:
        """Return the error in the form of the provider whose address was asked for."""
        head = error.head
        refusal = GatewayRefusal(
            error.status,
            f"agentos: {error.why}",
            is_final=error.status not in (408, 429, 503),
            retry_after=1.0 if error.status in (429, 503) else None,
        )
        body = refusal.body(_guess_form(head))
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), *refusal.headers()]
        if error.status == 426:
            headers.append(("upgrade", "HTTP/1.1"))
        if error.status == 401:
            headers.append(("www-authenticate", "Bearer"))
        start = build_head(error.status, headers, date=self._service.date.text(), keep_alive=False, http10=False)
        return start if head is not None and head.method == "HEAD" else start + body

    def on_lost(self) -> None:
        """End the request of a client that has left."""
        self._service.connections.discard(self)
        self.on_drained()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_client_left()

    def on_drained(self) -> None:
        """Continue writing: the client reads again."""
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def time_out(self) -> None:
        """Refuse a request that arrives too slowly; close a connection on which nothing comes."""
        if self.is_reading:
            self.refuse(BadRequest(408, "the request arrives too slowly"))
        elif self.transport is not None and not self.is_busy:
            self.transport.close()

    # For the exchange.

    def write_head(self, request: HttpRequest, status: int, headers: Headers, *, length: str | None) -> None:
        """Begin an answer. Its head goes out with the first piece, that of a stream in the next turn of the loop."""
        framing: list[tuple[str, str]] = []
        keep_alive = request.keep_alive and not self._service.is_draining
        if length is not None:
            framing.append(("content-length", length))
        elif request.http10:
            keep_alive = False
        else:
            framing.append(("transfer-encoding", "chunked"))
        date = self._service.date.text()
        head = build_head(status, [*headers, *framing], date=date, keep_alive=keep_alive, http10=request.http10)
        self._pending = head
        if length is None:
            self.loop.call_soon(self._write_pending)

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        if self.transport is not None:
            pending, self._pending = self._pending, b""
            self.transport.write(pending + data if pending else data)

    def _write_pending(self) -> None:
        if self._pending:
            self.write(b"")

    def write_piece(self, request: HttpRequest, piece: bytes) -> None:
        """Write a piece of an answer of unknown length."""
        self.write(piece if request.http10 else b"%x\r\n%b\r\n" % (len(piece), piece))

    def write_end(self, request: HttpRequest, *, raw: bool) -> None:
        """End an answer; *raw*: its length was known."""
        if not raw and not request.http10:
            self.write(b"0\r\n\r\n")
        else:
            self._write_pending()
        if self.transport is not None and (
            not request.keep_alive or self._service.is_draining or (request.http10 and not raw)
        ):
            self.transport.close()

    async def wait_until_drained(self) -> None:
        """Wait until the client has read most of what was written. Raises TimeoutError if it does not."""
        if self.is_full and self.transport is not None:
            self._drained = self.loop.create_future()
            async with asyncio.timeout(_READS_WITHIN):
                await self._drained

    def on_exchange_done(self, request: HttpRequest) -> None:
        """Serve the next request."""
        self._pending = b""
        if self._exchange is not None:
            self._exchange = None
            self.began_at = self.loop.time()
            self.finished()


def _guess_form(head: HttpRequest | None) -> WireForm | None:
    if head is None:
        return None
    if "anthropic-version" in head.headers or head.path.startswith(("/v1/messages", "/anthropic/")):
        return WireForm.ANTHROPIC
    if "x-goog-api-key" in head.headers or head.path.startswith(("/v1beta/", "/gemini/")):
        return WireForm.GEMINI
    return WireForm.CHAT


def _is_own_user(peer: socket.socket) -> bool:
    """Return True if the process at the other end of a unix socket is one of this user, or of root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder's and the socket's permissions decide
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user in (0, os.geteuid())
