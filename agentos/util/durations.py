"""Parse durations that people write (``90s``, ``1h30m``); format them as a clock, rounded, or with two units."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
LONGEST_DURATION: Final = 100 * 365 * 86_400.0

_NUMBER: Final = r"(\d+(?:\.\d+)?|\.\d+)"
_PLAIN: Final = re.compile(_NUMBER, re.ASCII)
_WRITTEN_UNITS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_PARTS: Final = re.compile("".join(rf"(?:{_NUMBER}{unit} ?)?" for unit in _WRITTEN_UNITS), re.ASCII)


def parse_duration(text: str) -> float | None:
    """Return the seconds of a number, or of numbers with d, h, m or s, the largest first; None for any other text."""
    stripped = text.strip().lower()
    if _PLAIN.fullmatch(stripped):
        return float(stripped)
    parts = _PARTS.fullmatch(stripped)
    if not stripped or parts is None:
        return None
    found = zip(parts.groups(), _WRITTEN_UNITS.values(), strict=True)
    return sum(float(number) * unit for number, unit in found if number)


def format_hours(seconds: float) -> str:
    """Format as ``0:02:14``."""
    return str(timedelta(seconds=max(0, int(seconds))))


def format_minutes(seconds: float) -> str:
    """Format as ``2:14``, from an hour on as ``1:02:14``."""
    whole = max(0, int(seconds))
    return f"{whole // 60}:{whole % 60:02d}" if whole < 3_600 else format_hours(whole)


def format_rough_duration(seconds: float) -> str:
    """Format as ``42 s``, ``4 min``, ``2.5 h`` or ``2 days``."""
    if seconds < 5_400:
        count, unit = (seconds, "s") if seconds < 90 else (seconds / 60, "min")
        return f"{max(round(count), 1 if seconds > 0 else 0)} {unit}"
    count, unit = (seconds / 3_600, "h") if seconds < 172_800 else (seconds / 86_400, "days")
    return f"{count:.1f}".removesuffix(".0") + f" {unit}"


def format_duration(seconds: float) -> str:
    """Format as ``8 ms``, ``0.25 s``, ``4.2 s``, ``3 min 12 s``, ``2 h 5 min`` or ``3 d 1 h``."""
    if seconds < 0.0995:
        return f"{max(1, round(seconds * 1_000))} ms" if seconds >= 0.0005 else "0 s"
    if seconds < 0.995:
        return f"{seconds:.2g} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[tuple[int, str]] = []
    for size, unit in UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)
