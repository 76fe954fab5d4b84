"""Pack a reported limit for a store, and unpack it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..limits.base import FOREVER, pack_instant, unpack_instant
from .recent_starts import RecentStarts

if TYPE_CHECKING:
    from .reported import ReportedLimit


def pack_reported(limit: ReportedLimit) -> dict[str, Any]:
    """Return the record of a reported limit."""
    return {
        "learned": ["told", limit.limit.dimension, limit.scope, limit.limit.amount, limit.per],
        "empty_at": pack_instant(limit.empty_at),
        "renewed_at": pack_instant(limit.renewed_at),
        "heard_at": pack_instant(limit.heard_at),
        "mentioned_at": pack_instant(limit.mentioned_at),
        "heard_taken": limit.heard_taken,
        "taken": limit.taken,
        "remaining": limit.remaining,
        "allowance": limit.allowance,
        "starts": list(limit.starts.entries),
        "hint": limit.hint,
        "least_rate": limit.least_rate,
        "obeyed": limit.obeyed,
        "trust": limit.trust,
        "renews": limit.renews,
        "slides": limit.slides or False,
        "total": pack_instant(limit.total),
        "blocked_at": pack_instant(limit.probe.blocked_at),
        **limit.usable.pack("usable"),
        "mark": limit.mark,
        "probe": [limit.probe.place, limit.probe.step],
        "evidence": limit.evidence.pack(),
        "anchor": limit.evidence.anchor,
        **limit.pack_evidence(),
    }


def unpack_reported(limit: ReportedLimit, packed: Mapping[str, Any]) -> None:
    """Load a record but for its amount, window and resets; those of earlier versions have fewer fields."""
    limit.empty_at = unpack_instant(packed["empty_at"])
    limit.renewed_at = unpack_instant(packed.get("renewed_at"))
    limit.heard_at = unpack_instant(packed["heard_at"])
    limit.mentioned_at = unpack_instant(packed.get("mentioned_at", packed["heard_at"]))
    limit.heard_taken, limit.taken = packed["heard_taken"], packed["taken"]
    limit.remaining = packed.get("remaining", limit.limit.amount)
    limit.allowance = packed.get("allowance", limit.limit.amount)
    limit.starts = RecentStarts(packed.get("starts", ()))
    limit.hint = packed.get("hint")
    limit.least_rate = packed.get("least_rate", 0.0)
    limit.obeyed, limit.trust = packed.get("obeyed", True), packed.get("trust", 1.0)
    limit.renews, limit.slides = packed.get("renews", False), float(packed.get("slides", 0.0))
    limit.total = unpack_instant(packed.get("total"), FOREVER)
    limit.probe.blocked_at = unpack_instant(packed.get("blocked_at"), FOREVER)
    limit.usable.unpack(packed, "usable")
    limit.mark = packed.get("mark", 0.0)
    limit.probe.place, limit.probe.step = packed.get("probe", (limit.probe.place, limit.probe.step))
    limit.unpack_evidence(packed)
