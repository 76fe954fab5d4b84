"""The usage of an entry as JSON: the total of its item so far, and what this attempt used, by credential."""

from __future__ import annotations

from collections.abc import Mapping

from ...costs.usage import Usage
from ...util.json_encoder import build_encoder

_dump = build_encoder()


def encode_usage(total: Usage | None, used: Mapping[str, Usage]) -> str | None:
    """Return the text of the column; None if the item has used nothing. The name of no credential is empty."""
    if total is None:
        return None
    keys = {"keys": {name: usage.to_json() for name, usage in used.items()}} if used else {}
    return _dump({**total.to_json(), **keys})
