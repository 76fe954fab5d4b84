"""A stream of events on its way to the caller: unpacked, and without the key, which an error event may quote.

Where a stream is cut into pieces says nothing of what is in it, so that the key may lie across two of them.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

from ..pool.redaction import MASK, SHORTEST_PIECE
from ..pool.secret import Secret

_MASK = MASK.encode()
_OF_A_BODY = ("content-encoding", "content-length")

# How it may be packed. 47: as gzip or zlib, by its first bytes; -15: as zlib without them, which some call deflate.
_WINDOWS = {"gzip": (47,), "x-gzip": (47,), "deflate": (47, -15)}


class EventStreamFilter:
    """The pieces of an event stream, one after the other. *coding* is its ``Content-Encoding``."""

    __slots__ = ("_decoder", "_held", "_secret", "_windows")

    def __init__(self, secret: Secret, coding: str = "") -> None:
        self._secret = secret
        self._windows = _WINDOWS.get(coding)
        self._decoder: Any = None
        self._held = b""

    def prepare(self, headers: Any) -> None:
        """Take out of *headers* what will not be true of the stream that goes on."""
        if self._windows:
            for name in _OF_A_BODY:
                headers.pop(name, None)

    def decompress(self, piece: bytes) -> bytes:
        """What *piece* says. Raises zlib.error where the coding breaks off; what never was coded is left as it is."""
        if not self._windows:
            return piece
        if self._decoder is None:
            return self._first(piece, self._windows)
        return bytes(self._decoder.decompress(piece))

    def _first(self, piece: bytes, windows: tuple[int, ...]) -> bytes:
        for window in windows:
            decoder = zlib.decompressobj(window)
            try:
                said = decoder.decompress(piece)
            except zlib.error:
                continue
            self._decoder = decoder
            return said
        self._windows = None
        return piece

    def redact(self, piece: bytes) -> bytes:
        """*piece* as it goes on: without the key, in any letter case, and without an end that may be its beginning."""
        secret = self._secret.reveal().encode().lower()
        if self._held:
            piece, self._held = self._held + piece, b""
        folded = piece.lower()
        if secret in folded:
            piece = re.sub(re.escape(secret), _MASK, piece, flags=re.IGNORECASE)
            folded = piece.lower()
        begun = _partial_secret_length(folded, secret)
        if begun:
            piece, self._held = piece[:-begun], piece[-begun:]
        return piece

    def flush(self) -> bytes:
        """What was held back, now that nothing follows it; a piece of the key that is too long for chance is masked."""
        held, self._held = self._held, b""
        return held if len(held) < SHORTEST_PIECE else _MASK


def _partial_secret_length(piece: bytes, secret: bytes) -> int:
    """How many bytes at the end of *piece* are the beginning of *secret*."""
    at = piece.find(secret[:1], max(0, len(piece) - len(secret) + 1))
    while at >= 0:
        if secret.startswith(piece[at:]):
            return len(piece) - at
        at = piece.find(secret[:1], at + 1)
    return 0
