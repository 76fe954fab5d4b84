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
    local = datetime.datetime.fromtimestamp(wall, tz)
    tomorrow = local.date() + datetime.timedelta(days=1)
    return datetime.datetime.combine(tomorrow, datetime.time(), tz).timestamp() - wall


def until_next_month(wall: float) -> float:
    """Return the seconds from the instant *wall* until 00:00 UTC on the first of the next month."""
    local = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    year, month = (local.year, local.month + 1) if local.month < 12 else (local.year + 1, 1)
    return datetime.datetime(year, month, 1, tzinfo=datetime.UTC).timestamp() - wall
