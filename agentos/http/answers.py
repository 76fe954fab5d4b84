"""Answers that are errors: how much of them is read, and what of it the caller sees. Never a piece of a secret.

Providers quote the key that they refuse, and gateways quote anything, in the body, a header or the reason phrase.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Any

from ..credentials.clock import Clock
from ..providers.headers import body_in

log = logging.getLogger("agentos")

# What an error says is short. The rest of a longer one is not read: it may never end, or be a million zeros packed.
LONGEST = 128 * 1024
LONGEST_TIME = 10.0  # seconds, for one that comes by drops
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


def hurry(request: Any, response: Any) -> None:
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


def masked_answer(library: Any, response: Any, read: ErrorBody, mask: Mask) -> tuple[Any, bytes]:
    """*response* again, for the caller to read, with what was *read* of its body; and that unpacked.

    It is as it came, byte for byte, unless there was a secret in it, or too much of it.
    """
    headers, body = _masked_headers(response.headers.raw, mask), read.read()
    content, is_so = _unpacked(body, body_in(headers)[1])
    text = content.decode("utf-8", "surrogateescape")
    masked = mask(text)
    if masked != text:
        content = masked.encode("utf-8", "surrogateescape")
    if masked != text or not is_so or read.is_cut or len(content) >= LONGEST:
        body = content
        headers = [(name, value) for name, value in headers if name.lower() not in _OF_A_BODY]
        headers.append((b"Content-Length", str(len(body)).encode()))
    extensions = {name: value for name, value in response.extensions.items() if name != "network_stream"}
    if "reason_phrase" in extensions:
        extensions["reason_phrase"] = _masked_bytes(extensions["reason_phrase"], mask)
    # Unread, as it came: a client measures how long it took and counts its bytes while it reads.
    stream = library.ByteStream(body)
    return library.Response(response.status_code, headers=headers, stream=stream, extensions=extensions), content


def _unpacked(body: bytes, coding: str) -> tuple[bytes, bool]:
    """What *body* says, up to the length that is read, and whether it is coded as its Content-Encoding has it."""
    if coding not in ("gzip", "x-gzip", "deflate"):
        return body[:LONGEST], True
    try:
        return zlib.decompressobj(47).decompress(body, LONGEST), True  # 32 + 15: gzip or zlib, by its first bytes
    except zlib.error:
        return body[:LONGEST], False


def _masked_headers(headers: Headers, mask: Mask) -> Headers:
    text = "\n".join([value.decode("latin-1") for _, value in headers])
    if mask(text) == text:
        return headers
    return [(name, _masked_bytes(value, mask)) for name, value in headers]


def _masked_bytes(value: bytes, mask: Mask) -> bytes:
    return mask(value.decode("latin-1")).encode("latin-1")
