"""Summarise a run in one line, without verifying the hash chain: fast enough for a hundred runs."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentos.errors import JournalError

from ..journal.journal_files import JournalFiles, locate_files
from .item_states import find_not_begun
from .journal_access import DECIDING, REFUSED, has_closed, read_journal
from .run_card import CARD_NAME, read_card
from .status import RunStatus, find_status

_KINDS: Final = "select kind, count(*), count(fingerprint) from entries group by kind"
_LAST: Final = "select kind, at from entries order by seq desc limit 1"
_SESSIONS: Final = "select seq, at, detail from entries where kind = 'session' order by seq"
_NOTE: Final = "select detail from entries where seq > ? and kind = 'note' and detail like 'stopped by %' limit 1"
# A failed item may have been retried later, and a done one reopened.
_STILL: Final = (
    "select count(*) from (select kind, max(seq) from entries where item in "  # noqa: S608 (constants)
    f"(select item from entries where kind = :kind) and kind in ({DECIDING}) group by item) where kind = :kind"
)
_ITEMS: Final = f"select count(distinct item) from entries where kind in ({DECIDING})"  # noqa: S608 (constants)
_REFUSED: Final = f"select count(*) from ({REFUSED})"  # noqa: S608 (constants)
_AT: Final = "select at from entries where seq = ?"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run in a list of runs. ``total`` and ``left`` are None while the length of its input is not known.

    ``started_at`` is that of its last session, ``seconds`` the sum of all sessions. ``problem`` says why the rest could
    not be read.
    """

    name: str
    folder: str
    state: RunStatus
    done: int = 0
    failed: int = 0
    total: int | None = None
    left: int | None = None
    started_at: float | None = None
    seconds: float | None = None
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the run as a JSON object."""
        return {
            "name": self.name,
            "folder": self.folder,
            "state": self.state.as_json(),
            "done": self.done,
            "failed": self.failed,
            "total": self.total,
            "left": self.left,
            "started_at": self.started_at,
            "seconds": self.seconds,
            "problem": self.problem,
        }


def build_summary(folder: Path, *, wall: Callable[[], float] = time.time) -> RunSummary:
    """Return the summary of the run in *folder*; a broken run gives a ``problem`` and does not raise."""
    files = locate_files(folder)
    try:
        if files.size(files.db) is not None:
            brief = _build_summary(folder, files, wall)
            if brief.state.word == "crashed" and has_closed(files):
                brief = _build_summary(folder, files, wall)
            return brief
        state, problem = RunStatus("not started"), None
    except (JournalError, OSError) as error:
        state, problem = RunStatus("unreadable"), str(error)
    card = read_card(folder)
    return RunSummary(
        folder.name, str(folder), state, started_at=None if card is None else card.started, problem=problem
    )


def _build_summary(folder: Path, files: JournalFiles, wall: Callable[[], float]) -> RunSummary:
    found = read_journal(files, _read)
    state = find_status(files.lock, last_kind=found.last_kind, note=found.note, left=found.left)
    total, left = (found.total, found.left) if found.listed or state.word == "finished" else (None, None)
    until = wall() if state.word == "running" else found.last_at
    seconds = found.earlier + max(0.0, until - found.started_at)
    return RunSummary(folder.name, str(folder), state, found.done, found.failed, total, left, found.started_at, seconds)


def find_last_change(folder: Path) -> float:
    """Return when the run's files last changed, as epoch seconds for sorting."""
    files = locate_files(folder)
    times = [_changed(path) for path in (files.db, files.wal, folder / CARD_NAME)]
    return max(times) or _changed(folder)


def _changed(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


@dataclass(frozen=True, slots=True)
class _JournalCounts:
    """Counts read from a journal: ``total`` counts all known items, ``listed`` says whether there can be no others."""

    done: int = 0
    failed: int = 0
    total: int = 0
    left: int = 0
    listed: bool = False
    last_kind: str | None = None
    last_at: float = 0.0
    started_at: float = 0.0
    earlier: float = 0.0  # seconds of the sessions before the last
    note: str | None = None


def _read(connection: sqlite3.Connection) -> _JournalCounts:
    counted = connection.execute(_KINDS).fetchall()
    kinds: dict[str, int] = {kind: count for kind, count, _ in counted}
    plans = sum(whole for kind, _, whole in counted if kind == "plan")  # only the last part of one has a fingerprint
    sessions: list[tuple[int, float, str]] = connection.execute(_SESSIONS).fetchall()
    if not sessions:
        return _JournalCounts()
    last_kind, last_at = connection.execute(_LAST).fetchone()
    seq, started_at, _ = sessions[-1]
    note = connection.execute(_NOTE, (seq,)).fetchone()
    done, failed = kinds.get("done", 0), kinds.get("failed", 0)
    if failed and len(sessions) > 1:
        (failed,) = connection.execute(_STILL, {"kind": "failed"}).fetchone()
    if "reopened" in kinds:
        (done,) = connection.execute(_STILL, {"kind": "done"}).fetchone()
    items, listed = _items(connection, plans, [json.loads(detail).get("total") for _, _, detail in sessions])
    refused = connection.execute(_REFUSED).fetchone()[0] if "duplicate" in kinds else 0
    return _JournalCounts(
        done,
        failed + refused,
        items + refused,
        max(0, items - done - failed),
        listed,
        last_kind,
        last_at,
        started_at,
        _seconds(connection, sessions),
        note and note[0],
    )


def _items(connection: sqlite3.Connection, plans: int, totals: list[int | None]) -> tuple[int, bool]:
    """Return the number of known items, and whether these are all. *totals* are those recorded by the sessions.

    The result equals that of a full report: items with any entry, whatever the input is now, and those of the newest
    plan.
    """
    total = totals[-1]
    if total is not None and plans == 1 and set(totals) == {total}:
        return total, True  # the input never changed, so there are no others
    (known,) = connection.execute(_ITEMS).fetchone()
    if plans:
        return known + len(find_not_begun(connection)), True
    return max(known, total or 0), total is not None


def _seconds(connection: sqlite3.Connection, sessions: list[tuple[int, float, str]]) -> float:
    """Return the duration of all sessions but the last: each until its last entry."""
    seconds = 0.0
    for (_, started_at, _), (following, _, _) in itertools.pairwise(sessions):
        (ended_at,) = connection.execute(_AT, (following - 1,)).fetchone()
        seconds += max(0.0, ended_at - started_at)
    return seconds
