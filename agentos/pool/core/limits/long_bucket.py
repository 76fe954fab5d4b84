"""A bucket that takes an hour or more to fill: what it holds does not start all at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...limit import Limit
from .base import FOREVER, pack_instant, unpack_instant
from .bucket import Bucket
from .spread import AT_ONCE, find_spacing


class LongBucket(Bucket):
    """A bucket whose calls start apart once some were taken from it."""

    __slots__ = ("spacing", "took_at")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.spacing = find_spacing(limit)
        self.took_at = -FOREVER  # the last start

    def ready_at(self, need: float, now: float, extra: float = 0.0) -> float:
        at = super().ready_at(need, now, extra)
        if at <= now < self.took_at + self.spacing and self.limit.largest - self.left(now) > AT_ONCE - 0.5:
            return self.took_at + self.spacing
        return at

    def reserve(self, need: float, now: float) -> tuple[float, int] | None:
        return self.take(need, now) if self.ready_at(need, now) <= now else None

    def take(self, need: float, now: float) -> tuple[float, int]:
        self.took_at = now
        return super().take(need, now)

    def pack(self) -> dict[str, Any]:
        packed = super().pack()
        if self.took_at > -FOREVER:
            packed["took_at"] = pack_instant(self.took_at)
        return packed

    def unpack(self, packed: Mapping[str, Any]) -> None:
        super().unpack(packed)
        self.took_at = unpack_instant(packed.get("took_at"))

    def reset(self) -> None:
        super().reset()
        self.took_at = -FOREVER
