"""Group failures by cause: the type of the exception, the place where it was raised, and its code.

Where the place is unknown, as for commands, texts that differ only in numbers, names and paths count as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

_READ: Final = 600  # characters of an error: its cause is at the beginning
_LONGEST: Final = 300
_MOST: Final = 1_000  # distinct causes
_SHORTEST_ID: Final = 3  # a shorter id may be part of an ordinary word

# Placeholder for the item's id during normalisation: a private-use character that a path may contain.
_ITEM: Final = "\ue000"

_VARYING: Final = re.compile(
    r"""
    (?P<kept>\b(?:exit|code|status|http|errno|signal)(?:[ _-](?:code|status))?\W{0,3}\d{1,3}\b)
  | (?P<url>\b[a-z][a-z0-9+.-]{1,9}://[^\s'"<>)\]]+)
  | (?P<quoted>(?<!\w)(?:"[^"\n]*"|'[^'\n]*'|`[^`\n]*`)(?!\w))
  | (?P<path>(?<![\w/.<])(?:~|\.{1,2})?(?:/[\w.@%+=~\ue000-]+)+/?|\b[a-z]:\\[^\s'"]+)
  | (?P<id>\b0x[0-9a-f]+\b|\b(?=[\w-]*\d)(?=[\w-]*[a-z])[\w-]{8,}\b)
  | (?P<n>(?<![a-z])\d+(?:[.,:]\d+)*|\d{2,})
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed items with one cause: ``cause`` is the normalised error, ``text`` the full error of the item ``example``.

    ``place`` is where it was raised in the user's code; ``code`` an exit code, the name of a signal or an HTTP status.
    """

    cause: str
    error_type: str | None
    count: int
    example: str
    text: str
    place: str | None = None
    code: str | None = None
    traceback: str | None = None  # of the example
    same_text: bool = False  # the errors of all its items are equal to ``text``

    def as_json(self) -> dict[str, Any]:
        """Return the failures as a JSON object."""
        return {
            "cause": self.cause,
            "error_type": self.error_type,
            "count": self.count,
            "example": self.example,
            "text": self.text,
            "place": self.place,
            "code": self.code,
            "error": self.text,
            "traceback": self.traceback,
        }


class FailureCauses:
    """Counts failures by cause. Memory grows with the number of causes, up to a bound, not with the failures."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._found: dict[tuple[str, str | None, str | None, str | None], _GroupCount] = {}
        self.others = 0  # failures with causes beyond the bound

    def add(
        self,
        item_id: str,
        error: str | None,
        error_type: str | None,
        place: str | None = None,
        code: str | int | None = None,
        traceback: str | None = None,
    ) -> int | None:
        """Count a failure; return the number of its group, in order of appearance, or None beyond the bound."""
        text = error or error_type or "no reason was recorded"
        cause = "" if place is not None else normalize_error(text, item_id)
        key = cause, error_type, place, None if code is None else str(code)
        found = self._found.get(key)
        if found is None and len(self._found) >= self._most:
            self.others += 1
            return None
        if found is None:
            found = self._found[key] = _GroupCount(len(self._found), item_id, text[:_READ], traceback)
        else:
            found.count += 1
            found.same_text &= text[:_READ] == found.text
        return found.number

    def list_numbers(self) -> list[int]:
        """Return the numbers of the groups, in the order of ``list_groups``."""
        return [found.number for found in sorted(self._found.values(), key=lambda each: -each.count)]

    def list_groups(self) -> tuple[FailureGroup, ...]:
        """Return the groups, the most frequent first; equal counts in order of appearance."""
        ordered = sorted(self._found.items(), key=lambda each: -each[1].count)
        return tuple(
            FailureGroup(
                cause or normalize_error(found.text, found.example),
                error_type,
                found.count,
                found.example,
                found.text,
                place,
                code,
                found.traceback,
                found.same_text,
            )
            for (cause, error_type, place, code), found in ordered
        )


class _GroupCount:
    __slots__ = ("count", "example", "number", "same_text", "text", "traceback")

    def __init__(self, number: int, example: str, text: str, traceback: str | None) -> None:
        self.number = number
        self.count = 1
        self.example = example
        self.text = text
        self.traceback = traceback
        self.same_text = True


def normalize_error(text: str, item_id: str = "") -> str:
    """Replace numbers, ids, paths, addresses and quoted words in *text*. Exit and status codes are kept."""
    text = text[:_READ]
    if len(item_id) >= _SHORTEST_ID:
        text = text.replace(item_id, _ITEM)
    return " ".join(_VARYING.sub(_placeholder, text).replace(_ITEM, "<item>").split())[:_LONGEST]


def _placeholder(found: re.Match[str]) -> str:
    kind = found.lastgroup
    return found.group() if kind == "kept" else f"<{kind}>"
