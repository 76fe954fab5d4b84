"""Encode a worker's value as text for the journal, and decode it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...util.json_encoder import build_encoder

_encode = build_encoder()
_LONGEST_REPR = 2_000


def encode_value(value: Any, mask: Callable[[str], str] | None) -> tuple[str | None, str | None]:
    """Return the value as JSON or, if it is not JSON, as its ``repr``, without secrets. None gives neither."""
    if value is None:
        return None, None
    try:
        text = _encode(value)
        if isinstance(value, (dict, list, tuple)) and not _is_json(value, text):
            return None, _repr(value, mask)
    except Exception:  # noqa: BLE001 - whatever its own methods raise, it is a value, and not JSON
        return None, _repr(value, mask)
    if mask is None:
        return text, None
    masked = mask(text)
    if masked is not text and masked != text:
        try:
            json.loads(masked)
        except ValueError:
            return None, masked[:_LONGEST_REPR]  # redaction changed a value that is not text
    return masked, None


def _is_json(value: Any, text: str) -> bool:
    """Return whether decoding gives the same value. A tuple may become a list; keys that are not text would change."""
    return bool(json.loads(text) == value) or _only_text_keys(value)


def _only_text_keys(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str for key in value) and all(map(_only_text_keys, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_only_text_keys, value))


def decode_value(text: str | None) -> Any:
    """Return the decoded value."""
    return None if text is None else json.loads(text)


def _repr(value: Any, mask: Callable[[str], str] | None) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value that cannot show itself is still a value
        text = f"<{type(value).__name__}>"
    text = text if mask is None else mask(text)
    return text[:_LONGEST_REPR]
