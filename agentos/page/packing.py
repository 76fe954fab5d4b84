"""Pack columns of numbers and texts into one block of bytes, compressed, as the page's script unpacks it.

The block has the parts one after the other, then a JSON header and, in four bytes (little-endian), the length of the
header. The header has the facts, and for each part its name, type, number of values and length in bytes. Numbers of
several bytes are stored as planes, all lowest bytes first, which compress far better; those marked ``delta`` as
differences.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final

_LEVEL: Final = 6
_CHUNK: Final = 1 << 20
_TYPE_OF: Final = {"B": "u8", "H": "u16", "I": "u32"}


class PackedColumns:
    """Named parts of a block, in the order in which they were added. Each is compressed at once, to save memory."""

    def __init__(self) -> None:
        self._described: list[dict[str, Any]] = []
        self._packer = zlib.compressobj(_LEVEL, wbits=31)  # as gzip does it
        self._packed: list[bytes] = []

    def add_numbers(self, name: str, values: array[int], *, delta: bool = False) -> None:
        """Add a column of unsigned numbers; *delta*: it mostly grows, and is stored as differences."""
        if delta:
            values = _differences(values)
        length = sum(self._put(plane) for plane in _list_planes(values))
        self._describe(name, _TYPE_OF[values.typecode], len(values), length, delta=delta)

    def add_text(self, name: str, pieces: Iterable[bytes], count: int) -> None:
        """Add a text of *count* lines."""
        self._describe(name, "text", count, sum(self._put(piece) for piece in pieces))

    def finish(self, facts: dict[str, Any]) -> bytes:
        """Return the block with *facts* in its header."""
        header = json.dumps({**facts, "parts": self._described}, allow_nan=False, separators=(",", ":")).encode()
        self._put(header + len(header).to_bytes(4, "little"))
        return b"".join([*self._packed, self._packer.flush()])

    def _put(self, data: bytes) -> int:
        for start in range(0, len(data), _CHUNK):
            self._packed.append(self._packer.compress(data[start : start + _CHUNK]))
        return len(data)

    def _describe(self, name: str, kind: str, count: int, length: int, **more: Any) -> None:
        self._described.append({"name": name, "type": kind, "count": count, "bytes": length, **more})


def unpack(packed: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header of a block, and its parts by name: lists of numbers, or lists of lines."""
    data = zlib.decompress(packed, wbits=31)
    length = int.from_bytes(data[-4:], "little")
    header = json.loads(data[-4 - length : -4])
    place, parts = 0, {}
    for part in header["parts"]:
        piece = data[place : place + part["bytes"]]
        place += part["bytes"]
        parts[part["name"]] = list(_read_part(part, piece))
    return header, parts


def _read_part(part: dict[str, Any], piece: bytes) -> Iterator[Any]:
    if part["type"] == "text":
        for line in piece.decode().split("\n")[: part["count"]]:
            yield line.replace("\\n", "\n").replace("\\\\", "\\") if "\\" in line else line
        return
    width, total = int(part["type"][1:]) // 8, 0
    for row in range(part["count"]):
        value = sum(piece[plane * part["count"] + row] << 8 * plane for plane in range(width))
        total = (total + value) & 0xFFFFFFFF if part.get("delta") else value
        yield total


def _differences(values: array[int]) -> array[int]:
    found, before = array("I"), 0
    for value in values:
        found.append((value - before) & 0xFFFFFFFF)
        before = value
    return found


def _list_planes(values: array[int]) -> Iterator[bytes]:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    data = values.tobytes()
    return (data[plane :: values.itemsize] for plane in range(values.itemsize))
