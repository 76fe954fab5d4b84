"""Tables of item ids that keep 128-bit digests in place of the ids: 34 MB for a million, 50 MB with a number for each.

A digest is two signed integers of 64 bits. Ids with the same digest are taken for the same id.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

_FIRST_SIZE = 1 << 10


class DigestTable:
    """A set of digests by open addressing; with *numbers*, a map from each to an integer of 64 bits."""

    __slots__ = ("_mask", "_stride", "_table", "count")

    def __init__(self, *, numbers: bool = False) -> None:
        self.count = 0
        self._stride = 3 if numbers else 2
        self._resize(_FIRST_SIZE)

    def add(self, digest: tuple[int, int], number: int = 0) -> bool:
        """Put it in, with *number* if this is a map. False: it was there already, and nothing is changed."""
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
        """The number that was put in with *digest*; None if there is none. Only for a map."""
        at = self._find(digest)
        return self._table[at + 2] if self._table[at] else None

    def _find(self, digest: tuple[int, int]) -> int:
        """Where *digest* is, or the free place where it belongs: the first integer of a free place is zero."""
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
    """Says whether an id was seen before, among at least the last *remembered*. Its size has a bound, its input none.

    *digest* makes 128 bits of an id.
    """

    def __init__(self, digest: Callable[[str], tuple[int, int]], remembered: int = 1_000_000) -> None:
        self._digest = digest
        self._remembered = remembered
        self._now = DigestTable()
        self._before: DigestTable | None = None

    def add(self, item_id: str) -> bool:
        """Note an id. False: it was seen before."""
        digest = self._digest(item_id)
        if self._before is not None and digest in self._before:
            return False
        if not self._now.add(digest):
            return False
        if self._now.count >= self._remembered:
            self._before, self._now = self._now, DigestTable()
        return True
