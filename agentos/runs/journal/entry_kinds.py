"""The kinds of journal entries, and the item state that each kind sets."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RecordedState(StrEnum):
    """The state of an item in the journal. An item without a deciding entry is pending."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PARKED = "parked"


# The state of an item is given by its newest entry of one of these kinds.
DECIDES: Final[dict[str, RecordedState]] = {
    "start": RecordedState.RUNNING,
    "done": RecordedState.DONE,
    "failed": RecordedState.FAILED,
    "retry": RecordedState.PENDING,
    "limited": RecordedState.PENDING,
    "pending": RecordedState.PENDING,
    "interrupted": RecordedState.INTERRUPTED,
    "parked": RecordedState.PARKED,
    "reopened": RecordedState.PENDING,  # a finished item is to run again; its earlier results stay as evidence
}

# These are evidence and change no item's state. A request through the gateway and a session of an agent may name an
# item and a credential.
EVIDENCE: Final = frozenset(
    {"session", "plan", "late", "duplicate", "note", "closed", "gateway_request", "agent_session"}
)
