"""Decide which facts about a run are worth a message. No clock: *now* is monotonic seconds, *wall* epoch seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

QUIET: Final = 1800.0  # seconds in which a kind is told at most once


@dataclass(slots=True)
class RunWatch:
    """What is known of a run, and since when; one for each target, because targets have their own patience."""

    cooling_after: float
    stuck_after: float
    finished: int = -1
    progressed_at: float = 0.0
    cooling_since: float | None = None
    told: set[str] = field(default_factory=set)  # states that last: told once until they end

    def observe(self, facts: Mapping[str, Any], now: float, wall: float) -> list[str]:
        """Take the newest facts of the driver; return the kinds that are news."""
        finished = facts["done"] + facts["failed"]
        if finished != self.finished:
            self.finished, self.progressed_at = finished, now
            self.told.discard("stuck")
        keys, usable, resting = facts["keys"], facts["usable"], facts["resting"]
        news = []
        if keys and not usable:
            news.append("keys")
        else:
            self.told.discard("keys")
        if usable and resting == usable:
            self.cooling_since = now if self.cooling_since is None else self.cooling_since
            due = facts.get("next_at") or 0.0
            if due - wall > self.cooling_after or now - self.cooling_since > self.cooling_after:
                news.append("cooling")
        else:
            self.cooling_since = None
            self.told.discard("cooling")
        news += self.look(now)
        return self._only_new(news)

    def look(self, now: float) -> list[str]:
        """Return ``["stuck"]`` if nothing has finished for long; also while the driver itself says nothing."""
        if self.finished < 0 or self.cooling_since is not None or now - self.progressed_at <= self.stuck_after:
            return []
        return self._only_new(["stuck"])

    def _only_new(self, kinds: list[str]) -> list[str]:
        new = [kind for kind in kinds if kind not in self.told]
        self.told.update(new)
        return new


def may_tell(kind: str, last_told: Mapping[str, float], wall: float) -> bool:
    """Return whether *kind* may be told now, *last_told* being when each was last."""
    before = last_told.get(kind)
    return before is None or not 0 <= wall - before < QUIET


def name_end(end: Mapping[str, Any] | None, stopping: str | None) -> str:
    """Return the kind of a run's end; *end* is what the driver said last, None if it was gone before."""
    if end is None:
        return "crashed" if stopping is None else "stopped"
    return {0: "ended", 1: "ended", 3: "halted", 4: "keys", 75: "cooling", 130: "stopped", 143: "stopped"}.get(
        end["code"], "halted"
    )


def choose_command(kind: str, commands: Mapping[str, str], facts: Mapping[str, Any]) -> str:
    """Return the command to type next."""
    if kind in ("stopped", "halted", "crashed"):
        return commands["resume"]
    if kind == "ended":
        return commands["retry"] if facts.get("failed") else commands["results"]
    return commands["keys"] if kind in ("keys", "cooling") else commands["show"]
