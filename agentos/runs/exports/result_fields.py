"""Take single fields out of results, and write them as cells of a table that a spreadsheet opens.

A field is a name of a result, such as ``id`` or ``outcome``, or a path into its item or value, such as ``item.text`` or
``value.choices.0.message.content``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...costs.usage import Usage

NAMES: Final = (
    *("id", "item", "value", "outcome", "error", "error_type", "attempts", "key", "duration", "tokens", "usage"),
    *("index", "finished_at", "value_repr", "value_type", "redacted", "item_truncated", "place", "traceback", "tail"),
)
_MANY: Final = 60  # columns of one item or value; above it, those of nested objects are put together
_DEEPEST: Final = 3
# Excel garbles the rows after a longer cell.
LONGEST_CELL: Final = 32_767
_CUT: Final = " [cut]"
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_ABSENT: Final = object()

Path = tuple[str, ...]


def find_unknown(fields: Iterable[str]) -> str | None:
    """Return the first of *fields* that no result has; None if all may exist."""
    for field in fields:
        name, _, rest = field.partition(".")
        if name not in NAMES or (rest and name not in ("item", "value", "usage")):
            return field
    return None


def find_columns(results: Iterable[Mapping[str, Any]]) -> list[Path]:
    """Return the columns that show these results in a table: each field of items and values has one."""
    items: dict[Path, None] = {}
    values: dict[Path, None] = {}
    extra: dict[str, None] = {}
    for result in results:
        items.update(dict.fromkeys(_paths(("item",), result.get("item"))))
        if result["outcome"] == "done":
            values.update(dict.fromkeys(_paths(("value",), result.get("value"))))
        extra.update(dict.fromkeys(name for name in ("value_repr", "redacted", "item_truncated") if name in result))
    names = [("id",), ("outcome",), *_bounded(items), *_bounded(values), ("error",)]
    return [*names, *((name,) for name in (*extra, "attempts", "key", "duration", "tokens", "finished_at"))]


def _paths(path: Path, found: Any) -> Iterator[Path]:
    if isinstance(found, dict) and found and len(path) <= _DEEPEST:
        for name, inner in found.items():
            yield from _paths((*path, name), inner)
    elif found is not None or len(path) > 1:
        yield path


def _bounded(paths: Mapping[Path, None]) -> list[Path]:
    for depth in range(_DEEPEST + 1, 0, -1):
        kept = list(dict.fromkeys(path[:depth] for path in paths))
        if len(kept) <= _MANY or depth == 1:
            break
    return kept if paths else []


def select(result: Mapping[str, Any], path: Path) -> Any:
    """Return the field at exactly this path; None if there is none."""
    found = _top(result, path[0])
    for name in path[1:]:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def select_typed(result: Mapping[str, Any], field: str) -> Any:
    """Return the field that somebody typed: a number is a place in a list, and names may have dots in them."""
    name, _, rest = field.partition(".")
    found = _top(result, name)
    return _descend(found, rest, None) if rest else found


def find_missing(results: Iterable[Mapping[str, Any]], fields: Iterable[str]) -> str | None:
    """Return the first of the typed paths that none of the results has, though one has an item or a value to look in.

    A path that leads to null is there.
    """
    left = {field: False for field in fields if "." in field}  # whether there was something to look in
    for result in results:
        if not left:
            break
        for field in list(left):
            name, _, rest = field.partition(".")
            inside = _top(result, name)
            if _descend(inside, rest, _ABSENT) is not _ABSENT:
                del left[field]
            elif inside is not None:
                left[field] = True
    return next((field for field, looked in left.items() if looked), None)


def _top(result: Mapping[str, Any], name: str) -> Any:
    if name == "key":
        return result.get("credential")
    if name == "tokens":
        usage = result.get("usage")
        return None if usage is None else Usage.from_json(usage).total
    return result.get(name)


def _descend(found: Any, rest: str, absent: object) -> Any:
    if isinstance(found, list):
        number, _, more = rest.partition(".")
        if not number.isdecimal() or int(number) >= len(found):
            return absent
        inner = found[int(number)]
        return _descend(inner, more, absent) if more else inner
    if not isinstance(found, dict):
        return absent
    if rest in found:
        return found[rest]
    parts = rest.split(".")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        if name in found:
            return _descend(found[name], ".".join(parts[length:]), absent)
    return absent


def format_cell(name: str, value: Any) -> str:
    """Return *value* as a cell of a CSV file that no spreadsheet takes for a formula; *name* is its column."""
    if value is None:
        return ""
    if name == "finished_at":
        value = _format_time(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text.replace("\0", "\ufffd").removesuffix("\n").removesuffix("\r")  # as of a command
    if len(text) > LONGEST_CELL:
        text = text[: LONGEST_CELL - len(_CUT)] + _CUT
    if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        return f"'{text[: LONGEST_CELL - 1]}"
    return text


def _format_time(at: Any) -> Any:
    """Return epoch seconds as spreadsheets read a time, in UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
    except (TypeError, ValueError, OverflowError, OSError):
        return at


def format_row(columns: Sequence[str], values: Iterable[Any]) -> list[str]:
    """Return the cells of one row."""
    return [format_cell(name, value) for name, value in zip(columns, values, strict=True)]
