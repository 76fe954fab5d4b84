"""Text of others, made harmless for a terminal."""

from __future__ import annotations

import re
import unicodedata

# A terminal's control sequences, whole: without its first character the rest of one would be left as text.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, moves
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]?"  # character sets, resets
)


def make_printable(text: str, *, tabs: bool = True) -> str:
    """*text* as one line without anything a terminal would obey: no sequences, controls or marks that turn the text.

    White space becomes a blank; a tab stays one unless *tabs* is false.
    """
    if _is_printable(text, tabs):
        return text
    text = _ESCAPES.sub("", text)
    return text if _is_printable(text, tabs) else "".join(_escape(each, tabs) for each in text)


def apply_carriage_returns(text: str) -> str:
    """What a terminal would end up showing of a line: each lone carriage return starts it over."""
    return text.rstrip("\r").rpartition("\r")[2]


def shorten(text: str, longest: int) -> str:
    """*text*, or the beginning of it and three dots: at most *longest* characters."""
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
    # C: controls, invisible marks that turn the direction of the text, halves of characters.
    return "" if unicodedata.category(character)[0] == "C" else character
