"""The kinds of entries, and which of them decide the state of an item. Everything else derives from this table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where an item stands. An item without any entry that decides is pending too."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PARKED = "parked"


# The newest entry of one of these kinds is the state of its item.
DECIDES: Final[dict[str, State]] = {
    "start": State.RUNNING,
    "done": State.DONE,
    "failed": State.FAILED,
    "retry": State.PENDING,
    "limited": State.PENDING,
    "pending": State.PENDING,
    "interrupted": State.INTERRUPTED,
    "parked": State.PARKED,
}

# These are kept as evidence and change no item's state.
EVIDENCE: Final = frozenset({"session", "plan", "late", "duplicate", "note", "closed"})
