"""A list of items, each several times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, overload

from .file_items import FileItems
from .listed_items import ListedItems


class RepeatedItems(Sequence[Any]):
    """Each item *copies* times in a row, with ``#1``, ``#2`` ... after its id."""

    unchanging = True

    def __init__(self, items: FileItems | ListedItems, copies: int) -> None:
        self.kind = items.kind
        self.name = items.name
        self.id_of = items.id_of
        self._items = items
        self._copies = copies
        self.ids = [f"{item_id}#{number}" for item_id in items.ids for number in range(1, copies + 1)]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        wanted = range(len(self))[index]
        if isinstance(wanted, int):
            return self._items[wanted // self._copies]
        originals = [each // self._copies for each in wanted]
        if not originals:
            return []
        first = min(originals)
        found = self._items[first : max(originals) + 1]
        return [found[each - first] for each in originals]

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield from repeat(item, self._copies)
