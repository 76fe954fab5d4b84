"""The facts of an answer before it is worded, common to all styles."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .limiters import LimitLevel
from .plan import MINUTE, Dialect, Style

Reason = Literal[
    "unknown_key", "dead_key", "money", "day", "concurrency", "requests", "tokens", "too_large", "scripted"
]
Headers = tuple[tuple[str, str], ...]


class Facts(NamedTuple):
    """Facts that an answer may state. *wall* is the time in epoch seconds; *retry_in* is exact, None if unknown."""

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
    window: float = MINUTE  # of requests and tokens
    retry_in: float | None = None

    def level(self, reason: Reason) -> LimitLevel | None:
        """Return the limit that the body of a refusal for this reason states; None if it states none.

        The styles have words for minutes and days only.
        """
        if self.dialect != "full":
            return None
        if reason == "day":
            return self.day
        level = self.requests if reason == "requests" else self.tokens
        return level if self.window == MINUTE else None


def request_id(call: int) -> str:
    """Return the provider's id of the request with this number."""
    return f"req_{call:012x}"
