"""An independent reader of a journal: what a stranger with SQLite and the description of the format can prove.

It shares no code with agentos, so that a fault there cannot hide itself here. It is the oracle after a crash: call
`read` on a journal whose process is dead (or from another process); nothing of the journal is changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = [
    "at",
    "kind",
    "item",
    "token",
    "attempt",
    "credential",
    "duration",
    "fingerprint",
    "value",
    "error",
    "detail",
]
ADDED = ["content", "usage", "flags"]  # by format 2; the text of a row leaves them out if all are null
STATES = {
    "start": "running",
    "done": "done",
    "failed": "failed",
    "retry": "pending",
    "limited": "pending",
    "pending": "pending",
    "interrupted": "interrupted",
    "parked": "parked",
    "reopened": "pending",
}


class Broken(Exception):
    """The journal does not hold what was written to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class JournalView:
    """Every entry (a dict of its columns and ``seq``), the state of each item, and what the head file says."""

    entries: list[dict[str, Any]]
    states: dict[str, str]
    head_seq: int | None

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["kind"] in kinds]


def read(journal: str | os.PathLike[str]) -> JournalView:
    """Read the journal in this folder, or this database file. Raises Broken if anything is not as written."""
    path = Path(journal)
    db = path / "journal.sqlite" if path.is_dir() else path
    rows = _rows(db)
    _check_chain(rows)
    head = _head(db.with_name(db.name + ".head"))
    _check_head(rows, head)
    entries = [dict(zip(["seq", *COLUMNS, *ADDED], row[:-1], strict=False)) for row in rows]
    states = {entry["item"]: STATES[entry["kind"]] for entry in entries if entry["kind"] in STATES}
    return JournalView(entries, states, head[0] if head else None)


def _rows(db: Path) -> list[tuple[Any, ...]]:
    has_log = db.with_name(db.name + "-wal").exists()
    uri = f"{db.resolve().as_uri()}?mode=ro{'' if has_log else '&immutable=1'}"
    connection = None
    try:
        connection = sqlite3.connect(uri, uri=True)
        added = ADDED if connection.execute("pragma user_version").fetchone()[0] > 1 else []
        columns = ", ".join([*COLUMNS, *added])
        return connection.execute(f"select seq, {columns}, chain from entries order by seq").fetchall()
    except (sqlite3.Error, ValueError) as error:
        raise Broken(f"SQLite: {error}") from error
    finally:
        if connection is not None:
            connection.close()


def _check_chain(rows: list[tuple[Any, ...]]) -> None:
    previous, group = "", []
    for expected, (seq, *columns, chain) in enumerate(rows, start=1):
        if seq != expected:
            raise Broken(f"entry {expected} is missing")
        plain, added = columns[: len(COLUMNS)], columns[len(COLUMNS) :]
        group.append(columns if any(each is not None for each in added) else plain)
        if chain is not None:
            first = seq - len(group) + 1
            text = json.dumps(group, separators=(",", ":"))
            value = hashlib.blake2b(f"{previous}:{first}:{text}".encode(), digest_size=16).hexdigest()
            if value != chain:
                raise Broken(f"the chain breaks in entries {first} to {seq}")
            previous, group = chain, []
    if group:
        raise Broken("the last commit has no chain value")


def _head(path: Path) -> tuple[int, str] | None:
    if not path.exists():
        return None
    try:
        seq, chain, check = path.read_text("ascii").split()
        expected = hashlib.blake2b(f"{seq} {chain}".encode(), digest_size=4).hexdigest()
        return (int(seq), chain.strip(".")) if check == expected else None
    except ValueError:
        return None


def _check_head(rows: list[tuple[Any, ...]], head: tuple[int, str] | None) -> None:
    if head is None:
        if rows and rows[-1][2] != "closed":
            raise Broken("no head, and no clean end")
        return
    seq, chain = head
    if seq > len(rows):
        raise Broken(f"{seq - len(rows)} entries missing")
    if seq and rows[seq - 1][-1] != chain:
        raise Broken(f"the head tells of another entry {seq}")
