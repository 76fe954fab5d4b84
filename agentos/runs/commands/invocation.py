"""A command to be performed for one attempt, and how that went: values that can travel to another machine and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Invocation:
    """What to run for one attempt. The secret is not in it."""

    argv: tuple[str, ...]
    text: str  # of the item
    stdin: bool  # it finds the text there
    item_id: str
    attempt: int
    slot: int
    credential: str | None  # its name
    variables: Mapping[str, str]  # that go with the credential
    env_key: str | None  # the variable for its secret
    idle_timeout: float | None
    kill_after: float

    def __repr__(self) -> str:
        return f"<order for {self.item_id} attempt {self.attempt}>"


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command went, as the machine saw it that ran it."""

    status: int | None  # as the system tells it; None: the process that starts commands ended before
    fault: int | None  # why it could not be started
    asked_to_end: bool
    was_silent: bool  # for too long, and asked to end for that
    outcome: bytes | None  # what it wrote to AGENTOS_OUTCOME
    outcome_error: str | None = None  # why that cannot be read
    host: str | None = None  # where; None: here
