"""Format a text table for a terminal or a pipe: columns aligned, empty ones omitted, nothing cut off."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import TextIO

from ...util.terminal import is_terminal

_GAP = "  "
_UNDER = "    "  # before what is written under its row


def find_width(stream: TextIO) -> int | None:
    """Return the columns of the terminal that *stream* is; None if it is a pipe or a file."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns or None) if is_terminal(stream) else None
    except (OSError, ValueError):
        return None


def format_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    colours: Sequence[str | None] = (),
    *,
    coloured_column: int = 0,
    right: Collection[int] = (),
    width: int | None = None,
) -> Iterator[str]:
    """Yield the lines, safe for a terminal; the first is the headings.

    *colours* has the terminal colour code of each row's cell in *coloured_column*. Columns in *right* are aligned to
    the right. In a terminal of *width* columns, those that do not fit beside the others are written under their row.
    """
    from ...util.sanitize import make_printable
    from ...util.text_width import display_width, pad, wrap

    shown = [[make_printable(cell, tabs=False) for cell in row] for row in rows]
    kept = [number for number in range(len(headings)) if any(row[number] for row in shown)]
    widths = {
        number: max(display_width(text) for text in (headings[number], *(row[number] for row in shown)))
        for number in kept
    }

    def align(text: str, number: int) -> str:
        blanks = " " * (widths[number] - display_width(text))
        return blanks + text if number in right else pad(text, widths[number])

    beside = kept if width is None else kept[: _count_fitting([widths[number] for number in kept], width)]
    yield _GAP.join(align(headings[number], number) for number in beside).rstrip()
    for place, row in enumerate(shown):
        # Strip trailing blanks before adding colours.
        last = max((number for number in beside if row[number]), default=-1)
        line = [align(row[number], number) for number in beside if number <= last]
        line[-1:] = [line[-1].rstrip()] if line else []
        colour = colours[place] if place < len(colours) else None
        if colour is not None and coloured_column in beside[: len(line)]:
            at = beside.index(coloured_column)
            line[at] = f"\x1b[{colour}m{line[at]}\x1b[0m"
        yield _GAP.join(line)
        under = [f"{headings[number].lower()}: {row[number]}" for number in kept[len(beside) :] if row[number]]
        for part in wrap("; ".join(under), max(1, (width or 0) - len(_UNDER))):
            yield _UNDER + part


def _count_fitting(widths: Sequence[int], width: int) -> int:
    """Return how many columns fit beside each other: at least one."""
    used = -len(_GAP)
    for count, each in enumerate(widths):
        used += len(_GAP) + each
        if used > width and count > 0:
            return count
    return len(widths)
