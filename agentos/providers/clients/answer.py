"""The common form of everything that clients raise or return, before classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """The facts of an exception or a response. Status None: there was no answer."""

    status: int | None
    headers: Any = None
    body: Any = None
    url: str | None = None
    provider: str | None = None  # according to the client; the URL takes precedence
    model: str | None = None
    retried: int = 0
    gave_up: bool = False  # the caller's timeout expired
