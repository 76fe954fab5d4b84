"""List the items of a run with their states, or find one item."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ...util.id_digest import id_digest
from ..core.id_set import DigestTable
from ..failures import decode_facts
from ..journal.entry_kinds import DECIDES, RecordedState
from ..journal.entry_text import replace_surrogates
from ..journal.journal_files import JournalFiles
from .journal_access import CURRENT, DECIDING, REFUSED, STATE_OF, query_rows, read_journal
from .planned_ids import Plan

_CURRENT_OF: Final = (
    f"select seq from entries where seq in ({CURRENT} union all {REFUSED}) "  # noqa: S608 (constants)
    "and kind in (select value from json_each(?)) order by seq"
)
_ENDED_WITH: Final = f"select item from entries where seq in ({CURRENT}) and kind = ?"  # noqa: S608 (constants)
_PAGE: Final = (
    "select e.item, e.kind, e.attempt, e.credential, e.duration, e.error, e.at, "
    "case when e.kind in ('failed', 'retry', 'limited', 'interrupted') then e.detail end "
    "from json_each(?) j cross join entries e on e.seq = j.value"
)
_PAGE_LENGTH: Final = 1_000
_IS_KNOWN: Final = "select 1 from entries where item = ? limit 1"
_LIKE: Final = "select distinct item from entries where substr(item, 1, length(:beginning)) = :beginning limit :most"
_PLANNED: Final = (
    "select j.value from json_each(:plan) p join entries e on e.seq = p.value join json_each(e.detail) j where "
)
_IS_PLANNED: Final = f"{_PLANNED} j.value = :beginning limit 1"
_PLANNED_LIKE: Final = f"{_PLANNED} substr(j.value, 1, length(:beginning)) = :beginning limit :most"
_ONE: Final = (
    "select seq, kind, attempt, credential, error, detail, at from entries "  # noqa: S608 (constants)
    f"where seq > ? and item = ? and kind in ({DECIDING}) order by seq desc limit 1"
)


@dataclass(frozen=True, slots=True)
class ItemState:
    """An item and its state. ``begun`` is False for an item without any entry.

    Of a failure, ``place`` is where it was raised, and ``tail`` the last lines of a command.
    """

    id: str
    state: str
    begun: bool = True
    attempts: int = 0
    credential: str | None = None
    duration: float | None = None
    error: str | None = None
    at: float | None = None
    error_type: str | None = None
    place: str | None = None
    traceback: str | None = None
    tail: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the item as a JSON object."""
        return {
            "id": self.id,
            "state": self.state,
            "begun": self.begun,
            "attempts": self.attempts,
            "credential": self.credential,
            "duration": self.duration,
            "error": self.error,
            "at": self.at,
            "error_type": self.error_type,
            "place": self.place,
            "traceback": self.traceback,
            "tail": self.tail,
        }


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The newest deciding entry of one item; ``seq`` is its number."""

    seq: int
    state: str
    kind: str
    attempts: int
    credential: str | None
    error: str | None
    error_type: str | None
    traceback: str | None
    at: float
    place: str | None = None

    @property
    def final(self) -> bool:
        return self.state in (RecordedState.DONE, RecordedState.FAILED)


def list_items(files: JournalFiles, state: str | None = None) -> Iterator[ItemState]:
    """Yield every item, or those in *state*: in the order in which their states were decided, then those not begun.

    The journal is not kept open between pages, because the consumer may be slow.
    """
    kinds = json.dumps([kind for kind, decided in STATE_OF.items() if state in (None, decided)])
    entries = array("q", (seq for (seq,) in query_rows(files, _CURRENT_OF, kinds)))
    for begin in range(0, len(entries), _PAGE_LENGTH):
        page = json.dumps(entries[begin : begin + _PAGE_LENGTH].tolist())
        for item, kind, *facts in query_rows(files, _PAGE, page):
            attempts, credential, duration, error, at, detail = facts
            known = decode_facts(detail)
            yield ItemState(
                item,
                STATE_OF[kind].value,
                True,
                attempts or 0,
                credential,
                duration,
                error,
                at,
                known.get("error_type"),
                known.get("place"),
                known.get("traceback"),
                known.get("tail", ()),
            )
    if state in (None, RecordedState.PENDING):
        for item_id in read_journal(files, find_not_begun):
            yield ItemState(item_id, RecordedState.PENDING.value, begun=False)


def find_not_begun(connection: sqlite3.Connection) -> list[str]:
    """Return the ids in the newest plan without any entry; none without a plan."""
    plan = Plan(connection)
    if not plan:
        return []
    begun = _build_digests(connection.execute(f"select item from entries where seq in ({CURRENT})"))  # noqa: S608 (constants)
    return [item_id for item_id in plan.ids() if id_digest(replace_surrogates(item_id)) not in begun]


def build_end_check(files: JournalFiles, kind: str) -> Callable[[str], bool]:
    """Return a function that tells whether the newest entry of an item id is of *kind*; False without a journal."""
    if not files.size(files.db):
        return lambda item_id: False
    ended = read_journal(files, lambda connection: _build_digests(connection.execute(_ENDED_WITH, (kind,))))
    return lambda item_id: id_digest(replace_surrogates(item_id)) in ended


def _build_digests(ids: Iterable[tuple[str]]) -> DigestTable:
    """Return a set of the digests of *ids*, in a sixth of the memory of the ids."""
    found = DigestTable()
    for (item_id,) in ids:
        found.add(id_digest(item_id))
    return found


def find_ids(files: JournalFiles, beginning: str, most: int = 10) -> list[str]:
    """Return the id equal to *beginning*, or up to *most* ids that begin with it; ids not begun are included."""
    return read_journal(files, lambda connection: _find_ids(connection, beginning, most))


def _find_ids(connection: sqlite3.Connection, beginning: str, most: int) -> list[str]:
    meant = {"beginning": beginning, "most": most, "plan": json.dumps(Plan(connection).parts)}
    if connection.execute(_IS_KNOWN, (beginning,)).fetchone() or connection.execute(_IS_PLANNED, meant).fetchone():
        return [beginning]
    planned = [each for (each,) in connection.execute(_PLANNED_LIKE, meant)]
    known = [each for (each,) in connection.execute(_LIKE, meant)]
    return list(dict.fromkeys([*planned, *known]))[:most]


def find_last_entry(files: JournalFiles, item_id: str, after: int = 0) -> LastEntry | None:
    """Return the newest deciding entry of the item after entry *after*, or None."""
    found = query_rows(files, _ONE, after, item_id)
    if not found:
        return None
    seq, kind, attempts, credential, error, detail, at = found[0]
    facts = {} if kind == "done" else decode_facts(detail)
    return LastEntry(
        seq,
        DECIDES[kind].value,
        kind,
        attempts or 0,
        credential,
        error,
        facts.get("error_type"),
        facts.get("traceback"),
        at,
        facts.get("place"),
    )
