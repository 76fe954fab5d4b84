"""Items of a file: all are checked before the first is run, and none is kept in memory."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

from .formats import Format, Text, check_json_lines, find_format_by_name
from .input_error import InputError
from .input_location import InputLocation, build_read_error
from .item_ids import IdFunction, MissingId, refuse_duplicates
from .text_lines import NumberedLines

_AT_ONCE = 256


class FileItems(Sequence[Any]):
    """The items of a file in order; each is read from the disk when requested.

    The constructor reads the file once, and raises ``InputError`` for an invalid line, for ids that are missing or not
    unique, and for a file without items. Later reads raise it if the file was modified meanwhile. A file that was
    replaced (as editors do) or removed is read on as it was, because it stays open until ``close`` or garbage
    collection.
    """

    unchanging = True

    def __init__(self, place: InputLocation, form: Format | None, id_of: IdFunction) -> None:
        self.kind = place.kind
        self.name = place.name
        self.id_of = id_of
        self.ids: list[str] = []
        self._starts, self._sizes, self._lines = array("q"), array("q"), array("q")
        try:
            self._handle = os.open(place.path, os.O_RDONLY)
        except OSError as error:
            raise build_read_error(place.name, error) from None
        self._close = weakref.finalize(self, os.close, self._handle)
        try:
            self._version = self._version_now()
            self._form = self._scan(form or find_format_by_name(place.name))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; items cannot be read any more."""
        self._close()

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        wanted = range(len(self))[index]
        if isinstance(wanted, int):
            return self._read((wanted,))[0]
        return self._read(wanted)

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self), _AT_ONCE):
            yield from self[first : first + _AT_ONCE]

    # -- reading ----------------------------------------------------------------------------------------------

    def _scan(self, form: Format | None) -> Format:
        """Check every line and return the format."""
        with open(self._handle, "rb", closefd=False) as file:
            lines = NumberedLines(self.name, file.readline)
            if form is None:
                form = check_json_lines(lines) if self.name.lower().endswith(".json") else Text()
            id_of, add_id = self.id_of, self.ids.append
            add_start, add_size, add_line = self._starts.append, self._sizes.append, self._lines.append
            for number, offset, size, item in form.records(lines):
                try:
                    add_id(id_of(item))
                except MissingId as error:
                    raise lines.error(str(error), line=number) from None
                add_start(offset)
                add_size(size)
                add_line(number)
        self._refuse_changes()
        if not self.ids:
            raise InputError(source=self.name, detail="no items in this file")
        hint = "name a field with distinct values with --id FIELD, or remove the repeated lines"
        refuse_duplicates(self.name, self.ids, self._lines.__getitem__, unit="line", hint=hint)
        return form

    def _read(self, indexes: Sequence[int]) -> list[Any]:
        if not self._close.alive:
            raise ValueError(f"the items of {self.name} were closed")
        try:
            records = [os.pread(self._handle, self._sizes[index], self._starts[index]) for index in indexes]
        except OSError as error:
            raise build_read_error(self.name, error) from None
        self._refuse_changes()  # after reading: data read before a change is valid
        return [self._form.parse(record) for record in records]

    def _version_now(self) -> tuple[int, int]:
        found = os.fstat(self._handle)
        return found.st_size, found.st_mtime_ns

    def _refuse_changes(self) -> None:
        if self._version_now() != self._version:
            hint = "do not change the file during a run; the same command again continues with its new contents"
            raise InputError(source=self.name, detail="changed during the run", hint=hint)
