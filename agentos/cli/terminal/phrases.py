"""Format times, counts and tables for the commands."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from ...util.durations import UNITS

BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"
CYAN: Final = "36"


class Paint:
    """Colours text for a terminal, or returns it unchanged."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __call__(self, text: str, *codes: str) -> str:
        """Return *text* in the given colours; pad it before if it is a column, because colours have no width."""
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._on and codes and text else text


def format_ago(at: float, now: float) -> str:
    """Return ``just now``, ``5 min ago``, ``3 d ago``."""
    seconds = now - at
    if seconds < 60:
        return "just now" if seconds > -60 else format_time(at)
    for size, unit in UNITS[:3]:
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return format_time(at)


def format_time(at: float) -> str:
    """Return ``2026-11-15 15:02``, in local time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "?"


def align_table(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return aligned lines; columns in *right* are right-aligned. The last column is not padded."""
    from ...util.text_width import display_width

    whole = [tuple(row) for row in rows]
    widths = [max(map(display_width, column)) for column in zip(*whole, strict=True)]
    return ["  ".join(_aligned(row, widths, right)).rstrip() for row in whole]


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> Iterable[str]:
    from ...util.text_width import display_width

    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        blanks = " " * (width - display_width(cell))
        yield blanks + cell if number in right else cell if number == len(row) - 1 else cell + blanks


def format_count(number: int, one: str, many: str | None = None) -> str:
    """Return ``1 item``, ``2 items``, ``12,000 items``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
