"""Read the body of an error response, up to a limit, and redact secrets in the response.

Providers quote the key that they refuse, and gateways quote anything, in the body, a header or the reason phrase.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from ..providers.answers.headers import parse_body_type
from ..util.clock import Clock
from .content_decoding import DecodedBody, NotDecodable, decode_body

log = logging.getLogger("agentos")

# Error messages are short. The rest of a longer body is not read: it may be endless or a decompression bomb.
LONGEST = 128 * 1024
LONGEST_TIME = 10.0  # seconds, for a body that arrives slowly
# bytes that no message has and almost every compressed body has
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BODY_HEADERS = (b"content-encoding", b"content-length", b"transfer-encoding")

Mask = Callable[[str], str]


class ErrorBody:
    """Collects the pieces of an error's body, up to a limit, within ``with``.

    A body that breaks off or takes too long is truncated, and no exception is raised: status and headers are known.
    """

    __slots__ = ("_clock", "_pieces", "_size", "_until", "is_cut")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pieces: list[bytes] = []
        self._size = 0
        self._until = clock.now() + LONGEST_TIME
        self.is_cut = False  # the body may be incomplete

    def __enter__(self) -> ErrorBody:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.is_cut = True
        log.debug("[COORDINATOR] the body of an error response is incomplete: %s", type(error).__name__)
        return True

    def add(self, piece: bytes) -> bool:
        """Add a piece; return False if no more is wanted."""
        self._pieces.append(piece)
        self._size += len(piece)
        self.is_cut = self._size >= LONGEST or self._clock.now() >= self._until
        return not self.is_cut

    def read(self) -> bytes:
        """Return the body as received."""
        return b"".join(self._pieces)


def shorten_timeout(request: Any, response: Any) -> None:
    """Limit the read timeout for the body of *response*, an error.

    The connection reads the timeout of its *request* when the body begins. HTTP/2 is excluded: its connections are
    shared, and a timeout breaks off the other calls too.
    """
    if response.extensions.get("http_version") == b"HTTP/2":
        return
    timeouts = request.extensions.get("timeout", {})
    read = timeouts.get("read")
    request.extensions["timeout"] = {**timeouts, "read": LONGEST_TIME if read is None else min(read, LONGEST_TIME)}


Headers = list[tuple[bytes, bytes]]


def redact_response(library: Any, response: Any, read: ErrorBody, mask: Mask) -> tuple[Any, bytes]:
    """Return a copy of *response* for the caller, with secrets masked, and the decoded body that was *read*.

    The copy is unchanged, byte for byte, unless it contained a secret or was truncated. A body that cannot be decoded
    is replaced by a note, because it may contain a secret.
    """
    headers, body = _mask_headers(response.headers.raw, mask), read.read()
    try:
        content, whole = _decode_body(body, parse_body_type(headers)[1])
    except NotDecodable as error:
        content, body = b"", f"[the body of this error was left out: {error}]".encode()
        headers = _with_length(headers, body, without=(*_BODY_HEADERS, b"content-type"))
        headers.append((b"Content-Type", b"text/plain; charset=utf-8"))
    else:
        text = content.decode("utf-8", "surrogateescape")
        masked = mask(text)
        if masked != text:
            content = masked.encode("utf-8", "surrogateescape")
        if masked != text or not whole or read.is_cut or len(content) >= LONGEST:
            body = content
            headers = _with_length(headers, body, without=_BODY_HEADERS)
    extensions = {name: value for name, value in response.extensions.items() if name != "network_stream"}
    if "reason_phrase" in extensions:
        extensions["reason_phrase"] = _mask_bytes(extensions["reason_phrase"], mask)
    # Unread, like the original: a client measures time and counts bytes while it reads.
    stream = library.ByteStream(body)
    return library.Response(response.status_code, headers=headers, stream=stream, extensions=extensions), content


def _decode_body(body: bytes, codings: str) -> DecodedBody:
    """Decode *body* up to the limit. Raises NotDecodable."""
    try:
        return decode_body(body, codings, LONGEST)
    except NotDecodable:
        if _BINARY.search(body):
            raise
        return DecodedBody(body[:LONGEST], whole=False)  # Content-Encoding is wrong: the body is plain text


def _with_length(headers: Headers, body: bytes, *, without: tuple[bytes, ...]) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() not in without]
    return [*kept, (b"Content-Length", str(len(body)).encode())]


def _mask_headers(headers: Headers, mask: Mask) -> Headers:
    text = "\n".join([value.decode("latin-1") for _, value in headers])
    if mask(text) == text:
        return headers
    return [(name, _mask_bytes(value, mask)) for name, value in headers]


def _mask_bytes(value: bytes, mask: Mask) -> bytes:
    return mask(value.decode("latin-1")).encode("latin-1")
