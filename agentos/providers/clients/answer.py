"""The one shape that what any client raises or returns is brought into, before it is said what that means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client had in hand when it raised or returned. Status None: nothing at all."""

    status: int | None
    headers: Any = None
    body: Any = None
    url: str | None = None
    provider: str | None = None  # as far as the client tells; where the address tells another, that one is right
    model: str | None = None
    retried: int = 0
    gave_up: bool = False  # the time that its caller gave it was over
