"""Parse HTTP/1.1 requests from bytes, however they are split. No sockets: bytes are fed in, requests come out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from .request_body import RequestBody

MAX_HEAD = 32 * 1024
MAX_BODY = 16 * 1024 * 1024

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,15}", re.ASCII)
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_MAX_CHUNK_LINE = 1024


class HttpRequest(NamedTuple):
    """One complete request. Header names are in lower case; values of a repeated header are joined by commas."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: RequestBody
    keep_alive: bool
    http10: bool


NO_BODY = RequestBody()


class BadRequest(Exception):
    """The bytes are not a valid request, or not one to be read. Answer, and close the connection.

    ``head`` is the request's head, if that was valid.
    """

    def __init__(self, status: int, why: str, head: HttpRequest | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.head = head


class RequestReader:
    """Takes bytes as they come; :meth:`next_request` returns each request once it is complete.

    *check_head* sees each head before its body is accepted, and may raise BadRequest. *new_body* makes the place where
    a body is collected.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_check_head",
        "_chunk",
        "_head",
        "_left",
        "_max_body",
        "_new_body",
        "_seen",
        "expects_continue",
    )

    def __init__(
        self,
        *,
        max_body: int = MAX_BODY,
        new_body: Callable[[], RequestBody] = RequestBody,
        check_head: Callable[[HttpRequest], None] | None = None,
    ) -> None:
        self._max_body = max_body
        self._new_body = new_body
        self._check_head = check_head
        self._buffer = bytearray()
        self._seen = 0  # length of the buffer already searched
        self._head: HttpRequest | None = None
        self._body: RequestBody | None = None
        self._left: int | None = None  # of a body of known length
        self._chunk = 0  # bytes left of the current chunk of a chunked one
        self.expects_continue = False  # the client waits for "100 Continue" before it sends the body

    @property
    def waiting(self) -> int:
        """Return the number of bytes that have not become a request."""
        return len(self._buffer)

    @property
    def in_request(self) -> bool:
        """Return True if a request has begun and is not complete."""
        return self._head is not None or bool(self._buffer)

    @property
    def in_body(self) -> bool:
        """Return True if the head of a request is complete and its body is not."""
        return self._head is not None

    def feed(self, data: bytes) -> None:
        """Append bytes."""
        self._buffer += data

    def next_request(self) -> HttpRequest | None:
        """Return the next complete request, or None until more bytes come. Raises BadRequest."""
        if self._head is None:
            head = self._next_head()
            if head is None:
                return None
            self._begin(head)
        if not (self._chunked_body() if self._left is None else self._sized_body()):
            return None
        whole: HttpRequest = self._head  # type: ignore[assignment]
        self._head = self._body = None
        self.expects_continue = False
        if not self._buffer:
            self._buffer = bytearray()  # an emptied one keeps its memory, and the connection may wait for long
        return whole

    def close(self) -> None:
        """Discard a request that is not complete."""
        if self._body is not None:
            self._body.close()
        self._head = self._body = None
        self._buffer = bytearray()

    def _next_head(self) -> HttpRequest | None:
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):  # some clients send an extra line after a body
            del buffer[:2]
            self._seen = 0
        # No request starts otherwise, so junk (a TLS handshake, for example) is refused at once, not after 32 KiB.
        if buffer and not (65 <= buffer[0] <= 90 or 97 <= buffer[0] <= 122 or buffer == b"\r"):
            raise BadRequest(400, "this is not HTTP")
        end = buffer.find(b"\r\n\r\n", max(0, self._seen - 3))
        if end < 0:
            if len(buffer) > MAX_HEAD:
                raise BadRequest(431, "the headers are too large")
            self._seen = len(buffer)
            return None
        if end > MAX_HEAD:
            raise BadRequest(431, "the headers are too large")
        text = buffer[:end].decode("latin-1")
        del buffer[: end + 4]
        self._seen = 0
        return _parse_head(text)

    def _begin(self, head: HttpRequest) -> None:
        headers = head.headers
        coding = headers.get("transfer-encoding")
        length = headers.get("content-length")
        if coding is not None:
            if length is not None:
                raise BadRequest(400, "Content-Length and Transfer-Encoding exclude each other")
            if head.http10:
                raise BadRequest(400, "HTTP 1.0 has no Transfer-Encoding")
            if coding.lower() != "chunked":
                raise BadRequest(501, "only the transfer coding chunked is supported")
        elif length is not None and _DIGITS.fullmatch(length) is None:
            raise BadRequest(400, "Content-Length is not a number")
        if self._check_head is not None:
            self._check_head(head)
        self._left, self._chunk = None if coding is not None else int(length or 0), 0
        if self._left is not None and self._left > self._max_body:
            raise BadRequest(413, "the body is too large", head)
        expected = headers.get("expect")
        if expected is not None:
            if expected.lower() != "100-continue":
                raise BadRequest(417, "only the expectation 100-continue is supported", head)
            self.expects_continue = not head.http10
        self._body = self._new_body()
        self._head = head._replace(body=self._body)

    def _sized_body(self) -> bool:
        """Move bytes of the buffer to a body of known length; return True if it is complete."""
        self._left = left = self._take(self._left or 0)
        return not left

    def _take(self, wanted: int) -> int:
        """Move up to *wanted* bytes from the buffer to the body; return how many are still missing."""
        buffer, body = self._buffer, self._body
        if wanted and buffer and body is not None:
            piece = bytes(buffer[:wanted])
            del buffer[:wanted]
            body.write(piece)
            wanted -= len(piece)
        return wanted

    def _chunked_body(self) -> bool:
        """Move chunks of the buffer to the body; return True if it is complete."""
        buffer = self._buffer
        while True:
            if self._chunk > 0:  # the rest of a chunk, then its line end
                self._chunk = self._take(self._chunk) or -1
            if self._chunk == -1:
                if len(buffer) < 2:
                    return False
                if buffer[:2] != b"\r\n":
                    raise BadRequest(400, "a chunk is longer than its size", self._head)
                del buffer[:2]
                self._chunk = 0
            if self._chunk > 0:
                return False
            end = buffer.find(b"\r\n", 0, _MAX_CHUNK_LINE)
            if end < 0:
                if len(buffer) >= _MAX_CHUNK_LINE:
                    raise BadRequest(400, "a chunk has no size", self._head)
                return False
            found = _CHUNK_SIZE.fullmatch(bytes(buffer[:end]))
            if found is None:
                raise BadRequest(400, "a chunk has no size", self._head)
            size = int(found[1], 16)
            if size == 0:
                return self._end_of_chunks(end)
            if self._body is not None and self._body.size + size > self._max_body:
                raise BadRequest(413, "the body is too large", self._head)
            del buffer[: end + 2]
            self._chunk = size

    def _end_of_chunks(self, end: int) -> bool:
        """Finish after the last chunk: the body is complete once its trailers, which are ignored, have come."""
        buffer = self._buffer
        last = end if buffer.startswith(b"\r\n\r\n", end) else buffer.find(b"\r\n\r\n", end)
        if last < 0:
            if len(buffer) > MAX_HEAD:
                raise BadRequest(431, "the trailers are too large", self._head)
            return False
        del buffer[: last + 4]
        return True


def _parse_head(text: str) -> HttpRequest:
    first, *lines = text.split("\r\n")
    if _CONTROL.search(text) or text.count("\n") != len(lines) or text.count("\r") != len(lines):
        raise BadRequest(400, "a header line has a stray control character")
    parts = first.split(" ")
    if len(parts) != 3 or _TOKEN.fullmatch(parts[0]) is None:
        raise BadRequest(400, "the request line is not METHOD TARGET VERSION")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(505 if version.startswith("HTTP/") else 400, "only HTTP 1.0 and 1.1 are supported")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or _TOKEN.fullmatch(name) is None:
            raise BadRequest(400, "a header line is not NAME: VALUE")
        name = name.lower()
        value = value.strip(" \t")
        if name in headers:
            if name == "content-length" and headers[name] == value:
                continue
            value = f"{headers[name]}, {value}"
        headers[name] = value
    http10 = version == "HTTP/1.0"
    if not http10 and "host" not in headers:
        raise BadRequest(400, "the Host header is missing")
    wish = headers.get("connection", "").lower()
    keep_alive = "keep-alive" in wish if http10 else "close" not in wish
    return HttpRequest(method, *_parse_path(target), headers, NO_BODY, keep_alive, http10)


def _parse_path(target: str) -> tuple[str, str]:
    if not target.startswith("/"):
        # The form that is sent to proxies: http://host/path.
        scheme, found, rest = target.partition("://")
        if not found or scheme.lower() not in ("http", "https"):
            raise BadRequest(400, "the target is not a path")
        target = "/" + rest.partition("/")[2]
    path, _, query = target.partition("?")
    return path, query
