"""Fields of an item that is an object, by name or by dotted path."""

from __future__ import annotations

from typing import Any


def get_field(item: Any, path: str) -> Any:
    """The value at *path* (``"name"``, ``"user.name"``, ``"messages.0.role"``). Raises KeyError if there is none.

    A field that is really called ``"user.name"`` comes before one called ``"name"`` inside ``"user"``.
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
