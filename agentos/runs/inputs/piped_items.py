"""Items of a stream that can be read only once: standard input, a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from .formats import Format, find_format_by_name, guess_format
from .input_error import InputError
from .input_location import STANDARD_INPUT, InputLocation, build_read_error
from .item_ids import IdFunction, MissingId, NumberedIds
from .text_lines import NumberedLines


class StreamItems(Iterator[Any]):
    """Yields each item as soon as its line is available; the stream may be endless or empty.

    Nothing is read before the first item is requested. Without a *form* the first non-blank line decides: if it is a
    JSON object, all are JSON lines, else all are text. An invalid line raises ``InputError`` with its number and ends
    the iteration. ``count`` is the number of items so far. *repeat* yields each item so often.
    """

    unchanging = False

    def __init__(
        self,
        place: InputLocation,
        form: Format | None,
        id_of: IdFunction,
        stdin: BinaryIO | None = None,
        *,
        repeat: int | None = None,
        allow_duplicates: bool = False,
    ) -> None:
        self.kind = place.kind
        self.name = place.name
        self._id_of = id_of
        self._copies = repeat or 1
        self.id_of: IdFunction | NumberedIds = id_of
        if repeat is not None or allow_duplicates:
            self.id_of = NumberedIds(id_of, repeat=repeat, allow_duplicates=allow_duplicates)
        self.count = 0
        self._path = None if place.name == STANDARD_INPUT else place.name
        self._form = form
        self._stdin = stdin
        self._items = self._read()

    def __next__(self) -> Any:
        item = next(self._items)
        self.count += 1
        return item

    def _read(self) -> Iterator[Any]:
        if self._path is None:
            stdin = self._stdin or getattr(sys.stdin, "buffer", None)  # None if the process was started without one
            if stdin is None or stdin.closed:
                raise InputError(source=self.name, detail="closed, so there is nothing to read")
            yield from self._parse_items(stdin)
            return
        try:
            file = open(self._path, "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise build_read_error(self.name, error) from None
        with file:
            yield from self._parse_items(file)

    def _parse_items(self, file: BinaryIO) -> Iterator[Any]:
        lines = NumberedLines(self.name, file.readline)
        form = self._form or find_format_by_name(self.name) or guess_format(lines)
        for number, _, _, item in form.records(lines):
            if self._id_of.field is not None:
                try:
                    self._id_of(item)
                except MissingId as error:
                    raise lines.error(str(error), line=number) from None
            for _ in range(self._copies):
                yield item
