"""List the attempts of one item, from the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..failures import decode_facts
from ..journal.journal_files import JournalFiles
from .journal_access import query_rows

_ENTRIES: Final = (
    "select token, kind, attempt, credential, duration, error, detail, at from entries where item = ? and token is not "
    "null and kind in ('start', 'done', 'failed', 'retry', 'limited', 'interrupted') order by seq"
)


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt: its number, start (epoch seconds) and key; ``kind`` says how it ended, "start" that it did not."""

    number: int
    kind: str
    began_at: float
    key: str | None
    duration: float | None
    error: str | None
    facts: Mapping[str, Any]


def list_attempts(files: JournalFiles, item_id: str) -> list[RecordedAttempt]:
    """Return the attempts of the item in the order in which they began."""
    found: dict[int, RecordedAttempt] = {}
    for token, kind, number, key, duration, error, detail, at in query_rows(files, _ENTRIES, item_id):
        facts = {} if kind in ("start", "done") else decode_facts(detail)
        found[token] = RecordedAttempt(number or 1, kind, at - (duration or 0.0), key, duration, error, facts)
    return sorted(found.values(), key=lambda each: each.began_at)
