"""News of a journal since an entry: the items that changed and the attempts that ended, for the live page."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from ...runs.journal.entry_kinds import DECIDES
from ...runs.journal.head_file import read_head
from ...runs.journal.journal_files import JournalFiles
from ...runs.report.journal_access import query_rows
from ..item_columns import ENDS, OTHER_CAUSE, STATES, TROUBLES
from ..previews import clean_text, make_preview

_MOST: Final = 5_000  # entries of one read
_READ: Final = 600  # characters of a text
_NEW: Final = (
    "select seq, at, kind, item, token, attempt, credential, duration, usage, "  # noqa: S608 (constants)
    f"substr(content, 1, {_READ}), substr(value, 1, {_READ}), substr(error, 1, {_READ}), "
    "case when kind in ('failed', 'retry', 'limited') then detail ->> '$.trouble' end "
    f"from entries where seq > ? order by seq limit {_MOST}"
)
_NOT_LAST: Final = ("retry", "limited", "interrupted")


@dataclass(slots=True)
class JournalChanges:
    """New facts up to entry ``last``: items and attempts as the page's script takes them.

    ``ended``: a session has been closed or begun, so that the head of the page changes. ``whole`` is False if there is
    more to read.
    """

    last: int
    items: list[list[Any]] = field(default_factory=list)
    attempts: list[list[Any]] = field(default_factory=list)
    ended: bool = False
    whole: bool = True

    def as_json(self) -> str:
        """Return the changes as JSON."""
        return json.dumps({"last": self.last, "items": self.items, "attempts": self.attempts}, separators=(",", ":"))


def find_newest_entry(files: JournalFiles) -> int | None:
    """Return the number of the newest entry by the head file; None if that cannot be read just now."""
    head = read_head(files.head)
    return None if head is None else head.seq


def read_changes(files: JournalFiles, after: int, began: float) -> JournalChanges:
    """Read the entries after number *after*. Times become milliseconds after *began*. Raises JournalError."""
    rows = query_rows(files, _NEW, after)
    changes = JournalChanges(rows[-1][0] if rows else after, whole=len(rows) < _MOST)
    for _, at, kind, item, token, number, key, duration, usage, content, value, error, trouble in rows:
        if item is None:
            changes.ended |= kind in ("closed", "session")
            continue
        ended, lasted = max(0, round((at - began) * 1000)), round((duration or 0.0) * 1000)
        if kind in _NOT_LAST and token is not None:
            word = trouble or ("limited" if kind == "limited" else "")
            code = TROUBLES.index(word) if word in TROUBLES else 0
            attempt = [ENDS.index(kind), number or 1, key, ended, lasted, code, (error or "")[:200]]
            changes.attempts.append([item, *attempt])
        state = DECIDES.get(kind)
        if state is not None:
            cause = OTHER_CAUSE if kind == "failed" else 0
            texts = [make_preview(content), make_preview(value), clean_text(error or "")[:300] if cause else ""]
            facts = [STATES.index(state.value), key, number or 1, ended, lasted, _count_tokens(usage), cause]
            changes.items.append([item, *facts, *texts])
    return changes


def _count_tokens(usage: str | None) -> int:
    try:
        found = json.loads(usage or "null")
        return sum(int(found[name]) for name in ("input", "output", "cache_read", "cache_write"))
    except (ValueError, TypeError, LookupError):
        return 0
