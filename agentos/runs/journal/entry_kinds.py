"""The kinds of entries, and which of them decide the state of an item. Everything else derives from this table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RecordedState(StrEnum):
    """Where an item stands. An item without any entry that decides is pending too."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PARKED = "parked"


# The newest entry of one of these kinds is the state of its item.
DECIDES: Final[dict[str, RecordedState]] = {
    "start": RecordedState.RUNNING,
    "done": RecordedState.DONE,
    "failed": RecordedState.FAILED,
    "retry": RecordedState.PENDING,
    "limited": RecordedState.PENDING,
    "pending": RecordedState.PENDING,
    "interrupted": RecordedState.INTERRUPTED,
    "parked": RecordedState.PARKED,
}

# These are kept as evidence and change no item's state.
EVIDENCE: Final = frozenset({"session", "plan", "late", "duplicate", "note", "closed"})
