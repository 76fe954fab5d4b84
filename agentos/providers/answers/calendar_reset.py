"""Compute when a provider's day or month ends."""

from __future__ import annotations

import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo


@lru_cache(maxsize=16)
def load_zone(name: str) -> datetime.tzinfo:
    """Return the time zone *name*, or UTC if this machine does not have it: that is wrong by hours at most."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        return datetime.UTC


def until_midnight(wall: float, zone: str) -> float:
    """Return the seconds from the instant *wall* until the next day begins in *zone*."""
    tz = load_zone(zone)
    here = datetime.datetime.fromtimestamp(wall, tz)
    tomorrow = here.date() + datetime.timedelta(days=1)
    return datetime.datetime.combine(tomorrow, datetime.time(), tz).timestamp() - wall


def until_next_month(wall: float) -> float:
    """Return the seconds from the instant *wall* until 00:00 UTC on the first of the next month."""
    here = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    year, month = (here.year, here.month + 1) if here.month < 12 else (here.year + 1, 1)
    return datetime.datetime(year, month, 1, tzinfo=datetime.UTC).timestamp() - wall
