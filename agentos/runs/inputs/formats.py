"""Input formats: text, JSON lines, one JSON array, and tables with a header (CSV and TSV)."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from .file_names import find_format_name
from .input_error import InputError
from .json_array import JsonArray
from .json_values import decode_json
from .text_lines import MAX_LINE, Line, NumberedLines, Record, is_blank

NAMES = ("text", "jsonl", "json", "csv", "tsv")
_ONE_DOCUMENT = "one JSON value per line is needed; for one array of items: --format json"


class Format(Protocol):
    """An input format. ``records`` iterates over an input, ``parse`` reads one record again."""

    def records(self, lines: NumberedLines) -> Iterator[Record]: ...
    def parse(self, raw: bytes) -> Any: ...


class Text:
    """One item per line, unchanged; blank lines are skipped."""

    def records(self, lines: NumberedLines) -> Iterator[Record]:
        for number, offset, size, text in lines:
            if not is_blank(text):
                yield number, offset, size, _without_end(text)

    def parse(self, raw: bytes) -> str:
        return _without_end(raw.decode())


class JsonLines:
    """One JSON value per line; blank lines are skipped."""

    def records(self, lines: NumberedLines) -> Iterator[Record]:
        for number, offset, size, text in lines:
            if is_blank(text):
                continue
            try:
                item = decode_json(_without_end(text))
            except json.JSONDecodeError as error:
                hint = _ONE_DOCUMENT if number == 1 and text.lstrip()[0] in "[{" else None
                raise lines.error(f"not JSON ({error.msg} at column {error.colno})", hint=hint) from None
            except (ValueError, RecursionError) as error:
                why = "nested too deeply" if isinstance(error, RecursionError) else error
                raise lines.error(f"not JSON that can be read ({why})") from None
            yield number, offset, size, item

    def parse(self, raw: bytes) -> Any:
        return decode_json(raw.decode())


class Table:
    """A header, then one object of texts per row. Quoted fields may hold line ends; blank rows are skipped."""

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._header: list[str] = []

    def records(self, lines: NumberedLines) -> Iterator[Record]:
        if csv.field_size_limit() < MAX_LINE:
            csv.field_size_limit(MAX_LINE)  # the default, 128 KiB, is less than a long prompt
        taken: list[Line] = []  # the lines of the current row
        rows = self._rows(_noted(lines, taken))
        while True:
            taken.clear()
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                raise lines.error(
                    f"not {self._name} ({_in_words(error)})", line=taken[0][0] if taken else None
                ) from None
            number, offset, _, _ = taken[0]
            if not row:
                continue
            if not self._header:
                self._header = self._checked(row, lines)
            elif len(row) != len(self._header):
                fields = f"{len(row)} field{'' if len(row) == 1 else 's'}"
                raise lines.error(f"{fields}, where the header has {len(self._header)}", line=number)
            else:
                size = taken[-1][1] + taken[-1][2] - offset
                yield number, offset, size, dict(zip(self._header, row, strict=True))

    def parse(self, raw: bytes) -> dict[str, str]:
        row = next(self._rows([raw.decode()]))
        return dict(zip(self._header, row, strict=True))

    def _rows(self, lines: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=self._delimiter, strict=True)

    @property
    def _name(self) -> str:
        return "CSV" if self._delimiter == "," else "TSV"

    def _checked(self, row: list[str], lines: NumberedLines) -> list[str]:
        header = [name.strip() for name in row]
        if len(header) == 1 and any(other in header[0] for other in ";\t,"):
            detail = f"the header is a single field, {header[0]!r}"
            raise lines.error(detail, hint="fields are separated by a comma (csv) or a tab (tsv): see --format")
        if "" in header:
            raise lines.error(f"column {header.index('') + 1} of the header has no name")
        twice = [name for name in header if header.count(name) > 1]
        if twice:
            raise lines.error(f"the header has two columns {twice[0]!r}")
        return header


def get_format(name: str) -> Format:
    """Return the format of that name."""
    if name == "text":
        return Text()
    if name == "jsonl":
        return JsonLines()
    if name == "json":
        return JsonArray()
    if name in ("csv", "tsv"):
        return Table("," if name == "csv" else "\t")
    raise InputError(source="--format", detail=f"must be {', '.join(NAMES[:-1])} or {NAMES[-1]}, not {name!r}")


def find_format_by_name(path: str) -> Format | None:
    """Return the format of a file's suffix, or None."""
    name = find_format_name(path)
    return None if name is None else get_format(name)


def guess_format(lines: NumberedLines) -> Format:
    """Return JSON lines if the first non-blank line is a JSON object, else text."""
    return JsonLines() if _is_json_object(lines.first()) else Text()


def choose_json_format(lines: NumberedLines, beginning: bytes) -> Format:
    """Return the format of a ``.json`` file from its *beginning*: an array, or JSON lines. Refuse another document."""
    if beginning.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[":
        return JsonArray()
    first = lines.first()
    if first and not _is_json_object(first):
        hint = "an array of items is needed, or one JSON value per line; or name the format with --format"
        raise InputError(source=lines.source, detail="one JSON document that is not an array", hint=hint)
    return JsonLines()


def _is_json_object(line: str) -> bool:
    if not line.lstrip().startswith("{"):
        return False
    try:
        decode_json(line)
    except (ValueError, RecursionError):
        return False
    return True


def _without_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def _noted(lines: NumberedLines, taken: list[Line]) -> Iterator[str]:
    for line in lines:
        taken.append(line)
        yield line[3]


def _in_words(error: csv.Error) -> str:
    text = str(error)
    if "unexpected end of data" in text or "field larger" in text:
        return "a quoted field that begins in this row is never closed"
    if "expected after" in text:
        return "there is text between a closing quote and the next field; a quote inside quotes is doubled"
    return text
