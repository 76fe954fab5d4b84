"""Read the columns of an entry that hold JSON: the usage and the flags."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ...costs.usage import Usage


@dataclass(frozen=True, slots=True)
class RecordedFacts:
    """The usage and the flags of one entry. A column that was edited by hand and is not JSON counts as empty."""

    usage: Usage | None = None
    flags: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, usage: str | None, flags: str | None) -> RecordedFacts:
        """Parse the text of both columns."""
        if usage is None and flags is None:
            return NO_FACTS
        figures, found = _parse(usage), _parse(flags)
        return cls(Usage.from_json(figures) if isinstance(figures, dict) else None, found or {})

    @property
    def redacted(self) -> bool:
        """True if a secret was removed from the value."""
        return self.flags.get("redacted") is True

    @property
    def value_type(self) -> str | None:
        """The class of a value that was converted to JSON."""
        found = self.flags.get("value_type")
        return found if isinstance(found, str) else None


def build_flags(*, redacted: bool, value_type: str | None) -> dict[str, Any]:
    """Return the flags that describe a value."""
    flags: dict[str, Any] = {"redacted": True} if redacted else {}
    if value_type is not None:
        flags["value_type"] = value_type
    return flags


def _parse(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


NO_FACTS = RecordedFacts()  # never changed
