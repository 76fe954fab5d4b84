"""The states of keys over time, from the ``key`` events of a run: periods of cooling down, parked, spent or dead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_IN_USE: Final = ("available", "leased")
_MOST: Final = 20_000
_LONGEST_REASON: Final = 200


def read_key_periods(events: Iterable[Mapping[str, Any]], ended_at: float) -> list[list[Any]]:
    """Return ``[key, state, since, until, why]`` for each period in which a key could not be used, by begin.

    Instants are epoch seconds. A session that ends leaves its keys: the next one says again what they are.
    """
    periods: list[list[Any]] = []
    current: dict[str, list[Any]] = {}
    last_at = 0.0

    def close(name: str, at: float) -> None:
        period = current.pop(name, None)
        if period is not None:
            period[3] = min(at, period[3]) if period[3] else at
            if period[3] > period[2] and len(periods) < _MOST:
                periods.append(period)

    for event in events:
        at = event.get("at")
        if not isinstance(at, (int, float)) or isinstance(at, bool):
            continue
        if event["kind"] == "session":
            for name in list(current):
                close(name, max(last_at, current[name][2]))
        elif event["kind"] == "key" and isinstance(event.get("name"), str) and isinstance(event.get("state"), str):
            name, state, until = event["name"], event["state"], event.get("until")
            close(name, at)
            if state not in _IN_USE:
                due = float(until) if isinstance(until, (int, float)) and until > at else 0.0
                current[name] = [name, state, at, due, str(event.get("why") or "")[:_LONGEST_REASON]]
        last_at = at
    for name in list(current):
        close(name, ended_at)
    return sorted(periods, key=lambda period: float(period[2]))
