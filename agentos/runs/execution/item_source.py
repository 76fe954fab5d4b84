"""Turn the user's input into items with ids, in order.

A list is checked as a whole before the run starts. Any other input is read only as far as the workers need it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

from ...errors import DuplicateItems
from ...util.fingerprint import fingerprint
from ...util.id_digest import id_digest
from ..core.id_set import RecentIds
from ..core.records import Item
from .error_policy import format_error

log = logging.getLogger("agentos")

CHUNK = 64
_SLOW = 0.001  # seconds per item, above which items are taken one at a time
_EXAMPLES = 5


class ItemSource:
    """Turns the user's input into ``Item`` objects, in order.

    ``total`` is the number of items, if known. For one caller at a time.
    """

    def __init__(self, items: Any, id_of: Callable[[Any], Any], *, with_fingerprints: bool = False) -> None:
        self._id_of = id_of
        self._with_fingerprints = with_fingerprints
        self._index = 0
        self._nameless: dict[int, str] = {}  # by index: why the item has no id
        self.is_async = isinstance(items, AsyncIterable)
        self.is_pushed = self.is_async  # the input pushes items; else they are pulled on demand
        self.ids: list[str] | None = None  # of a list
        self.payloads: Sequence[Any] = ()
        self.total: int | None = None
        self.unchanged: bytearray | None = None  # by index: the recorded result holds, no fingerprint needed
        self._warned_not_json = False
        self._known_ids: RecentIds | None = None
        self.iterator: Iterator[Any] = iter(())
        if isinstance(items, (str, bytes)):
            raise ValueError("items must be a list of items or another iterable, not a single text")
        if self.is_async:
            self.async_items = items.__aiter__()
            self._known_ids = RecentIds(id_digest)
        elif isinstance(items, Iterable) and isinstance(items, Sized) and not hasattr(items, "__next__"):
            # A copy, unless it cannot change: ids and items must match until the end.
            self.payloads = _copy_items(items)
            self.ids = self._check_ids(self.payloads)
            self.total = len(self.ids)
        elif isinstance(items, Iterable):
            self.iterator = iter(items)
            self._known_ids = RecentIds(id_digest)
        else:
            raise ValueError(f"items must be a list of items or another iterable, not {type(items).__name__}")

    def _check_ids(self, items: Iterable[Any]) -> list[str]:
        """Return the ids of a whole list. Raises ``DuplicateItems`` before anything has started."""
        if getattr(items, "unchanging", False) is True and getattr(items, "id_of", None) is self._id_of:
            return items.ids  # type: ignore[attr-defined,no-any-return] # computed and checked when it was opened
        ids = []
        for index, item in enumerate(items):
            item_id, why = self._name(item, index)
            if why is not None:
                self._nameless[index] = why
            ids.append(item_id)
        taken = set(ids)
        if self._nameless and len(taken) != len(ids):
            taken = {item_id for index, item_id in enumerate(ids) if index not in self._nameless}
            for index in self._nameless:
                while ids[index] in taken:
                    ids[index] += "~"  # another item really has that id
                taken.add(ids[index])
        if len(taken) != len(ids):
            raise _duplicates(ids)
        return ids

    def _name(self, item: Any, index: int) -> tuple[str, str | None]:
        """Return the item's id and None; or an id made from its index, and why it has none."""
        try:
            found = self._id_of(item)
            if found is None or found == "":
                return f"item-{index}", f"item_id_func gave no id for items[{index}]"
            return (found if type(found) is str else str(found)), None
        except Exception as error:  # noqa: BLE001 - an error of the user's function fails this item only
            return (
                f"item-{index}",
                f"item_id_func failed for items[{index}]: {type(error).__name__}: {format_error(error)}",
            )

    # -- reading ----------------------------------------------------------------------------------------------

    def take_listed(self, at_most: int) -> tuple[list[Item], bool]:
        """Return the next items of a list, and True if more may follow."""
        ids = self.ids
        assert ids is not None  # noqa: S101 - for the type checker
        first = self._index
        names = ids[first : first + at_most]
        self._index = first + len(names)
        batch = list(map(Item, range(first, self._index), names, self.payloads[first : self._index]))
        for item in batch if self._with_fingerprints or self._nameless else ():
            if item.index in self._nameless:
                item.fault = self._nameless[item.index]
            elif self._with_fingerprints and not (self.unchanged and self.unchanged[item.index]):
                self._set_fingerprint(item)
        return batch, self._index < len(ids)

    def take(self, put: Callable[[Item], None], at_most: int = CHUNK) -> bool:
        """Pass the next items of an input that is not a list to *put*. Returns False once there are no more."""
        began = time.monotonic()
        for _ in range(at_most):
            try:
                payload = next(self.iterator)
            except StopIteration:
                return False
            put(self.make(payload))
            if time.monotonic() - began > _SLOW:
                break
        return True

    def make(self, payload: Any) -> Item:
        """Return the next item of an input of unknown length."""
        index = self._index
        self._index = index + 1
        item_id, why = self._name(payload, index)
        item = Item(index, item_id, payload)
        if why is not None:
            item.fault = why
            item.duplicate = True  # another item may really have that id, and must keep its state
        elif self._known_ids is not None and not self._known_ids.add(item_id):
            item.fault = f"duplicate id: an earlier item is {item_id!r} too"
            item.duplicate = True
        elif self._with_fingerprints:
            self._set_fingerprint(item)
        return item

    def _set_fingerprint(self, item: Item) -> None:
        item.fingerprint = fingerprint(item.payload)
        if item.fingerprint is None and not self._warned_not_json:
            self._warned_not_json = True
            log.warning("[COORDINATOR] item %s is not JSON: such items are identified by their id alone", item.id)


def _copy_items(items: Any) -> Sequence[Any]:
    # Unchanging items are read on demand: a copy would hold a whole file in memory.
    if isinstance(items, (tuple, range)) or getattr(items, "unchanging", False) is True:
        return items  # type: ignore[no-any-return]
    return list(items)


def _duplicates(ids: list[str]) -> DuplicateItems:
    first: dict[str, int] = {}
    examples: list[tuple[str, int, int]] = []
    count = 0
    for index, item_id in enumerate(ids):
        if item_id in first:
            count += 1
            if len(examples) < _EXAMPLES:
                examples.append((item_id, first[item_id], index))
        else:
            first[item_id] = index
    return DuplicateItems(examples=examples, count=count)
