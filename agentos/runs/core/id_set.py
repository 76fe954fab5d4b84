"""Compact sets and maps of item ids by 128-bit digest: 34 MB for a million ids, 50 MB with a number for each.

A digest is two signed 64-bit integers. Ids with the same digest count as the same id.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

_FIRST_SIZE = 1 << 10


class DigestTable:
    """An open-addressing set of digests; with *numbers*, a map from each to a 64-bit integer."""

    __slots__ = ("_mask", "_stride", "_table", "count")

    def __init__(self, *, numbers: bool = False) -> None:
        self.count = 0
        self._stride = 3 if numbers else 2
        self._resize(_FIRST_SIZE)

    def add(self, digest: tuple[int, int], number: int = 0) -> bool:
        """Add a digest, with *number* in a map. Return False, and change nothing, if it was there already."""
        at = self._find(digest)
        table = self._table
        if table[at]:
            return False
        table[at] = digest[0] or 1
        table[at + 1] = digest[1]
        if self._stride == 3:
            table[at + 2] = number
        self.count += 1
        if self.count * 2 > self._mask:
            self._grow()
        return True

    def __contains__(self, digest: tuple[int, int]) -> bool:
        return self._table[self._find(digest)] != 0

    def number(self, digest: tuple[int, int]) -> int | None:
        """Return the number added with *digest*, or None. Only for a map."""
        at = self._find(digest)
        return self._table[at + 2] if self._table[at] else None

    def _find(self, digest: tuple[int, int]) -> int:
        """Return the offset of *digest*, or of the free slot where it belongs. A free slot begins with 0."""
        first, second = digest
        first = first or 1
        table, mask, stride = self._table, self._mask, self._stride
        place = first & mask
        while (found := table[at := place * stride]) and (found != first or table[at + 1] != second):
            place = (place + 1) & mask
        return at

    def _grow(self) -> None:
        old, stride = self._table, self._stride
        self._resize(2 * len(old) // stride)
        for begin in range(0, len(old), stride):
            if old[begin]:
                at = self._find((old[begin], old[begin + 1]))
                self._table[at : at + stride] = old[begin : begin + stride]

    def _resize(self, size: int) -> None:
        self._mask = size - 1
        self._table = array("q", bytes(8 * self._stride * size))


class RecentIds:
    """A set of bounded size that remembers at least the last *remembered* ids. *digest* returns 128 bits for an id."""

    def __init__(self, digest: Callable[[str], tuple[int, int]], remembered: int = 1_000_000) -> None:
        self._digest = digest
        self._remembered = remembered
        self._now = DigestTable()
        self._before: DigestTable | None = None

    def add(self, item_id: str) -> bool:
        """Add an id. Return False if it was seen before."""
        digest = self._digest(item_id)
        if self._before is not None and digest in self._before:
            return False
        if not self._now.add(digest):
            return False
        if self._now.count >= self._remembered:
            self._before, self._now = self._now, DigestTable()
        return True
