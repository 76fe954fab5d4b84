"""What is known of a run from outside: the lines its lives wrote, and the journal as an independent reader finds it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..journal.independent_reader import Broken, JournalView, read

KILLED = -9
ENDS = {"done", "failed", "retry", "limited"}

Line = list[Any]


@dataclass
class Life:
    """One process: what it said, how it ended, and what it left in the journal."""

    lines: list[Line]
    exit_code: int
    stderr: str
    entries: list[dict[str, Any]] = field(default_factory=list)  # that it added

    @property
    def was_killed(self) -> bool:
        return self.exit_code == KILLED

    @property
    def is_over(self) -> bool:
        return self.exit_code == 0 and bool(self.lines) and self.lines[-1][0] == "over"

    def said(self, *words: str) -> list[Line]:
        return [line for line in self.lines if line[0] in words]

    def counts_of(self, word: str) -> int:
        return len(self.said(word))

    def ids(self, *words: str) -> list[str]:
        return [line[1] for line in self.said(*words)]

    @property
    def executions(self) -> Counter[str]:
        return Counter(self.ids("began"))

    @property
    def executing(self) -> Counter[str]:
        """The items that were being worked on at its end."""
        return Counter(self.ids("began")) - Counter(self.ids("ended"))

    @property
    def recorded_ends(self) -> Counter[str]:
        return Counter(entry["item"] for entry in self.entries if entry["kind"] in ENDS)

    @property
    def in_flight(self) -> Counter[str]:
        """The items that had begun and whose end is not in the journal."""
        return self.executions - self.recorded_ends


def line_of(text: bytes) -> Line:
    line: Line = json.loads(text)
    return line


def journal_of(folder: Path) -> JournalView:
    """The journal of a run whose process is dead; an empty view if it has not come to have one. Raises Broken."""
    database = folder / "journal.sqlite"
    return read(folder) if database.exists() else JournalView([], {}, None)


__all__ = ["Broken", "JournalView", "Life", "Line", "journal_of", "line_of"]
