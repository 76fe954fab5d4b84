"""The record of an estimated rate in a store: named fields, so that a rename in the code changes no stored data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adaptive_rate import AdaptiveRate


def pack_rate(rate: AdaptiveRate) -> dict[str, Any]:
    """Return an estimate as plain data. What it seldom has is left out."""
    packed = {
        "learned": ["pace", rate.scope, rate.unit if rate.dimension else None],
        "anchor_at": rate.anchor_at,
        "anchor_taken": rate.anchor_taken,
        "anchor_left": rate.anchor_left,
        "at": rate.at,
        "base": rate.base,
        "found": rate.found,
        "found_in": rate.found_in,
        "lag": rate.lag,
        "level": rate.level,
        "mark": rate.mark,
        "overflowed": rate.overflowed,
        "plateau": rate.plateau,
        "pressed": rate.pressed,
        "rate": rate.rate,
        "refused": rate.refused,
        "resting_until": rate.resting_until,
        "row": rate.row,
        "searching_since": rate.searching_since,
        "taken": rate.taken,
        "took_at": rate.took_at,
        "unpressed": rate.unpressed,
        "idle": rate.idle,
        **rate.pack_evidence(),
    }
    if rate.beside_bucket:
        packed["beside_bucket"] = True
    if rate.woke_at != rate.anchor_at:
        packed["woke_at"] = rate.woke_at
    return packed


def unpack_rate(rate: AdaptiveRate, packed: Mapping[str, Any]) -> None:
    """Load an estimate; records of earlier versions lack some fields."""
    rate.anchor_at = packed["anchor_at"]
    rate.anchor_taken = packed["anchor_taken"]
    rate.anchor_left = packed.get("anchor_left", 0.0)
    rate.at = packed["at"]
    rate.beside_bucket = packed.get("beside_bucket", False)
    rate.found = packed["found"]
    rate.found_in = packed["found_in"]
    rate.lag = packed["lag"]
    rate.level = packed["level"]
    rate.mark = packed["mark"]
    rate.overflowed = packed["overflowed"]
    rate.plateau = packed["plateau"]
    rate.pressed = packed["pressed"]
    rate.rate = packed["rate"]
    rate.base = packed.get("base", rate.rate)
    rate.refused = packed["refused"]
    rate.resting_until = packed["resting_until"]
    rate.row = packed["row"]
    rate.searching_since = packed["searching_since"]
    rate.taken = packed["taken"]
    rate.took_at = packed["took_at"]
    rate.unpressed = packed.get("unpressed", 0.0)
    rate.idle = packed.get("idle", 0.0)
    rate.woke_at = packed.get("woke_at", rate.anchor_at)
    rate.unpack_evidence(packed)
