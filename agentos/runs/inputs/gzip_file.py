"""Unpack a gzip file to an unnamed file on disk: items are read again when they run, and not only in order."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator

from .input_error import InputError
from .input_location import build_read_error

_ON_DISK = "/var/tmp"  # noqa: S108 - a folder for an unnamed file; /tmp may be in memory
_PIECE = 1 << 18


def unpack(handle: int, name: str) -> int:
    """Return the descriptor of an unnamed file with the unpacked contents of the file at *handle*."""
    folder = None if os.environ.get("TMPDIR") or not os.access(_ON_DISK, os.W_OK) else _ON_DISK
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as unpacked:
            for piece in _read_pieces(handle, name):
                unpacked.write(piece)
            return os.dup(unpacked.fileno())
    except OSError as error:
        hint = f"it is unpacked in {folder or tempfile.gettempdir()}; TMPDIR names another folder"
        raise InputError(source=name, detail=f"cannot be unpacked ({error.strerror or error})", hint=hint) from None


def _read_pieces(handle: int, name: str) -> Iterator[bytes]:
    with open(handle, "rb", closefd=False) as packed, gzip.GzipFile(fileobj=packed) as contents:
        while True:
            try:
                piece = contents.read(_PIECE)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise InputError(source=name, detail=f"not a whole gzip file ({error})") from None
            except OSError as error:
                raise build_read_error(name, error) from None
            if not piece:
                return
            yield piece
