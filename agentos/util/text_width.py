"""Measure, clip, pad and wrap text by terminal columns, where characters take zero, one or two."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_CUT = "..."


def display_width(text: str) -> int:
    """Return how many columns *text* takes."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


@lru_cache(4096)
def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0  # it combines with the character before it
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clip(text: str, width: int) -> str:
    """Shorten *text* to at most *width* columns, ending in three dots if there is room for them."""
    if len(text) * 2 <= width or display_width(text) <= width:
        return text
    cut = _CUT if width > 2 * len(_CUT) else ""
    return _find_prefix(text, width - len(cut)) + cut


def pad(text: str, width: int) -> str:
    """Clip or pad *text* to exactly *width* columns."""
    text = clip(text, width)
    return text + " " * (width - display_width(text))


def wrap(text: str, width: int) -> list[str]:
    """Split *text* into lines of at most *width* columns, between words where possible."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if display_width(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while display_width(word) > width:
            head = _find_prefix(word, width) or word[0]
            lines.append(head)
            word = word[len(head) :]
        line = word
    return [*lines, line] if line else lines


def _find_prefix(text: str, width: int) -> str:
    if text.isascii():
        return text[: max(0, width)]
    taken = 0
    for index, character in enumerate(text):
        taken += _character_width(character)
        if taken > width:
            return text[:index]
    return text
