"""Parse typed durations (``90``, ``90s``, ``1h30m``) and deadlines (``2h``, ``07:00``, ``2026-11-16T07:00``)."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta

from ...util import durations
from ..usage_error import UsageError

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_DATE_AND_TIME = re.compile(r"\d{4}-?\d\d-?\d\d[T ]\d.*", re.ASCII | re.IGNORECASE)

_EXAMPLES = "examples: 30, 1.5, 30s, 5m, 2h, 1d, 1h30m"
_EXAMPLES_OF_ENDS = "examples: 2h (from now), 07:00 (when it is that next), 2026-11-16T07:00"


def parse_duration(text: str, option: str = "the duration") -> float:
    """Parse a number of seconds, or numbers with d, h, m or s, the largest first.

    Raise ``UsageError``, which names *option*, for anything else, and for more than a hundred years.
    """
    found = durations.parse_duration(text)
    if found is None:
        raise UsageError(f"{option} is not a duration: {_shown(text)}", _EXAMPLES)
    if found > durations.LONGEST_DURATION:
        raise UsageError(f"{option} is longer than a hundred years: {_shown(text)}", _EXAMPLES)
    return found


def parse_deadline(text: str, now: datetime | None = None, option: str = "--deadline") -> datetime:
    """Parse a duration from *now*, a local time of day (``07:00``: its next occurrence), or a date and time.

    A date and time without a zone is local. Raise ``UsageError``, which names *option*, if it is invalid or has passed.
    """
    now = (now or datetime.now()).astimezone()
    stripped = text.strip()
    if durations.parse_duration(stripped) is not None:
        return now + timedelta(seconds=parse_duration(stripped, option))
    end = _instant(stripped, now)
    if end is None:
        raise UsageError(f"{option} is not a deadline: {_shown(text)}", _EXAMPLES_OF_ENDS)
    if end <= now:
        raise UsageError(f"{option} has already passed: {_shown(text)}", _EXAMPLES_OF_ENDS)
    return end


def _instant(text: str, now: datetime) -> datetime | None:
    clock = _CLOCK.fullmatch(text)
    try:
        if clock is not None:
            return _find_next(time(int(clock[1]), int(clock[2]), int(clock[3] or 0)), now)
        # A date alone is ambiguous: its start or its end.
        return datetime.fromisoformat(text).astimezone() if _DATE_AND_TIME.fullmatch(text) else None
    except (ValueError, OverflowError, OSError):
        return None


def _find_next(clock: time, now: datetime) -> datetime:
    """Return the first instant after *now* at which the local time is *clock*."""
    today = now.date()
    days = (today + timedelta(days=after) for after in range(3))
    return next(end for day in days for end in _find_on_day(day, clock) if end > now)


def _find_on_day(day: date, clock: time) -> list[datetime]:
    """Return the instants of *clock* on *day*: two when clocks are set back over it, a later one when set forward."""
    both = sorted(datetime.combine(day, clock).replace(fold=fold).astimezone() for fold in (0, 1))
    return [end for end in both if end.time() == clock] or both[1:]


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{len(text)} characters"
