"""Ids of items: the same in every run of the same input, independent of the item's position.

A given id is kept as it is; code that shows it or names a file after it must escape it. For items without one, a text
that is long or has unusual characters is represented by its first words and a hash, and so is an object.

The rules have a version, which a run records: a run that began with version 1 keeps it, or it would not recognise its
own items. In version 1 the id of an object was a hash alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
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
_REMEMBERED = 1_000_000  # ids of a stream, which may be endless

FIRST_ID_RULES, CURRENT_ID_RULES = 1, 2


class MissingId(ValueError):
    """An item has no id; the text says why, and the caller adds its line."""


class IdFunction:
    """The function from an item to its id: the value of *field*, if given, else derived from the item.

    An object's own ``id`` is its id, if it is a non-empty text or a number; any other object or array gets the first
    words of its first text and a hash of its content (``ann-c30d11``); a text is its own id or, if it is long or
    unusual, gets its first words and a hash. With *field*, an item without that field, or with an empty one, raises
    ``MissingId``. *rules* is the version of these rules. Of a stream, the last million such ids are remembered.
    """

    __slots__ = ("_seen", "_streamed", "field", "rules")

    def __init__(self, field: str | None = None, *, rules: int = CURRENT_ID_RULES, streamed: bool = False) -> None:
        self.field = field
        self.rules = rules
        self._streamed = streamed
        self._seen: dict[str, str] = {}  # short ids and the whole hash of the first item that got it

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
        printed = fingerprint(item)
        if printed is None:
            raise MissingId("nested too deeply")
        slug = "" if self.rules == FIRST_ID_RULES else _find_slug(item)
        return self._join(slug, printed) if slug else printed[:12]

    def _join(self, slug: str, printed: str) -> str:
        """Return the slug with six digits of the hash; with twelve if an earlier item has the same six."""
        short = f"{slug}-{printed[:6]}"
        if self._seen.setdefault(short, printed) != printed:
            return f"{slug}-{printed[:12]}"
        if self._streamed and len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return short


class NumberedIds:
    """The ids of a stream whose items are repeated, or may be equal. To be called once for each item, in order."""

    def __init__(self, id_of: IdFunction, *, repeat: int | None, allow_duplicates: bool) -> None:
        self.field = id_of.field
        self.rules = id_of.rules
        self._id_of = id_of
        self._copies = repeat
        self._counts: dict[str, int] | None = {} if allow_duplicates else None
        self._current = ""
        self._copy = 0

    def __call__(self, item: Any) -> str:
        if self._copy == 0:
            self._current = self._count(self._id_of(item))
        if self._copies is None:
            return self._current
        self._copy += 1
        found = f"{self._current}#{self._copy}"
        self._copy %= self._copies
        return found

    def _count(self, item_id: str) -> str:
        if self._counts is None:
            return item_id
        number = self._counts.pop(item_id, 0) + 1
        self._counts[item_id] = number
        if len(self._counts) > _REMEMBERED:
            del self._counts[next(iter(self._counts))]
        return item_id if number == 1 else f"{item_id}#{number}"


def number_duplicates(ids: Sequence[str]) -> list[str]:
    """Return the ids with ``#2``, ``#3`` ... at the second, third ... of the same."""
    counts: dict[str, int] = {}
    taken = set(ids)

    def number(item_id: str) -> str:
        count = counts.get(item_id, 0) + 1
        while count > 1 and f"{item_id}#{count}" in taken:
            count += 1  # another item really has that id
        counts[item_id] = count
        return item_id if count == 1 else f"{item_id}#{count}"

    return [number(item_id) for item_id in ids]


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
    slug = _make_slug(text)
    # 48 bits: among fifty thousand prompts with the same beginning, 32 would collide one time in four.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{slug}-{digest}" if slug else digest


def _find_slug(item: Any) -> str:
    """Return the first words of the first text of an object or array that has any; else ""."""
    values: Iterator[Any] = iter(item.values() if isinstance(item, dict) else item)
    slugs = (_make_slug(value) for value in values if isinstance(value, str))
    return next(filter(None, slugs), "")


def _make_slug(text: str) -> str:
    slug = "-".join(_WORD.findall(text[: 2 * _SLUG].lower()))
    if len(slug) > _SLUG:
        slug = slug[: _SLUG + 1].rpartition("-")[0] or slug[:_SLUG]  # whole words, unless the first is too long
    return slug


def refuse_duplicates(source: str, ids: Sequence[str], where: Callable[[int, int], str], *, hint: str) -> None:
    """Raise ``InputError`` if two items have the same id; *where* returns the places of two indexes in words."""
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
                examples.append(f"{item_id!r} ({where(earlier, index)})")
    more = f" and {count - len(examples)} more" if count > len(examples) else ""
    raise InputError(source=source, detail=f"item ids must differ: {', '.join(examples)}{more}", hint=hint)
