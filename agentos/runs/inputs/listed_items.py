"""Items that are given directly: words, or the paths of a folder or glob."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from ...util.sanitize import is_utf8
from .input_error import InputError
from .input_location import InputLocation, list_paths
from .item_ids import IdFunction, number_duplicates, refuse_duplicates


class ListedItems(Sequence[str]):
    """Texts in order. Raises ``InputError`` if there are none, or one is empty, not UTF-8, or repeated unasked."""

    unchanging = True

    def __init__(self, place: InputLocation, id_of: IdFunction, *, allow_duplicates: bool = False) -> None:
        self.kind = place.kind
        self.name = place.name
        self.id_of = id_of
        self._texts = place.words if place.kind == "words" else tuple(list_paths(place))
        if not self._texts:
            raise InputError(source=place.name, detail="no items")
        for number, text in enumerate(self._texts, start=1):
            if not text.strip():
                raise InputError(source=place.name, detail=f"word {number} is empty")
            if not is_utf8(text):
                raise InputError(source=place.name, detail=f"{text!r} is not UTF-8")
        self.ids = [self.id_of(text) for text in self._texts]
        if allow_duplicates:
            self.ids = number_duplicates(self.ids)
        hint = "give each word once, or add --allow-duplicates"
        refuse_duplicates(self.name, self.ids, lambda one, other: f"words {one + 1} and {other + 1}", hint=hint)

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._texts[index]
