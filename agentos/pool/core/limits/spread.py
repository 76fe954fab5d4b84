"""Spread the calls of a long window, so that few are on their way when less turns out to be left than was stated.

All that a day allows could start at once. If the amount is stated too high, or others use a part of it, the calls that
are on their way when nothing is left are all refused. If they start as far apart as a refusal takes, only few are, and
that takes a negligible part of a long window.
"""

from __future__ import annotations

from ...limit import Limit

AT_ONCE = 16.0  # calls that are not spread
_LONG_WINDOW, _APART, _SHARE = 3_600.0, 0.02, 0.001  # seconds; and the share of the window that all take together


def find_spacing(limit: Limit) -> float:
    """Return the seconds between the calls of a limit after the first ones; 0: its window is short."""
    per = 86_400.0 if limit.per == "day" else float(limit.per)
    if per < _LONG_WINDOW or limit.dimension != "requests":
        return 0.0
    return min(_APART, _SHARE * per / limit.amount)
