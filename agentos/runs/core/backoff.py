"""Compute the pause of an item before its next attempt."""

from __future__ import annotations

MAX_BACKOFF = 60.0


def limit_backoff(in_a_row: int) -> float:
    """Return the minimum pause after the *in_a_row*-th consecutive limit: 0 at first, then 1 s, doubling to 60 s.

    The pool cools down the credential separately; another one may be free at once.
    """
    return 0.0 if in_a_row <= 1 else min(MAX_BACKOFF, 2.0 ** min(in_a_row - 2, 10))


def retry_backoff(tries: int, jitter: float) -> float:
    """Return the pause before try *tries* + 1: *jitter* in [0, 1) of a window that doubles from 1 s to 60 s.

    The pause is spread over the whole window so that items that failed together are not retried together.
    """
    return jitter * min(MAX_BACKOFF, 2.0 ** min(tries - 1, 10))
