"""Access fields of an item by name or by dotted path."""

from __future__ import annotations

from typing import Any


def get_field(item: Any, path: str) -> Any:
    """Return the value at *path* (``"name"``, ``"user.name"``, ``"messages.0.role"``). Raise KeyError without one.

    A field that is called ``"user.name"`` itself precedes one called ``"name"`` inside ``"user"``.
    """
    if isinstance(item, dict) and path in item:
        return item[path]
    head, dot, rest = path.partition(".")
    if isinstance(item, list) and head.isascii() and head.isdigit() and len(head) < 10 and int(head) < len(item):
        inner = item[int(head)]
    elif dot and isinstance(item, dict) and head in item:
        inner = item[head]
    else:
        raise KeyError(path)
    return get_field(inner, rest) if dot else inner
