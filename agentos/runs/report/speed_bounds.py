"""The bounds of a run's speed, moment by moment, from the ``bound`` events of its event log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# What can bound a run: "quota" are limits and cooldowns of keys, "end" is that nothing is left to start.
BOUNDS: Final = ("workers", "slots", "quota", "network", "input", "disk", "cluster", "end", "unknown")


@dataclass(frozen=True, slots=True)
class BoundPeriod:
    """A part of a run: its begin and end (epoch seconds), and the seconds of it by what bounded the run then.

    ``idle`` has the seconds that workers were idle, all together, by the same words; ``keys`` the seconds of "quota" by
    the key that was limited or cooling down. ``running`` is the mean number of running items.
    """

    since: float
    until: float
    by: Mapping[str, float]
    idle: Mapping[str, float]
    keys: Mapping[str, float]
    parallel: int
    running: float


@dataclass(frozen=True, slots=True)
class SpeedBounds:
    """Sums over a run, in seconds; empty if nothing was recorded. ``periods`` are its parts, in order.

    ``lost`` is the time that the run would have been shorter by, had no worker been idle: the time that workers were
    idle, divided by their number.
    """

    by: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[str, float] = field(default_factory=dict)
    keys: Mapping[str, float] = field(default_factory=dict)
    periods: tuple[BoundPeriod, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the sums as a JSON object."""
        return {"by": dict(self.by), "lost": dict(self.lost), "keys": dict(self.keys)}


def read_speed_bounds(events: Iterable[Mapping[str, Any]]) -> SpeedBounds:
    """Return what bounded a run, from its events. What is not such a record is skipped: the file may be edited."""
    periods = [period for event in events if event.get("kind") == "bound" and (period := _read(event)) is not None]
    return SpeedBounds(
        _sum(period.by for period in periods),
        _sum({name: each / max(1, period.parallel) for name, each in period.idle.items()} for period in periods),
        _sum(period.keys for period in periods),
        tuple(periods),
    )


def _read(event: Mapping[str, Any]) -> BoundPeriod | None:
    since, until = _number(event.get("since")), _number(event.get("until"))
    if not 0 < since < until:
        return None
    by = {name: seconds for name, seconds in _numbers(event.get("by")).items() if name in BOUNDS}
    idle = {name: seconds for name, seconds in _numbers(event.get("idle")).items() if name in BOUNDS}
    return BoundPeriod(
        since,
        until,
        by,
        idle,
        _numbers(event.get("keys")),
        int(_number(event.get("parallel"))),
        _number(event.get("running")),
    )


def _numbers(found: object) -> dict[str, float]:
    return {str(name): _number(each) for name, each in found.items()} if isinstance(found, dict) else {}


def _number(found: object) -> float:
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    return max(0.0, float(found)) if is_number else 0.0  # type: ignore[arg-type]


def _sum(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items():
            total[name] = total.get(name, 0.0) + seconds
    return total
