"""Convert the user's objects to plain values that every process can unpickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ...costs.usage import Usage
from ...providers.signal import Event, Reading, Signal


def to_plain(value: Any) -> Any:
    """Return *value* without user classes: a str enum member becomes text, a numpy number a number.

    Converts text, numbers, signals, usages, and tuples and mappings of them. Anything else becomes None.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or isinstance(value, (bool, Event)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, tuple):
        return tuple(to_plain(each) for each in value)
    if isinstance(value, Mapping):
        return {to_plain(name): to_plain(each) for name, each in value.items()}
    for kind in (Signal, Reading, Usage):
        if isinstance(value, kind):
            return kind(**{field.name: to_plain(getattr(value, field.name)) for field in fields(kind)})
    return None
