"""What is known of an answer before it is put into words: the same facts for every style."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .buckets import LimitLevel
from .plan import Dialect, Style

Reason = Literal[
    "unknown_key", "dead_key", "money", "day", "concurrency", "requests", "tokens", "too_large", "scripted"
]
Headers = tuple[tuple[str, str], ...]


class Facts(NamedTuple):
    """What an answer may tell. *wall* is the hour in epoch seconds; *retry_in* is exact, None where nobody knows."""

    style: Style
    dialect: Dialect
    exact: bool
    call: int
    wall: float
    organisation: str | None = None
    model: str | None = None
    requests: LimitLevel | None = None
    tokens: LimitLevel | None = None
    day: LimitLevel | None = None
    retry_in: float | None = None

    def level(self, reason: Reason) -> LimitLevel | None:
        """The limit that a refusal for this reason is about; None where the dialect keeps it to itself."""
        if self.dialect != "full":
            return None
        return {"requests": self.requests, "day": self.day}.get(reason, self.tokens)


def request_id(call: int) -> str:
    """What the provider calls its call of this number."""
    return f"req_{call:012x}"
