"""A small parser of structured fields (RFC 9651): lists of items and dictionaries, each with parameters.

Only what the ``RateLimit`` fields need: no inner lists, no dates. A malformed field is ignored, as the RFC requires.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# A byte sequence or a boolean is kept as text: it is not used.
Bare = str | float
_LONGEST = 8192

_KEY = re.compile(r"[a-z*][a-z0-9_.*-]*", re.ASCII)
_BARE = re.compile(
    r'"(?P<string>(?:[^"\\\x00-\x1f\x7f-\U0010ffff]|\\["\\])*)"'
    r"|(?P<number>-?\d{1,15}(?:\.\d{1,3})?)"
    r"|(?P<token>[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*)"
    r"|:(?P<bytes>[A-Za-z0-9+/=]*):"
    r"|\?(?P<boolean>[01])",
    re.ASCII,
)
_SPACE = re.compile(r" *")
_COMMA = re.compile(r"[ \t]*,[ \t]*")


@dataclass(frozen=True, slots=True)
class StructuredItem:
    """A value and its parameters."""

    value: Bare
    parameters: dict[str, Bare] = field(default_factory=dict)


class _Malformed(Exception):
    """The text is not a structured field."""


def parse_list(text: str) -> list[StructuredItem] | None:
    """Parse ``"burst";q=100;w=60, "daily";q=1000`` into items; None if malformed."""
    try:
        reader = _FieldParser(text)
        items = [reader.item()]
        while reader.comma():
            items.append(reader.item())
    except _Malformed:
        return None
    return items


def parse_dictionary(text: str) -> dict[str, StructuredItem] | None:
    """Parse ``limit=100, remaining=50`` into items by key, the last of each; None if malformed."""
    try:
        reader = _FieldParser(text)
        found = dict([reader.entry()])
        while reader.comma():
            key, item = reader.entry()
            found[key] = item
    except _Malformed:
        return None
    return found


class _FieldParser:
    """A position in the text."""

    def __init__(self, text: str) -> None:
        self._text = text.strip(" ") if len(text) <= _LONGEST else ""
        self._at = 0

    def comma(self) -> bool:
        """Skip a comma and return True; return False at the end. Raises _Malformed for anything else."""
        match = _COMMA.match(self._text, self._at)
        if match is None:
            if self._text[self._at :].strip(" \t"):
                raise _Malformed
            return False
        self._at = match.end()
        return True

    def entry(self) -> tuple[str, StructuredItem]:
        key = self._take(_KEY).group()
        if self._skip("="):
            return key, self.item()
        return key, StructuredItem("1", self._parameters())

    def item(self) -> StructuredItem:
        return StructuredItem(self._bare(), self._parameters())

    def _parameters(self) -> dict[str, Bare]:
        found: dict[str, Bare] = {}
        while self._skip(";"):
            self._take(_SPACE)
            key = self._take(_KEY).group()
            found[key] = self._bare() if self._skip("=") else "1"
        return found

    def _bare(self) -> Bare:
        match = self._take(_BARE)
        kind, text = match.lastgroup, match.group(match.lastgroup or 0)
        if kind == "number":
            return float(text)
        return re.sub(r"\\(.)", r"\1", text) if kind == "string" else text

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise _Malformed
        self._at = match.end()
        return match

    def _skip(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True
