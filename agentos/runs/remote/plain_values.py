"""What a worker says is made of the user's objects; what travels is made of values that every process knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ...providers.signal import Event, Reading, Signal


def to_plain(value: Any) -> Any:
    """*value* without classes of the user's own: a model named by an enum of his is text, a number of numpy's a number.

    Knows text, numbers, signals, and tuples and mappings of them. Anything else is None: it would mean nothing at home.
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
    for kind in (Signal, Reading):
        if isinstance(value, kind):
            return kind(**{field.name: to_plain(getattr(value, field.name)) for field in fields(kind)})
    return None
