"""Format a text table for a terminal or a pipe: columns aligned, empty ones omitted, nothing cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_GAP = "  "


def format_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    colours: Sequence[str | None],
    *,
    coloured_column: int,
) -> Iterator[str]:
    """Yield the lines, safe for a terminal.

    *colours* has the terminal colour code of each row's cell in *coloured_column*.
    """
    from ...util.sanitize import make_printable
    from ...util.text_width import display_width, pad

    shown = [[make_printable(cell, tabs=False) for cell in row] for row in rows]
    kept = [number for number in range(len(headings)) if any(row[number] for row in shown)]
    widths = {
        number: max(display_width(text) for text in (headings[number], *(row[number] for row in shown)))
        for number in kept
    }
    yield _GAP.join(pad(headings[number], widths[number]) for number in kept).rstrip()
    for row, colour in zip(shown, colours, strict=True):
        # Strip trailing blanks before adding colours.
        last = max((number for number in kept if row[number]), default=-1)
        line = [
            row[number] if number == last else pad(row[number], widths[number]) for number in kept if number <= last
        ]
        if colour is not None and coloured_column in kept[: len(line)]:
            place = kept.index(coloured_column)
            line[place] = f"\x1b[{colour}m{line[place]}\x1b[0m"
        yield _GAP.join(line)
