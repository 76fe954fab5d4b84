"""Find the JSON object in a response body of any form."""

from __future__ import annotations

import json
from typing import Any

LONGEST = 64 * 1024
_MOST_EVENTS = 16
_STREAM_BEGINNINGS = ("event:", "data:", "id:", "retry:", ":")

Document = dict[str, Any]


def parse_document(body: object) -> Document | None:
    """Return the JSON object in *body*: the body itself, the entry of a list with an error, or a stream's error event.

    Reads at most 64 KiB: the beginning of text, the end of a stream. Returns None if there is no such object.
    """
    if isinstance(body, dict):
        return body
    if isinstance(body, (list, tuple)):  # Gemini answers a streamed request with a list
        objects = [item for item in body[:4] if isinstance(item, dict)]
        return next((item for item in objects if "error" in item), objects[0] if objects else None)
    text = get_text(body)
    if text.startswith(("{", "[")):
        return parse_document(_parse_json(text))
    return _find_error_event(_text(body, tail=True)) if text.startswith(_STREAM_BEGINNINGS) else None


def parse_success_document(body: object) -> Document | None:
    """Do the same for a successful answer: long text is not parsed."""
    if isinstance(body, (str, bytes, bytearray)) and len(body) > LONGEST and body[:1] in ("{", b"{", "[", b"["):
        return None
    return parse_document(body)


def get_text(body: object) -> str:
    """Return the beginning of a text body without leading white space; empty for other bodies."""
    return _text(body, tail=False)


def _text(body: object, *, tail: bool) -> str:
    if not isinstance(body, (str, bytes, bytearray)):
        return ""
    part = body[-LONGEST:] if tail else body[:LONGEST]
    text = part if isinstance(part, str) else part.decode("utf-8", "replace")
    return text.lstrip("\ufeff \t\r\n")


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _find_error_event(text: str) -> Document | None:
    """Return the last event of a stream that is an error, by its name or by an error in its data."""
    events = text.replace("\r\n", "\n").replace("\r", "\n").split("\n\n")
    checked = 0
    for event in reversed(events):
        if '"error"' not in event and "event: error" not in event and "event:error" not in event:
            continue
        checked += 1
        if checked > _MOST_EVENTS:
            break
        lines = event.split("\n")
        data = _parse_json("\n".join(line[5:] for line in lines if line.startswith("data:")))
        if not isinstance(data, dict):
            continue
        named = any(line.startswith("event:") and line[6:].strip() == "error" for line in lines)
        if has_error(data):
            return data
        if named:  # the name marks an error that the data does not show
            return {"error": data}
    return None


def has_error(document: Document) -> bool:
    """Return whether the body of an answer with a successful status contains an error."""
    if isinstance(document.get("error"), dict) or "error" in (document.get("type"), document.get("object")):
        return True
    response = document.get("response")
    if isinstance(response, dict) and isinstance(response.get("error"), dict):
        return True
    choices = document.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and isinstance(choice.get("error"), dict) for choice in choices[:1]
    )
