"""Fingerprints of items: equal items have the same one in every process, changed items another."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from .json_encoder import build_encoder

_canonical = build_encoder(sort_keys=True, allow_nan=True)


def fingerprint(item: Any) -> str | None:
    """Return 16 hex digits of the item's canonical JSON; None if it is not JSON and only its id identifies it."""
    try:
        text = _canonical(item)
    except (TypeError, ValueError, RecursionError):
        return None
    return blake2b(text.encode(), digest_size=8).hexdigest()
