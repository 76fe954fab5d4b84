"""Encode an item as JSON for the journal and the results file, cut to the length that each of them keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from ...util.json_encoder import build_encoder
from ..core.records import ItemText
from .value_codec import encode_value

# Characters of JSON. A journal with whole documents as items would be as large as all of them together.
LONGEST_IN_JOURNAL: Final = 1024 * 1024
LONGEST_IN_RESULTS: Final = 64 * 1024

_encode = build_encoder()


def encode_item(payload: Any, mask: Callable[[str], str] | None) -> ItemText:
    """Return the item as the journal keeps it, without secrets. Never raises."""
    try:
        text = _encode(payload)
    except Exception:  # noqa: BLE001 - an object of the user's; its own methods may raise anything
        return _encode_object(payload, mask)
    if mask is not None:
        masked = mask(text)
        if masked != text:
            return ItemText(_as_json(masked), {"item_redacted": True})
    if len(text) > LONGEST_IN_JOURNAL:
        return ItemText(cut_item(text, LONGEST_IN_JOURNAL)[0], {"item_truncated": True})
    return ItemText(text, _NOTHING)


def cut_item(text: str, longest: int) -> tuple[str, bool]:
    """Return an item's JSON with at most *longest* bytes of content, and whether it was cut.

    A long text keeps its beginning; of anything else the beginning of its JSON is kept, as a text.
    """
    if len(text) <= longest:
        return text, False
    content = json.loads(text) if text.startswith('"') else text
    kept = content.encode("utf-8", "surrogatepass")[:longest].decode("utf-8", "ignore")
    return json.dumps(kept), len(kept) < len(content)


_NOTHING: dict[str, Any] = {}  # never changed


def _encode_object(payload: Any, mask: Callable[[str], str] | None) -> ItemText:
    try:
        text = encode_value(payload, mask).text
    except BaseException:  # noqa: BLE001 - as above
        text = None
    if text is None:
        return ItemText(None, _NOTHING)
    text, cut = cut_item(text, LONGEST_IN_JOURNAL)
    return ItemText(text, {"item_truncated": True} if cut else _NOTHING)


def _as_json(masked: str) -> str:
    """Return redacted JSON as JSON: redaction may have changed a number."""
    try:
        json.loads(masked)
    except ValueError:
        masked = json.dumps(masked)
    return cut_item(masked, LONGEST_IN_JOURNAL)[0]
