"""Remembering a million ids in sixteen megabytes, to notice one that comes again."""

from __future__ import annotations

from array import array

_FIRST_SIZE = 1 << 10


class _Generation:
    """A set of 64-bit hashes, by open addressing. Zero marks an empty place."""

    __slots__ = ("count", "mask", "table")

    def __init__(self) -> None:
        self.count = 0
        self.mask = _FIRST_SIZE - 1
        self.table = array("q", bytes(8 * _FIRST_SIZE))

    def has(self, key: int) -> bool:
        table, mask = self.table, self.mask
        place = key & mask
        while (found := table[place]) != 0:
            if found == key:
                return True
            place = (place + 1) & mask
        return False

    def add(self, key: int) -> bool:
        """Put it in. False: it was there already."""
        table, mask = self.table, self.mask
        place = key & mask
        while (found := table[place]) != 0:
            if found == key:
                return False
            place = (place + 1) & mask
        table[place] = key
        self.count += 1
        if self.count * 2 > mask:
            self._grow()
        return True

    def _grow(self) -> None:
        old = self.table
        self.mask = mask = len(old) * 2 - 1
        self.table = table = array("q", bytes(16 * len(old)))
        for key in old:
            if key:
                place = key & mask
                while table[place] != 0:
                    place = (place + 1) & mask
                table[place] = key


class SeenIds:
    """Says whether an id was seen before, among at least the last *remembered*. Its size has a bound, its input none.

    It keeps 64-bit hashes, not ids: one in some ten million runs of a million items would take an id for another.
    """

    def __init__(self, remembered: int = 1_000_000) -> None:
        self._remembered = remembered
        self._now = _Generation()
        self._before: _Generation | None = None

    def add(self, item_id: str) -> bool:
        """Note an id. False: it was seen before."""
        key = hash(item_id) or 1
        if self._before is not None and self._before.has(key):
            return False
        if not self._now.add(key):
            return False
        if self._now.count >= self._remembered:
            self._before, self._now = self._now, _Generation()
        return True
