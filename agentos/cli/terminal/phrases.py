"""How the commands write times and tables for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"
CYAN: Final = "36"


class Paint:
    """Colours text for a terminal, or leaves it alone."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __call__(self, text: str, *codes: str) -> str:
        """*text* in the given colours; one to a column keeps its width if it was padded before."""
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._on and codes and text else text


def how_long(seconds: float) -> str:
    """``8 ms``, ``0.25 s``, ``4.2 s``, ``3 min 12 s``, ``2 h 5 min``, ``3 d 1 h``."""
    if seconds < 0.0995:
        return f"{max(1, round(seconds * 1_000))} ms" if seconds >= 0.0005 else "0 s"
    if seconds < 0.995:
        return f"{seconds:.2g} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[tuple[int, str]] = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def ago(at: float, now: float) -> str:
    """``just now``, ``5 min ago``, ``3 d ago``."""
    seconds = now - at
    if seconds < 60:
        return "just now" if seconds > -60 else when(at)
    for size, unit in _UNITS[:3]:
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return when(at)


def when(at: float) -> str:
    """``2026-11-15 15:02``, local time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "?"


def table(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Aligned lines; the columns in *right* stand to the right. The last column is not padded."""
    from ...util.text_width import cells

    whole = [tuple(row) for row in rows]
    widths = [max(map(cells, column)) for column in zip(*whole, strict=True)]
    return ["  ".join(_aligned(row, widths, right)).rstrip() for row in whole]


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> Iterable[str]:
    from ...util.text_width import cells

    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        blanks = " " * (width - cells(cell))
        yield blanks + cell if number in right else cell if number == len(row) - 1 else cell + blanks


def shortened(text: str, longest: int) -> str:
    """Return *text*, cut to *longest* characters with an ellipsis."""
    return text if len(text) <= longest else text[: max(0, longest - 3)] + "..."


def count(number: int, one: str, many: str | None = None) -> str:
    """``1 item``, ``2 items``, ``12,000 items``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
