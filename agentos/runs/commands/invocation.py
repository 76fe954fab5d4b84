"""A command to run for one attempt, and its result: values that can be sent to another machine and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Invocation:
    """The command to run for one attempt, without its secret."""

    argv: tuple[str, ...]
    text: str  # the item's text
    stdin: bool  # pass the text on standard input
    item_id: str
    attempt: int
    slot: int
    credential: str | None  # its name
    variables: Mapping[str, str]  # variables that belong to the credential
    env_key: str | None  # the variable for its secret
    idle_timeout: float | None
    kill_after: float
    prompt: str | None = None  # what it reads from standard input, instead of the item

    def __repr__(self) -> str:
        return f"<invocation for {self.item_id} attempt {self.attempt}>"


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command, as seen by the machine that ran it."""

    status: int | None  # wait status; None if the helper process ended before
    fault: int | None  # errno if it could not be started
    asked_to_end: bool
    was_silent: bool  # for too long, and asked to end for that
    outcome: bytes | None  # what it wrote to AGENTOS_OUTCOME
    outcome_error: str | None = None  # why that cannot be read
    host: str | None = None  # where it ran; None for this machine
