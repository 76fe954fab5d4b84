"""Inspect a response body while it passes to the caller, for usage and errors."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

from .bodies import LONGEST
from .usage import NOTHING_STATED, StatedUsage, parse_gemini_usage, parse_usage

# A short body is kept whole. Of a long one the beginning is kept, where Anthropic states the input tokens, and the end,
# where all providers state the output tokens.
_HEAD, _TAIL = 16 * 1024, LONGEST
_SHORT = _HEAD + 2 * _TAIL
_USAGE = re.compile(rb'"(usage|usageMetadata)"\s*:\s*(?=\{)')
_USAGE_MARK = b'"usage'
_LONGEST_USAGE = 8192
_MOST_USAGES = 8
_ERROR_MARKS = (b'"error"', b"event: error", b"event:error")
# End marks of streams. Text of the answer cannot contain them, because quotes and line ends are escaped there.
_END_MARKS = re.compile(rb'\n(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.completed))|"finishReason"\s*:')
_DECODER = json.JSONDecoder()


class BodySniffer:
    """Collects the pieces of a body: all of a short one, both ends of a long one.

    *encoding* is the answer's ``Content-Encoding``. Data that cannot be decoded is ignored.
    """

    __slots__ = ("_decoder", "_head", "_pieces", "_size")

    def __init__(self, encoding: str = "") -> None:
        self._head = b""
        self._pieces: list[bytes] = []
        self._size = 0
        # 32 + 15: gzip or zlib, detected by header. The transport requests no other coding.
        self._decoder = zlib.decompressobj(47) if encoding in ("gzip", "deflate", "x-gzip") else None

    def feed(self, piece: bytes) -> None:
        """Add the next piece."""
        if self._decoder is not None:
            self._decompress(self._decoder, piece)
            return
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _SHORT:
            self._trim()

    def _decompress(self, decoder: Any, data: bytes) -> None:
        """Add the decompressed *data* in parts: it may be a thousand times as long."""
        more = not decoder.eof
        while more:
            try:
                part = decoder.decompress(data, _TAIL)
            except zlib.error:
                return
            data = decoder.unconsumed_tail
            more = len(part) == _TAIL
            self._pieces.append(part)
            self._size += len(part)
            if self._size > _SHORT:
                self._trim()

    def _trim(self) -> None:
        kept = b"".join(self._pieces)
        if not self._head:
            self._head = kept[:_HEAD]
        kept = kept[-_TAIL:]
        self._pieces = [kept]
        self._size = len(kept)

    def whole(self) -> bytes | None:
        """Return the body if it is short enough to be parsed as one document."""
        return None if self._head or self._size > LONGEST else self._end()

    def _end(self) -> bytes:
        if self._head:
            self._trim()  # so that the result does not depend on how the body was split
        elif len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""

    def error(self) -> bytes | None:
        """Return the collected parts of a body that may contain an error; None if it does not."""
        end = self._end()
        if b"error" in end and any(mark in end for mark in _ERROR_MARKS):  # one search excludes nearly all bodies
            return self._head + b"\n\n" + end
        return None

    def is_over(self) -> bool:
        """Return whether a stream has sent its end mark: many clients close it without reading to the end."""
        return _END_MARKS.search(self._end()) is not None

    def usage(self) -> StatedUsage:
        """Return the usage stated in the body; later values override earlier ones."""
        end = self._end()
        last = _find_last_usage(end)
        if self._head or end.count(_USAGE_MARK) > 1:
            return _find_first_usage(self._head or end[:_HEAD]).update(last)
        return last


def _find_first_usage(data: bytes) -> StatedUsage:
    found = _USAGE.search(data)
    return NOTHING_STATED if found is None else _parse_usage_at(data, found)


def _find_last_usage(data: bytes) -> StatedUsage:
    at = len(data)
    for _ in range(_MOST_USAGES):
        at = data.rfind(_USAGE_MARK, 0, at)
        if at < 0:
            break
        found = _USAGE.match(data, at)
        usage = NOTHING_STATED if found is None else _parse_usage_at(data, found)
        if usage:
            return usage
    return NOTHING_STATED


def _parse_usage_at(data: bytes, found: re.Match[bytes]) -> StatedUsage:
    text = data[found.end() : found.end() + _LONGEST_USAGE].decode("utf-8", "replace")
    try:
        value, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return NOTHING_STATED
    return parse_usage(value) if found[1] == b"usage" else parse_gemini_usage(value)
