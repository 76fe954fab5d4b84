"""Items of files: all are checked before the first is run, and none is kept in memory."""

from __future__ import annotations

import os
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, overload

from .file_names import is_compressed, is_json_document
from .formats import Format, Text, choose_json_format, find_format_by_name, get_format
from .gzip_file import unpack
from .input_error import InputError
from .input_location import InputLocation, build_read_error
from .item_ids import IdFunction, MissingId, number_duplicates, refuse_duplicates
from .text_lines import NumberedLines

_AT_ONCE = 256
_BEGINNING = 4_096


class FileItems(Sequence[Any]):
    """The items of one or several files in order; each is read from the disk when requested.

    The constructor reads the files once, and raises ``InputError`` for an invalid line, for ids that are missing or not
    unique, and for a file without items. Later reads raise it if a file was modified meanwhile. A file that was
    replaced (as editors do) or removed is read on as it was, because it stays open until ``close`` or garbage
    collection. A file that is compressed is unpacked to another one, which has no name.
    """

    unchanging = True

    def __init__(
        self, place: InputLocation, named_format: str | None, id_of: IdFunction, *, allow_duplicates: bool = False
    ) -> None:
        self.kind = place.kind
        self.name = place.name
        self.id_of = id_of
        self.ids: list[str] = []
        self._files: list[_IndexedFile] = []
        self._firsts: list[int] = []  # the index of the first item of each file
        try:
            for path in place.words or (place.name,):
                form = None if named_format is None else get_format(named_format)
                self._firsts.append(len(self.ids))
                self._files.append(_IndexedFile(path, form, id_of, self.ids.append))
            if allow_duplicates:
                self.ids = number_duplicates(self.ids)
            hint = "name a field with distinct values with --id FIELD, remove the repeated lines, or --allow-duplicates"
            refuse_duplicates(self.name, self.ids, self._describe_places, hint=hint)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files; items cannot be read any more."""
        for file in self._files:
            file.close()

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

    def _read(self, indexes: Sequence[int]) -> list[Any]:
        if len(self._files) == 1:
            return self._files[0].read(indexes)
        found: list[Any] = []
        for place, group in groupby(indexes, key=lambda index: bisect_right(self._firsts, index) - 1):
            found += self._files[place].read([index - self._firsts[place] for index in group])
        return found

    def _locate(self, index: int) -> tuple[_IndexedFile, int]:
        place = bisect_right(self._firsts, index) - 1
        return self._files[place], index - self._firsts[place]

    def _describe_places(self, one: int, other: int) -> str:
        places = [(file.name, file.lines[index]) for file, index in map(self._locate, (one, other))]
        if len(self._files) == 1:
            return f"lines {places[0][1]} and {places[1][1]}"
        return " and ".join(f"{name}, line {line}" for name, line in places)


class _IndexedFile:
    """An open file, and where each of its items is."""

    def __init__(self, name: str, form: Format | None, id_of: IdFunction, add_id: Callable[[str], object]) -> None:
        self.name = name
        self.lines = array("q")
        self._starts, self._sizes = array("q"), array("q")
        try:
            self._handle = os.open(os.path.abspath(name), os.O_RDONLY)
        except OSError as error:
            raise build_read_error(name, error) from None
        self.close = weakref.finalize(self, os.close, self._handle)
        try:
            if is_compressed(name):
                unpacked = unpack(self._handle, name)
                self.close()
                self._handle = unpacked
                self.close = weakref.finalize(self, os.close, self._handle)
                os.lseek(self._handle, 0, os.SEEK_SET)
            self._version = self._version_now()
            self._form = self._scan(form or find_format_by_name(name), id_of, add_id)
        except BaseException:
            self.close()
            raise

    def _scan(self, form: Format | None, id_of: IdFunction, add_id: Callable[[str], object]) -> Format:
        """Check every line and return the format."""
        with open(self._handle, "rb", closefd=False) as file:
            lines = NumberedLines(self.name, file.readline)
            if form is None and is_json_document(self.name):
                form = choose_json_format(lines, os.pread(self._handle, _BEGINNING, 0))
            form = form or Text()
            add_start, add_size, add_line = self._starts.append, self._sizes.append, self.lines.append
            for number, offset, size, item in form.records(lines):
                try:
                    add_id(id_of(item))
                except MissingId as error:
                    raise lines.error(str(error), line=number) from None
                add_start(offset)
                add_size(size)
                add_line(number)
        self._refuse_changes()
        if not self.lines:
            raise InputError(source=self.name, detail="no items in this file")
        return form

    def read(self, indexes: Sequence[int]) -> list[Any]:
        """Return the items at *indexes*, from the disk."""
        if not self.close.alive:
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
