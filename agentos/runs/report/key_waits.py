"""Sum the time that workers lost waiting for keys, from the run's event log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WaitingTime:
    """Seconds that workers with an item waited for a key: in total and by key.

    The name ``""`` stands for keys that were merely busy.
    """

    seconds: float = 0.0
    by_key: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the seconds as a JSON object."""
        return {"seconds": self.seconds, "by_key": dict(self.by_key)}


def sum_waiting(events: Iterable[Mapping[str, Any]]) -> WaitingTime:
    """Sum the last record of each session: each record counts from the start of its session."""
    last: dict[float, tuple[float, dict[str, float]]] = {}
    for event in events:
        if event.get("kind") == "waiting":
            by_key = event.get("by_key")
            shares = by_key.items() if isinstance(by_key, dict) else ()
            last[_seconds(event.get("session"))] = (
                _seconds(event.get("seconds")),
                {str(name): _seconds(share) for name, share in shares},
            )
    total: dict[str, float] = {}
    for _, by_name in last.values():
        for name, share in by_name.items():
            total[name] = total.get(name, 0.0) + share
    return WaitingTime(sum(seconds for seconds, _ in last.values()), total)


def _seconds(found: object) -> float:
    """Return the number of seconds; 0 for anything else, because the file may have been edited."""
    if isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found):
        return max(0.0, float(found))
    return 0.0
