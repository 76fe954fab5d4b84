"""Inspect foreign values of any kind without raising."""

from __future__ import annotations

from typing import Any


def read_attribute(thing: object, name: str) -> Any:
    """Return the attribute, or None if it is missing or raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a foreign property: what cannot be read counts as missing
        return None


def is_truthy(thing: object) -> bool:
    """Return whether *thing* is true; False if that raises."""
    try:
        return bool(thing)
    except Exception:  # noqa: BLE001 - a foreign __bool__ or __len__
        return False


def first_truthy(*things: object) -> Any:
    """Return the first of *things* that is true; None if none is."""
    return next((thing for thing in things if is_truthy(thing)), None)


def parse_status(value: object) -> int | None:
    """Return *value* if it is a valid HTTP status: an integer from 100 to 599."""
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
        return int(value)
    return None


def parse_count(value: object) -> int:
    """Return a count, given as a number or digits; 0 for anything else."""
    if isinstance(value, str) and len(value) < 10 and value.isascii() and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
