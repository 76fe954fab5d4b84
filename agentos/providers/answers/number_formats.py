"""The grammar of delays, resets and counts, as providers write them.

Seconds (``20``, ``0.5``), durations (``6m0s``, ``12ms``, ``1d``), HTTP dates in their three forms, RFC 3339 instants,
and epochs in seconds or milliseconds. What is none of these says nothing: junk is ignored, never guessed at.
"""

from __future__ import annotations

import datetime
import math
import re
from email.utils import parsedate_to_datetime
from functools import lru_cache

from ..signal import LONGEST_DELAY

# From here on a bare number is an instant, not a delay: it would be a wait of thirty years.
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
    """Seconds to wait, in [0, 35 days], or None where *value* says nothing usable.

    Takes seconds (a number or text), a duration such as ``6m0s``, or an instant: an HTTP date, an RFC 3339 date, or
    an epoch in seconds or milliseconds. Instants are measured against *wall*, the hour now. 0 means "may go now"; an
    instant in the past does too. Below zero, NaN, infinite, beyond 35 days, or anything else: None. Never raises.
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


@lru_cache(maxsize=4096)
def parse_number(text: str) -> float | None:
    """A count such as a limit or what remains of it. Below zero is how some say "not told": None, like junk."""
    text = text.strip()
    if len(text) <= 20 and _SECONDS.fullmatch(text):
        return float(text)
    return None


@lru_cache(maxsize=256)
def parse_instant(text: str) -> float | None:
    """The instant a date names, in epoch seconds; None if *text* is not a date. One without a zone is GMT."""
    if len(text) > _LONGEST_TEXT:
        return None
    try:
        if match := _HTTP_DATE.fullmatch(
            text
        ):  # what nearly all of them are; the general parser takes ten times longer
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
    """How *text*, already read by :func:`parse_delay`, is quoted: a number or duration as it is, a date anew.

    The general parser of dates overlooks words it does not know, so a date is never quoted as it came.
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
    # Divided, not multiplied by a thousandth: 9ms is 0.009, without a tail of rounding.
    return sum(float(part) * by / to for part, (by, to) in zip(match.groups(), _UNITS, strict=True) if part)


def _until_epoch(number: float, wall: float) -> float:
    at = number / 1000 if number >= _FIRST_EPOCH_IN_MILLISECONDS else number
    # That a number is an instant is a guess, so it is believed only of instants near now. A date far in the past
    # is a date all the same; a number far from any hour of ours is junk.
    return math.nan if at < wall - LONGEST_DELAY else max(0.0, at - wall)


def _epoch(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float:
    leap = second == 60  # once in some years, on purpose
    at = datetime.datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=datetime.UTC)
    return at.timestamp() + leap
