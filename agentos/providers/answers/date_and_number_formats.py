"""Parse delays, resets and counts as providers write them.

Seconds (``20``, ``0.5``), durations (``6m0s``, ``12ms``, ``1d``), HTTP dates in their three forms, RFC 3339 instants,
and epochs in seconds or milliseconds. Anything else is ignored, never guessed.
"""

from __future__ import annotations

import datetime
import math
import re
from email.utils import parsedate_to_datetime
from functools import lru_cache

from ..signal import LONGEST_DELAY

# A larger number is an instant, not a delay: it would be a wait of thirty years.
_FIRST_EPOCH = 1e9
_FIRST_EPOCH_IN_MILLISECONDS = 1e11

_LONGEST_TEXT = 100
_SECONDS = re.compile(r"\d+(\.\d*)?|\.\d+", re.ASCII)
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(
    rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?(?:{_NUMBER}[uµμ]s)?(?:{_NUMBER}ns)?",
    re.ASCII,
)
_UNITS = ((86_400, 1), (3600, 1), (60, 1), (1, 1), (1, 1000), (1, 1_000_000), (1, 1_000_000_000))
_HTTP_DATE = re.compile(r"[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT", re.ASCII)
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_RFC_3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(\.\d+)?(?:[Zz]|([+-])(\d\d):?(\d\d))?", re.ASCII
)


def parse_delay(value: object, *, wall: float) -> float | None:
    """Return the seconds to wait, in [0, 35 days], or None if *value* is not usable.

    Accepts seconds (a number or text), a duration such as ``6m0s``, or an instant: an HTTP date, an RFC 3339 date, or
    an epoch in seconds or milliseconds. Instants are relative to *wall*, the current time. 0 means "now"; so does an
    instant in the past. Negative, NaN, infinite, beyond 35 days, or anything else: None. Never raises.
    """
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("latin-1")
    if isinstance(value, str):
        text = value.strip()
        value = _seconds_in(text)
        if value is None:
            at = parse_instant(text)
            value = None if at is None else max(0.0, at - wall)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    if _FIRST_EPOCH <= seconds < math.inf:
        seconds = _until_epoch(seconds, wall)
    return seconds if 0 <= seconds <= LONGEST_DELAY else None


def is_date(text: str) -> bool:
    """Return True if *text*, which :func:`parse_delay` has parsed, is an instant rather than a delay."""
    seconds = _seconds_in(text.strip())
    return seconds is None or seconds >= _FIRST_EPOCH


@lru_cache(maxsize=4096)
def parse_number(text: str) -> float | None:
    """Parse a count such as a limit or its remainder. Some providers use a negative number for "unknown": None."""
    text = text.strip()
    if len(text) <= 20 and _SECONDS.fullmatch(text):
        return float(text)
    return None


@lru_cache(maxsize=256)
def parse_instant(text: str) -> float | None:
    """Return the instant of a date in epoch seconds; None if *text* is not a date. Without a zone it is GMT."""
    if len(text) > _LONGEST_TEXT:
        return None
    try:
        if match := _HTTP_DATE.fullmatch(text):  # the common form; the general parser takes ten times as long
            day, month, year, *clock = match.groups()
            return _epoch(int(year), _MONTHS.get(month, 0), int(day), *map(int, clock))
        if match := _RFC_3339.fullmatch(text):
            *date, fraction, sign, hours, minutes = match.groups()
            at = _epoch(*map(int, date)) + float(fraction or 0)
            offset = int(hours or 0) * 3600 + int(minutes or 0) * 60
            return at + offset if sign == "-" else at - offset
        general = parsedate_to_datetime(text)
        return (general if general.tzinfo else general.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def format_quoted(text: str, *, wall: float) -> str:
    """Return the quotation of *text*, which :func:`parse_delay` has parsed: numbers as they are, dates as a delay.

    The general date parser ignores unknown words, so a date is never quoted verbatim.
    """
    text = text.strip()
    if len(text) <= 40 and _seconds_in(text) is not None:
        return text
    return f"{parse_delay(text, wall=wall) or 0.0:g} s ahead"


@lru_cache(maxsize=4096)
def _seconds_in(text: str) -> float | None:
    if _SECONDS.fullmatch(text):
        return float(text) if len(text) < 300 else None
    if len(text) > _LONGEST_TEXT or not text or (match := _DURATION.fullmatch(text)) is None:
        return None
    # Divided, not multiplied by a thousandth: 9ms is exactly 0.009.
    return sum(float(part) * by / to for part, (by, to) in zip(match.groups(), _UNITS, strict=True) if part)


def _until_epoch(number: float, wall: float) -> float:
    at = number / 1000 if number >= _FIRST_EPOCH_IN_MILLISECONDS else number
    # It is a guess that a number is an instant, so it must be near the current time. A date far in the past is still a
    # date; a number far from the current time is invalid.
    return math.nan if at < wall - LONGEST_DELAY else max(0.0, at - wall)


def _epoch(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float:
    leap = second == 60  # a leap second
    at = datetime.datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=datetime.UTC)
    return at.timestamp() + leap
