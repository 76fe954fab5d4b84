"""Answers that are errors: how much of them is read, and what of it the caller sees. Never a piece of a secret.

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

# What an error says is short. The rest of a longer one is not read: it may never end, or be a million zeros packed.
LONGEST = 128 * 1024
LONGEST_TIME = 10.0  # seconds, for one that comes by drops
_NO_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # what no message has, and hardly any coded body lacks
_OF_A_BODY = (b"content-encoding", b"content-length", b"transfer-encoding")

Mask = Callable[[str], str]


class ErrorBody:
    """The pieces of an error's body, as many as are wanted, read within ``with``.

    What breaks off or comes too late is cut by that, and nothing is raised: the status, and the headers, are here.
    """

    __slots__ = ("_clock", "_pieces", "_size", "_until", "is_cut")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pieces: list[bytes] = []
        self._size = 0
        self._until = clock.now() + LONGEST_TIME
        self.is_cut = False  # there may be more of it

    def __enter__(self) -> ErrorBody:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self.is_cut = True
        log.debug("[COORDINATOR] the body of an error broke off: %s", type(error).__name__)
        return True

    def add(self, piece: bytes) -> bool:
        """Take a piece; False: that is enough."""
        self._pieces.append(piece)
        self._size += len(piece)
        self.is_cut = self._size >= LONGEST or self._clock.now() >= self._until
        return not self.is_cut

    def read(self) -> bytes:
        """What came."""
        return b"".join(self._pieces)


def shorten_timeout(request: Any, response: Any) -> None:
    """Let whoever sends wait for the body of *response*, an error, no longer than it is wanted.

    The connection looks at the time limit of its *request* when the body begins. One of HTTP/2 is shared, and a limit
    that is over breaks off the other calls on it, too.
    """
    if response.extensions.get("http_version") == b"HTTP/2":
        return
    told = request.extensions.get("timeout", {})
    read = told.get("read")
    request.extensions["timeout"] = {**told, "read": LONGEST_TIME if read is None else min(read, LONGEST_TIME)}


Headers = list[tuple[bytes, bytes]]


def redact_response(library: Any, response: Any, read: ErrorBody, mask: Mask) -> tuple[Any, bytes]:
    """*response* again, for the caller to read, with what was *read* of its body; and that decoded.

    It is as it came, byte for byte, unless there was a secret in it, or too much of it. A body that cannot be decoded,
    so that nobody knows what is in it, is replaced by a note.
    """
    headers, body = _masked_headers(response.headers.raw, mask), read.read()
    try:
        content, whole = _decode_body(body, parse_body_type(headers)[1])
    except NotDecodable as error:
        content, body = b"", f"[the body of this error was left out: {error}]".encode()
        headers = _with_length(headers, body, but=(*_OF_A_BODY, b"content-type"))
        headers.append((b"Content-Type", b"text/plain; charset=utf-8"))
    else:
        text = content.decode("utf-8", "surrogateescape")
        masked = mask(text)
        if masked != text:
            content = masked.encode("utf-8", "surrogateescape")
        if masked != text or not whole or read.is_cut or len(content) >= LONGEST:
            body = content
            headers = _with_length(headers, body, but=_OF_A_BODY)
    extensions = {name: value for name, value in response.extensions.items() if name != "network_stream"}
    if "reason_phrase" in extensions:
        extensions["reason_phrase"] = _masked_bytes(extensions["reason_phrase"], mask)
    # Unread, as it came: a client measures how long it took and counts its bytes while it reads.
    stream = library.ByteStream(body)
    return library.Response(response.status_code, headers=headers, stream=stream, extensions=extensions), content


def _decode_body(body: bytes, codings: str) -> DecodedBody:
    """What *body* says, up to the length that is read. Raises NotDecodable."""
    try:
        return decode_body(body, codings, LONGEST)
    except NotDecodable:
        if _NO_TEXT.search(body):
            raise
        return DecodedBody(body[:LONGEST], whole=False)  # it is not coded as its Content-Encoding has it, or not at all


def _with_length(headers: Headers, body: bytes, *, but: tuple[bytes, ...]) -> Headers:
    kept = [(name, value) for name, value in headers if name.lower() not in but]
    return [*kept, (b"Content-Length", str(len(body)).encode())]


def _masked_headers(headers: Headers, mask: Mask) -> Headers:
    text = "\n".join([value.decode("latin-1") for _, value in headers])
    if mask(text) == text:
        return headers
    return [(name, _masked_bytes(value, mask)) for name, value in headers]


def _masked_bytes(value: bytes, mask: Mask) -> bytes:
    return mask(value.decode("latin-1")).encode("latin-1")
