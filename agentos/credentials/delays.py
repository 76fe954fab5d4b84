"""How long to leave a quota alone, from what a caller or a ``Retry-After`` header said."""

from __future__ import annotations

import datetime
import math
import re
from email.utils import parsedate_to_datetime

# Longer than this is taken for junk: no window of a provider is.
LONGEST_DELAY = 35 * 86_400.0

_SECONDS = re.compile(r"\d+(\.\d*)?|\.\d+", re.ASCII)


def delay_from(value: object, *, wall: float) -> float | None:
    """Seconds to wait, in [0, 35 days], or None where *value* says nothing usable.

    Takes seconds (a number or text) or an HTTP date, which is measured against *wall*, the hour now. 0 means "may
    go now"; a date in the past does too. Below zero, NaN, infinite, beyond 35 days, or anything else: None. Never
    raises.
    """
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("latin-1")
    if isinstance(value, str):
        value = _from_text(value.strip(), wall)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    if not math.isfinite(seconds) or not 0 <= seconds <= LONGEST_DELAY:
        return None
    return seconds


def _from_text(text: str, wall: float) -> float | None:
    if _SECONDS.fullmatch(text):
        return float(text) if len(text) < 300 else None
    try:
        date = parsedate_to_datetime(text)  # three forms of date
        if date.tzinfo is None:
            date = date.replace(tzinfo=datetime.UTC)  # HTTP dates are GMT
        return max(0.0, date.timestamp() - wall)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
