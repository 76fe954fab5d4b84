"""Create the state of a limit."""

from __future__ import annotations

from ...limit import Limit
from .base import LimitState
from .bucket import Bucket
from .calendar import CalendarWindow, WallTime
from .long_bucket import LongBucket
from .sliding import SlidingWindow
from .spread import find_spacing


def build_limit_state(limit: Limit, wall: WallTime) -> LimitState:
    """Create the unused state of *limit*."""
    if limit.per == "day":
        return CalendarWindow(limit, wall)
    if limit.window == "sliding":
        return SlidingWindow(limit)
    return LongBucket(limit) if find_spacing(limit) else Bucket(limit)
