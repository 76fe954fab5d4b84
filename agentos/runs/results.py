"""What a run tells of itself: one result per finished item, and the counts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from .core.states import Cause

__all__ = ["Cause", "ProgressStats", "WorkflowResult"]


@dataclass(slots=True)
class WorkflowResult:
    """How one item ended.

    ``index`` is its place in the input, from 0. ``outcome`` is ``"done"`` or ``"failed"``. ``cached`` results come from
    the journal of an earlier run. A value that is not JSON cannot come back from there: then ``value`` is None and
    ``value_repr`` says what it was.
    """

    item_id: str
    success: bool
    error: str | None = None
    duration: float = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)
    value: Any = None
    attempts: int = 1
    credential: str | None = None
    outcome: str = "done"
    cached: bool = False
    value_repr: str | None = None
    index: int = -1


@dataclass
class ProgressStats:
    """How far a run has come, or how it ended.

    ``total`` is None while the length of the input is not known. ``completed`` counts items that are done or failed.
    ``interrupted`` items had begun and will run again; ``parked`` ones wait for a limit to end. ``stopped_by`` says
    why the run ended before its input did, and ``cause`` says it in one word, for programs; ``wakes_at`` is when a run
    that ended for want of a rested credential can go on, in epoch seconds.
    """

    total: int | None
    completed: int = 0
    failed: int = 0
    success_count: int = 0
    start_time: float = field(default_factory=time.time)
    interrupted: int = 0
    parked: int = 0
    retried: int = 0
    cached: int = 0
    limited: int = 0
    stopped_by: str | None = None
    cause: Cause | None = None
    wakes_at: float | None = None
    end_time: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, or that it took."""
        return (time.time() if self.end_time is None else self.end_time) - self.start_time

    @property
    def completion_rate(self) -> float:
        """How much of the input is completed, in percent; 0 while its length is not known."""
        return self.completed / self.total * 100 if self.total else 0.0

    @property
    def unfinished(self) -> int | None:
        """How many items are neither done nor failed; None while the length of the input is not known."""
        return None if self.total is None else self.total - self.completed
