"""Format numbers in answers: delays, durations, instants and counts."""

from __future__ import annotations

import datetime
import math


def retry_after(seconds: float, *, exact: bool) -> str:
    """Return the value of Retry-After: whole seconds, rounded up and at least 1, or with decimals (never too early)."""
    if not exact:
        return str(max(1, ceil(seconds)))
    return f"{ceil(seconds * 1000) / 1000:.3f}".rstrip("0").rstrip(".")


def go_duration(seconds: float) -> str:
    """Return a duration in Go's format, rounded up to milliseconds: ``12ms``, ``1.5s``, ``6m0s``, ``1h0m0s``."""
    thousandths = ceil(seconds * 1000)
    if thousandths == 0:
        return "0s"
    if thousandths < 1000:
        return f"{thousandths}ms"
    whole, rest = divmod(thousandths, 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = (f"{whole}.{rest:03d}".rstrip("0") if rest else f"{whole}") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def rfc3339(wall: float) -> str:
    """Return an instant in UTC, rounded up to the second."""
    return datetime.datetime.fromtimestamp(ceil(wall), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ceil(value: float) -> int:
    """Return the least whole number not below *value*, ignoring rounding errors."""
    # A value just above a whole number by rounding alone is that number: 0.2 + 0.1 is not four tenths.
    return math.ceil(value - 1e-6)


def whole(value: float) -> str:
    """Return *value* rounded down to a whole number."""
    return str(int(value + 1e-6))
