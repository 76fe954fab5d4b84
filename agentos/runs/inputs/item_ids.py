"""Ids of items: the same in every run of the same input, independent of the item's position.

A given id is kept as it is; code that shows it or names a file after it must escape it. For items without one, a text
that is long or has unusual characters is represented by its first words and a hash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from ...util.fingerprint import fingerprint
from .fields import get_field
from .input_error import InputError

# Text that is one word for a shell as it stands, and not an option for a command.
_PLAIN = re.compile(r"[\w./@%+=:,][\w./@%+=:,-]{0,79}")
_WORD = re.compile(r"\w+")
_SLUG = 32
_EXAMPLES = 5


class MissingId(ValueError):
    """An item has no id; the text says why, and the caller adds its line."""


class IdFunction:
    """The function from an item to its id: the value of *field*, if given, else derived from the item.

    An object's own ``id`` is its id, if it is a non-empty text or a number; any other object or array gets a hash of
    its content; a text is its own id or, if it is long or unusual, gets its first words and a hash. With *field*, an
    item without that field, or with an empty one, raises ``MissingId``.
    """

    __slots__ = ("field",)

    def __init__(self, field: str | None = None) -> None:
        self.field = field

    def __call__(self, item: Any) -> str:
        if self.field is not None:
            return _by_field(item, self.field)
        if type(item) is str:
            return item if _PLAIN.fullmatch(item) else _shortened(item)
        if type(item) is dict:
            own = item.get("id")
            if (type(own) is str and own.strip()) or type(own) in (int, float):
                return _given(own)
        elif not isinstance(item, list):
            return json.dumps(item)
        return _hash_item(item)


def _by_field(item: Any, field: str) -> str:
    if not isinstance(item, dict):
        raise MissingId(f"not an object, so it has no field {field!r} to be its id")
    try:
        value = get_field(item, field)
    except KeyError:
        known = ", ".join(map(repr, list(item)[:10])) or "none"
        raise MissingId(f"no field {field!r} to be its id; it has {known}") from None
    if isinstance(value, (dict, list)):
        raise MissingId(f"field {field!r} is {'an object' if isinstance(value, dict) else 'an array'}, not an id")
    if value is None or (isinstance(value, str) and not value.strip()):
        raise MissingId(f"field {field!r} is {'null' if value is None else 'empty'}, not an id")
    return _given(value)


def _given(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shortened(text: str) -> str:
    slug = "-".join(_WORD.findall(text[: 2 * _SLUG].lower()))
    if len(slug) > _SLUG:
        slug = slug[: _SLUG + 1].rpartition("-")[0] or slug[:_SLUG]  # whole words, unless the first is too long
    # 48 bits: among fifty thousand prompts with the same beginning, 32 would collide one time in four.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{slug}-{digest}" if slug else digest


def _hash_item(item: Any) -> str:
    printed = fingerprint(item)
    if printed is None:
        raise MissingId("nested too deeply")
    return printed[:12]


def refuse_duplicates(source: str, ids: Sequence[str], place: Callable[[int], int], *, unit: str, hint: str) -> None:
    """Raise ``InputError`` if two items have the same id; *place* maps an index to its line (or other *unit*)."""
    if len(set(ids)) == len(ids):
        return
    first: dict[str, int] = {}
    examples: list[str] = []
    count = 0
    for index, item_id in enumerate(ids):
        earlier = first.setdefault(item_id, index)
        if earlier != index:
            count += 1
            if len(examples) < _EXAMPLES:
                examples.append(f"{item_id!r} ({unit}s {place(earlier)} and {place(index)})")
    more = f" and {count - len(examples)} more" if count > len(examples) else ""
    raise InputError(source=source, detail=f"item ids must differ: {', '.join(examples)}{more}", hint=hint)
