"""Journals with chosen rows: attempts at known times, without waiting for any of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from agentos.runs.journal import Journal, encode_row


def write_rows(folder: Path, *rows: tuple[Any, ...]) -> None:
    """A closed journal with these rows: kind, item, token, attempt, key, duration, error and its facts."""
    folder.mkdir()
    journal = Journal.open(folder, worker="work", total=len({row[1] for row in rows}))
    writer = journal.writer(on_committed=_ignore, on_trouble=_ignore, on_lost=_ignore)
    began = time.time() - len(rows) - 5
    for place, (kind, item, token, attempt, key, duration, error, facts) in enumerate(rows, 1):
        detail = None if facts is None else json.dumps(facts)
        writer.put(
            encode_row(
                began + place, kind, item, token, attempt, key, duration, error=error, detail=detail, usage=USAGE
            )
        )
    assert journal.close(60)


LIMITED = {"type": "RateLimited", "trouble": "limited"}
TIMEOUT = {"type": "ReadTimeout", "trouble": "unreachable"}
FAILURE = {"type": "KeyError", "place": "work.py:12 in ask", "traceback": "Traceback ..."}
USAGE = '{"input": 10, "output": 5, "cache_read": 0, "cache_write": 0, "reasoning": 0, "keys": {"k-1": {"input": 10}}}'
ROWS = (
    ("limited", "slow", 1, 1, "k-1", 0.5, "429", LIMITED),
    ("done", "a", 2, 1, "k-2", 1.5, None, None),
    ("retry", "slow", 3, 1, "k-1", 0.25, "no answer", TIMEOUT),
    ("failed", "bad-1", 4, 1, "k-2", 0.75, "'x'", FAILURE),
    ("done", "slow", 5, 2, "k-2", 2.0, None, None),
    ("failed", "bad-2", 6, 1, "k-1", 0.5, "'y'", FAILURE),
    ("interrupted", "cut", 7, 1, "k-1", 0.5, None, None),
)


def _ignore(_: object) -> None:
    pass
