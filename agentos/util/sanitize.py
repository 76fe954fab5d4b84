"""Make untrusted text safe to print on a terminal."""

from __future__ import annotations

import re
import unicodedata

# Whole control sequences: without its first character, the rest of one would remain as text.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]?"  # character sets, resets
)


def make_printable(text: str, *, tabs: bool = True) -> str:
    """Return *text* as one line without control sequences, control characters and bidirectional marks.

    White space becomes a space; a tab stays unless *tabs* is false.
    """
    if _is_printable(text, tabs):
        return text
    text = _ESCAPES.sub("", text)
    return text if _is_printable(text, tabs) else "".join(_escape(each, tabs) for each in text)


def apply_carriage_returns(text: str) -> str:
    """Return what a terminal shows of a line in the end: each carriage return starts it over."""
    return text.rstrip("\r").rpartition("\r")[2]


def shorten(text: str, longest: int) -> str:
    """Shorten *text* to at most *longest* characters, the last three of them dots."""
    return text if len(text) <= longest else text[: max(0, longest - 3)] + "..."


def is_utf8(text: str) -> bool:
    """Return whether *text* can be encoded: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_printable(text: str, tabs: bool) -> bool:
    return (text.replace("\t", " ") if tabs else text).isprintable()


def _escape(character: str, tabs: bool) -> str:
    if character.isspace():
        return character if tabs and character == "\t" else " "
    # C: control characters, bidirectional marks, surrogates.
    return "" if unicodedata.category(character)[0] == "C" else character
