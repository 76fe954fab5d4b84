"""The model of a body that is too long to be parsed: one picture in it is enough for that.

Clients write the model first, or behind the messages. So both ends are looked at, and exactly: the very first and the
very last character are known to be outside of everything, and from there it can be told of every quote and bracket
what it belongs to. A model in a text, or deeper inside, is none.
"""

from __future__ import annotations

import json
import re

NEAR = 128 * 1024  # bytes of each end

_REST_OF_A_STRING = rb'[^"\\]*(?:\\.[^"\\]*)*'
_STRING = re.compile(rb'"' + _REST_OF_A_STRING + rb'"', re.DOTALL)
_UP_TO_A_QUOTE = re.compile(_REST_OF_A_STRING + rb'"', re.DOTALL)
_TOKEN = re.compile(rb'"' + _REST_OF_A_STRING + rb'(?:"|\Z)|[][{}]', re.DOTALL)
_VALUE = re.compile(rb"\s*:\s*(" + _STRING.pattern + rb")", re.DOTALL)
_ESCAPED = re.compile(rb"\\.", re.DOTALL)


def model_near_the_ends(body: bytes, near: int = NEAR) -> str | None:
    """The text that *body*, a JSON object, has as its ``model``; None if that is not *near* an end, or is no text."""
    found = _model_in(body[:near], 0)
    if found is None:
        found = _model_in(*_end_of(body, near))
    if found is None:
        return None
    try:
        model: str = json.loads(found)
    except ValueError:
        return None
    return model


def _end_of(body: bytes, near: int) -> tuple[bytes, int]:
    """The last part of *body* that begins outside of a string, and how many brackets deep that is."""
    # What stands before may end with a backslash, so that the first character could mean anything: it is left out.
    part = body[-near:].lstrip(b"\\")[1:]
    if _ESCAPED.sub(b"", part).count(b'"') % 2:
        inside = _UP_TO_A_QUOTE.match(part)
        part = part[inside.end() :] if inside else b""
    bare = _STRING.sub(b"", part)
    return part, bare.count(b"}") + bare.count(b"]") - bare.count(b"{") - bare.count(b"[")


def _model_in(part: bytes, depth: int) -> bytes | None:
    """The value of ``model`` in the outermost object, as it is written in *part*, which begins so deep inside."""
    if b'"model"' not in part:
        return None
    for token in _TOKEN.finditer(part):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and text == b'"model"':
            value = _VALUE.match(part, token.end())
            if value is not None:
                return value[1]
    return None
