"""Parse HTTP/1.1 requests from bytes, however they are split. No sockets: bytes are fed in, requests come out."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_HEAD = 32 * 1024
MAX_BODY = 16 * 1024 * 1024

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,15}", re.ASCII)
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?", re.ASCII)
_MAX_CHUNK_LINE = 1024


class HttpRequest(NamedTuple):
    """One complete request. Header names are in lower case; values of a repeated header are joined by commas."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    http10: bool


class BadRequest(Exception):
    """The bytes are not a valid request. What follows cannot be trusted: answer, and close the connection."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class RequestReader:
    """Takes bytes as they come; :meth:`next_request` returns each request once it is complete."""

    __slots__ = ("_body", "_buffer", "_head", "_left", "_seen", "expects_continue")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._seen = 0  # length of the buffer already searched
        self._head: HttpRequest | None = None
        self._left: int | None = None  # of a body of known length
        self._body = bytearray()  # of a chunked one
        self.expects_continue = False  # the client waits for "100 Continue" before it sends the body

    @property
    def waiting(self) -> int:
        """Return the number of bytes that have not become a request."""
        return len(self._buffer)

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
        body = self._chunked_body() if self._left is None else self._sized_body(self._left)
        if body is None:
            return None
        whole: HttpRequest = self._head._replace(body=body)  # type: ignore[union-attr]
        self._head = None
        self.expects_continue = False
        return whole

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
            if coding.lower() != "chunked":
                raise BadRequest(501, "only the transfer coding chunked is supported")
            self._left = None
            self._body = bytearray()
        else:
            if length is not None and _DIGITS.fullmatch(length) is None:
                raise BadRequest(400, "Content-Length is not a number")
            self._left = int(length) if length is not None else 0
            if self._left > MAX_BODY:
                raise BadRequest(413, "the body is too large")
        expected = headers.get("expect")
        if expected is not None:
            if expected.lower() != "100-continue":
                raise BadRequest(417, "only the expectation 100-continue is supported")
            self.expects_continue = not head.http10
        self._head = head

    def _sized_body(self, length: int) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < length:
            return None
        body = bytes(buffer[:length])
        del buffer[:length]
        return body

    def _chunked_body(self) -> bytes | None:
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n", 0, _MAX_CHUNK_LINE)
            if end < 0:
                if len(buffer) >= _MAX_CHUNK_LINE:
                    raise BadRequest(400, "a chunk has no size")
                return None
            found = _CHUNK_SIZE.fullmatch(bytes(buffer[:end]))
            if found is None:
                raise BadRequest(400, "a chunk has no size")
            size = int(found[1], 16)
            if size == 0:
                return self._end_of_chunks(end)
            if len(self._body) + size > MAX_BODY:
                raise BadRequest(413, "the body is too large")
            start, stop = end + 2, end + 2 + size
            if len(buffer) < stop + 2:
                return None
            if buffer[stop : stop + 2] != b"\r\n":
                raise BadRequest(400, "a chunk is longer than its size")
            self._body += buffer[start:stop]
            del buffer[: stop + 2]

    def _end_of_chunks(self, end: int) -> bytes | None:
        """Finish after the last chunk: the body is complete once its trailers, which are ignored, have come."""
        buffer = self._buffer
        last = end if buffer.startswith(b"\r\n\r\n", end) else buffer.find(b"\r\n\r\n", end)
        if last < 0:
            if len(buffer) > MAX_HEAD:
                raise BadRequest(431, "the trailers are too large")
            return None
        del buffer[: last + 4]
        return bytes(self._body)


def _parse_head(text: str) -> HttpRequest:
    first, *lines = text.split("\r\n")
    if "\0" in text or text.count("\n") != len(lines) or text.count("\r") != len(lines):
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
    return HttpRequest(method, *_parse_path(target), headers, b"", keep_alive, http10)


def _parse_path(target: str) -> tuple[str, str]:
    if not target.startswith("/"):
        # The form that is sent to proxies: http://host/path.
        scheme, found, rest = target.partition("://")
        if not found or scheme.lower() not in ("http", "https"):
            raise BadRequest(400, "the target is not a path")
        target = "/" + rest.partition("/")[2]
    path, _, query = target.partition("?")
    return path, query
