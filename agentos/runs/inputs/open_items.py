"""Open the items of a named source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

from .file_items import FileItems
from .formats import get_format
from .input_error import InputError
from .input_location import InputLocation, Kind, locate_input
from .item_ids import CURRENT_ID_RULES, IdFunction
from .listed_items import ListedItems
from .piped_items import StreamItems
from .repeated_items import RepeatedItems


class Items(Protocol):
    """Items with their ids: an unchanging sequence (with ``ids``), or an iterator for a stream."""

    kind: Kind
    name: str
    unchanging: bool

    @property
    def id_of(self) -> Callable[[Any], str]: ...

    def __iter__(self) -> Iterator[Any]: ...


def open_items(
    source: str | os.PathLike[str] | Sequence[str] | InputLocation,
    *,
    id_field: str | None = None,
    format: str | None = None,  # noqa: A002 - the name of the command-line option
    repeat: int | None = None,
    allow_duplicates: bool = False,
    id_rules: int = CURRENT_ID_RULES,
    stdin: BinaryIO | None = None,
) -> FileItems | ListedItems | RepeatedItems | StreamItems:
    """Open the items of *source*: ``"-"``, a file, a folder (its files), a glob (its paths), or a sequence of words.

    A file is JSON lines (``.jsonl``, ``.ndjson``), an array (``.json``), a table (``.csv``, ``.tsv``) or else text, one
    item per line, unless *format* is given; with ``.gz`` after that it is compressed. All of it is checked, and its
    items are read again when requested. Standard input is text, unless *format* is given or its first line is a JSON
    object.
    *id_field* is the name or dotted path of the field that is each item's id; *id_rules* the version of the rules for
    other ids. With *repeat* each item comes so often; with *allow_duplicates* equal ids get a number. Raise
    ``InputError`` if the source is invalid.
    """
    place = source if isinstance(source, InputLocation) else locate_input(source)
    form = None if format is None else get_format(format)
    id_of = IdFunction(id_field, rules=id_rules, streamed=place.kind == "stdin")
    items: FileItems | ListedItems
    if place.kind in ("file", "files", "stdin"):
        if format == "text" and id_field is not None:
            raise InputError(source=place.name, detail="lines of text have no fields, so there is nothing for --id")
        if place.kind == "stdin":
            return StreamItems(place, form, id_of, stdin, repeat=repeat, allow_duplicates=allow_duplicates)
        items = FileItems(place, format, id_of, allow_duplicates=allow_duplicates)
    else:
        what = "words" if place.kind == "words" else "paths"
        if id_field is not None:
            raise InputError(source=place.name, detail=f"{what} have no fields, so there is nothing for --id")
        if form is not None:
            raise InputError(source=place.name, detail=f"the items are {what}, not lines of a file: leave --format out")
        items = ListedItems(place, id_of, allow_duplicates=allow_duplicates)
    return items if repeat is None else RepeatedItems(items, repeat)
