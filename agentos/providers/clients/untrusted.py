"""Values of somebody else's that may be anything: looked at without ever raising."""

from __future__ import annotations

from typing import Any


def read_attribute(thing: object, name: str) -> Any:
    """The attribute, or None if there is none or looking at it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property of somebody else's: what cannot be read is not there
        return None


def is_truthy(thing: object) -> bool:
    """Whether *thing* counts as true; what cannot say so does not."""
    try:
        return bool(thing)
    except Exception:  # noqa: BLE001 - somebody else's __bool__ or __len__
        return False


def first_truthy(*things: object) -> Any:
    """The first of *things* that counts as true; None if none does."""
    return next((thing for thing in things if is_truthy(thing)), None)


def parse_status(value: object) -> int | None:
    """*value* if it can be the status of an HTTP answer: a whole number from 100 to 599."""
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
        return int(value)
    return None


def parse_count(value: object) -> int:
    """A count, or digits; 0 for anything else."""
    if isinstance(value, str) and len(value) < 10 and value.isascii() and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
