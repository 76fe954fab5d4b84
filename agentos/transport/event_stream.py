"""Decompress an event stream and redact the key, which an error event may quote.

The key may be split across two pieces of the stream.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

from ..pool.redaction import MASK, SHORTEST_PIECE
from ..pool.secret import Secret

_MASK = MASK.encode()
_BODY_HEADERS = ("content-encoding", "content-length")

# zlib window sizes. 47: gzip or zlib, detected by header; -15: raw deflate, which some servers send as "deflate".
_WINDOWS = {"gzip": (47,), "x-gzip": (47,), "deflate": (47, -15)}


class EventStreamFilter:
    """Decompress and redact the pieces of an event stream in order. *coding* is its ``Content-Encoding``."""

    __slots__ = ("_decoder", "_held", "_secret", "_windows")

    def __init__(self, secret: Secret, coding: str = "") -> None:
        self._secret = secret
        self._windows = _WINDOWS.get(coding)
        self._decoder: Any = None
        self._held = b""

    def prepare(self, headers: Any) -> None:
        """Remove from *headers* those that do not apply to the decompressed stream."""
        if self._windows:
            for name in _BODY_HEADERS:
                headers.pop(name, None)

    def decompress(self, piece: bytes) -> bytes:
        """Decompress *piece*; data that was never compressed is unchanged. Raises zlib.error if the data is corrupt."""
        if not self._windows:
            return piece
        if self._decoder is None:
            return self._start_decoding(piece, self._windows)
        return bytes(self._decoder.decompress(piece))

    def _start_decoding(self, piece: bytes, windows: tuple[int, ...]) -> bytes:
        for window in windows:
            decoder = zlib.decompressobj(window)
            try:
                decoded = decoder.decompress(piece)
            except zlib.error:
                continue
            self._decoder = decoder
            return decoded
        self._windows = None
        return piece

    def redact(self, piece: bytes) -> bytes:
        """Mask the key in *piece*, in any letter case, and hold back an end that may be the beginning of the key."""
        secret = self._secret.reveal().encode().lower()
        if self._held:
            piece, self._held = self._held + piece, b""
        folded = piece.lower()
        if secret in folded:
            piece = re.sub(re.escape(secret), _MASK, piece, flags=re.IGNORECASE)
            folded = piece.lower()
        partial = _partial_secret_length(folded, secret)
        if partial:
            piece, self._held = piece[:-partial], piece[-partial:]
        return piece

    def flush(self) -> bytes:
        """Return the bytes held back, at the end of the stream; masked if too long to match the key by chance."""
        held, self._held = self._held, b""
        return held if len(held) < SHORTEST_PIECE else _MASK


def _partial_secret_length(piece: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of *piece* are the beginning of *secret*."""
    at = piece.find(secret[:1], max(0, len(piece) - len(secret) + 1))
    while at >= 0:
        if secret.startswith(piece[at:]):
            return len(piece) - at
        at = piece.find(secret[:1], at + 1)
    return 0
