"""Pack columns of numbers and texts into one block of bytes, compressed, as the page's script unpacks it.

The block begins with the length of a JSON header (four bytes, little-endian) and the header, which has the facts, and
for each part its name, type, number of values and length in bytes; the parts follow in that order. Numbers of several
bytes are stored as planes, all lowest bytes first, which compress far better; those marked ``delta`` as differences.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterator
from typing import Any, Final

_LEVEL: Final = 6
_CHUNK: Final = 1 << 20
_TYPE_OF: Final = {"B": "u8", "H": "u16", "I": "u32"}


class PackedColumns:
    """Named parts of a block, in the order in which they were added."""

    def __init__(self) -> None:
        self._described: list[dict[str, Any]] = []
        self._parts: list[bytes] = []

    def add_numbers(self, name: str, values: array[int], *, delta: bool = False) -> None:
        """Add a column of unsigned numbers; *delta*: it mostly grows, and is stored as differences."""
        if delta:
            values = _differences(values)
        kind = _TYPE_OF[values.typecode]
        self._add(name, kind, len(values), _to_planes(values), delta=delta)

    def add_text(self, name: str, text: bytes, count: int) -> None:
        """Add a text of *count* lines."""
        self._add(name, "text", count, text)

    def compress(self, facts: dict[str, Any]) -> bytes:
        """Return the block with *facts* in its header, as gzip does it."""
        header = json.dumps({**facts, "parts": self._described}, allow_nan=False, separators=(",", ":")).encode()
        packer = zlib.compressobj(_LEVEL, wbits=31)
        packed = [packer.compress(len(header).to_bytes(4, "little") + header)]
        for part in self._parts:
            packed.extend(packer.compress(part[start : start + _CHUNK]) for start in range(0, len(part), _CHUNK))
        return b"".join([*packed, packer.flush()])

    def _add(self, name: str, kind: str, count: int, data: bytes, **more: Any) -> None:
        self._described.append({"name": name, "type": kind, "count": count, "bytes": len(data), **more})
        self._parts.append(data)


def unpack(packed: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header of a block, and its parts by name: lists of numbers, or lists of lines."""
    data = zlib.decompress(packed, wbits=31)
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    place, parts = 4 + length, {}
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


def _to_planes(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    data = values.tobytes()
    return b"".join(data[plane :: values.itemsize] for plane in range(values.itemsize))
