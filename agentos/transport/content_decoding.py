"""Decode the body of an error response, up to a maximum length."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

# Nested codings; a larger number is treated as an attack.
_MOST_CODINGS: Final = 5

_ZLIB: Final = ("gzip", "x-gzip", "deflate")
_ORDINARY_NAME: Final = re.compile(r"[a-z0-9-]{1,20}", re.ASCII)

# Decode the next piece of input into at most that many bytes.
Decode = Callable[[bytes, int], bytes]


class DecodedBody(NamedTuple):
    """A decoded body; ``whole`` if it is complete and its coding is valid."""

    content: bytes
    whole: bool


class NotDecodable(ValueError):
    """The body cannot be decoded."""

    def __init__(self, coding: str) -> None:
        shown = f" {coding}" if _ORDINARY_NAME.fullmatch(coding) else ""
        super().__init__(f"its content coding{shown} cannot be decoded")


def decode_body(body: bytes, codings: str, most: int) -> DecodedBody:
    """Decode *body* into at most *most* bytes; *codings* is its Content-Encoding, in the order of application."""
    names = [name.strip() for name in codings.split(",") if name.strip()]
    if not body:
        return DecodedBody(b"", whole=True)
    if len(names) > _MOST_CODINGS:
        raise NotDecodable("")
    found = DecodedBody(body[:most], len(body) <= most)
    for number, name in enumerate(reversed(names)):
        step = _decode_one(body if number == 0 else found.content, name, most)
        found = DecodedBody(step.content, step.whole and (number == 0 or found.whole))
    return found


def _decode_one(body: bytes, coding: str, most: int) -> DecodedBody:
    decode, errors = _build_decoder(coding, body[:2])
    bare = coding == "deflate" and _lacks_header(body[:2])  # then only a valid end proves the coding
    content = bytearray()
    # Byte by byte: this keeps what precedes an error, and limits how much is decompressed at once.
    for index in range(len(body)):
        try:
            content += decode(body[index : index + 1], most - len(content))
        except errors:
            if bare or not content:
                raise NotDecodable(coding) from None
            return DecodedBody(bytes(content), whole=False)
        if len(content) >= most:
            return DecodedBody(bytes(content[:most]), whole=False)
    return DecodedBody(bytes(content), whole=True)


def _build_decoder(coding: str, first: bytes) -> tuple[Decode, type[Exception]]:
    """Return the decoding function and the exception it raises."""
    if coding in _ZLIB:
        # 47: gzip or zlib, detected by header; -15: raw deflate, which some servers send as "deflate".
        window = -15 if coding == "deflate" and _lacks_header(first) else 47
        return zlib.decompressobj(window).decompress, zlib.error
    if coding == "br" and (brotli := _import_brotli()) is not None:
        return _build_brotli_decoder(brotli), brotli.error
    raise NotDecodable(coding)


def _lacks_header(first: bytes) -> bool:
    """Return whether *first* begins neither gzip nor zlib."""
    return first != b"\x1f\x8b" and (first[:1] != b"\x78" or int.from_bytes(first, "big") % 31 != 0)


@cache
def _import_brotli() -> Any:
    """Return the brotli package that the client would use, or None."""
    for name in ("brotli", "brotlicffi"):
        try:
            return __import__(name)
        except ImportError:
            continue
    return None


def _build_brotli_decoder(brotli: Any) -> Decode:
    decoder = brotli.Decompressor()
    take = getattr(decoder, "process", None) or decoder.decompress  # brotlicffi's name

    def decode(piece: bytes, most: int) -> bytes:
        try:
            return bytes(take(piece, output_buffer_limit=most))
        except TypeError:  # before version 1.2; one byte expands to at most 16 MiB
            return bytes(take(piece))

    return decode
