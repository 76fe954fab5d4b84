"""How long an item rests before its next attempt."""

from __future__ import annotations

MAX_BACKOFF = 60.0


def limit_backoff(in_a_row: int) -> float:
    """At least this long after the *in_a_row*-th limit in a row: none at first, then 1 s, doubling to 60.

    The key that refused rests besides, by what the pool knows of it; another may be free at once.
    """
    return 0.0 if in_a_row <= 1 else min(MAX_BACKOFF, 2.0 ** min(in_a_row - 2, 10))


def retry_backoff(tries: int, luck: float) -> float:
    """Before try number *tries* + 1: anywhere in a window that doubles from 1 s to 60, as *luck* in [0, 1) has it.

    The whole window and not its end: items that failed together must not come back together.
    """
    return luck * min(MAX_BACKOFF, 2.0 ** min(tries - 1, 10))
