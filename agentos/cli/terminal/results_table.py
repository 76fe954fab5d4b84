"""Results of a run as a table for a terminal: one line for each item, cells cut to fit the window."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from ...util.sanitize import make_printable
from ...util.text_width import clip, display_width

_GAP: Final = "  "
_WIDEST: Final = 30  # columns of a cell that is not in the last column
_NARROWEST: Final = 8
_LAST: Final = 24  # columns that the last column gets, if there is room
_LONGEST: Final = 2_000  # characters of a cell that are looked at
_RIGHT: Final = frozenset({"attempts", "duration", "tokens", "index"})


def shown_item(record: Mapping[str, Any]) -> Any:
    """Return the item, unless its id says the same."""
    item = record.get("item")
    return None if str(item) == record["id"] else item


def shown_result(record: Mapping[str, Any]) -> Any:
    """Return what a person wants to see of a result: the error, what a command printed, or the value."""
    if record["outcome"] != "done":
        return record.get("error") or record.get("error_type")
    value = record.get("value")
    if isinstance(value, dict):
        name = "answer" if "ending" in value else "stdout"  # of an agent, of a command
        if isinstance(value.get(name), str):
            return str(value[name]).strip()
    return record.get("value_repr") if value is None else value


def format_results(names: Sequence[str], rows: Iterable[Sequence[Any]], together: int) -> Iterator[str]:
    """Yield the lines of the table; *together* rows at a time are aligned, so that a long run is shown at once."""
    width = shutil.get_terminal_size().columns
    waiting = iter(rows)
    kept: list[int] = []  # columns in which the first rows have something
    while page := [_format_row(names, row) for row in islice(waiting, together)]:
        widths = [min(_WIDEST, max(map(display_width, cells))) for cells in zip(names, *page, strict=True)]
        is_first = not kept
        if is_first:
            kept = [place for place in range(len(names)) if any(row[place] for row in page)] or [0]
        _fit(widths, kept[:-1], width)
        for cells in [names, *page] if is_first else page:
            yield clip(_align(names, cells, widths, kept), width)


def _fit(widths: list[int], places: Sequence[int], width: int) -> None:
    """Make the widest of these columns narrower, until enough of *width* is left for the last one."""
    while places and sum(widths[place] + len(_GAP) for place in places) + _LAST > width:
        widest = max(places, key=lambda place: widths[place])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


def _format_row(names: Sequence[str], row: Sequence[Any]) -> list[str]:
    return [_format(name, value) for name, value in zip(names, row, strict=True)]


def _align(names: Sequence[str], cells: Sequence[str], widths: Sequence[int], kept: Sequence[int]) -> str:
    aligned = []
    for place in kept[:-1]:
        cell = clip(cells[place], widths[place])
        blanks = " " * (widths[place] - display_width(cell))
        aligned.append(blanks + cell if names[place] in _RIGHT else cell + blanks)
    return _GAP.join([*aligned, cells[kept[-1]]]).rstrip()


def _format(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "duration" and isinstance(value, (int, float)):
        return f"{value:.2f}s"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return make_printable(text[:_LONGEST], tabs=False)
