"""How long an item rests before its next attempt."""

from __future__ import annotations

LONGEST_PAUSE = 60.0


def after_limit(in_a_row: int) -> float:
    """At least this long after the *in_a_row*-th limit in a row: 1 s, doubling to 60. The key rests besides."""
    return min(LONGEST_PAUSE, 2.0 ** min(in_a_row - 1, 10))


def after_failure(tries: int, luck: float) -> float:
    """Before try number *tries* + 1: anywhere in a window that doubles from 1 s to 60, as *luck* in [0, 1) has it.

    The whole window and not its end: items that failed together must not come back together.
    """
    return luck * min(LONGEST_PAUSE, 2.0 ** min(tries - 1, 10))
