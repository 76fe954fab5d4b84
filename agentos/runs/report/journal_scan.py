"""One pass over the entries of a journal that collects every count, duration and sum of a report."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from ...costs.usage import Usage, UsageTotals
from ..core.states import Trouble
from ..journal.entry_kinds import RecordedState
from ..journal.entry_text import replace_surrogates
from ..journal.known_items import KnownItems
from ..journal.reader import ids_at
from ..journal.verify import JournalContents
from .failure_causes import FailureCauses
from .journal_access import REFUSED
from .planned_ids import Plan
from .status import STOPPED_BY

# Values are left out: they may be large, and no number depends on them.
_WALK: Final = (
    "select seq, at, kind, item, token, credential, duration, error, "
    "case when kind in ('session', 'note') then detail when kind in ('failed', 'retry') then detail ->> '$.type' end, "
    "case when kind = 'failed' then detail ->> '$.place' end, "
    "case when kind = 'failed' then coalesce(detail ->> '$.code', detail ->> '$.exit') end, "
    "case when kind = 'failed' then detail ->> '$.traceback' end, "
    "case when kind in ('failed', 'retry', 'limited') then detail ->> '$.trouble' end, usage, "
    "case when kind = 'done' then flags ->> '$.redacted' end, kind = 'done' and detail is not null, attempt "
    "from entries where seq <= ? order by seq"
)
_REFUSED: Final = f"select seq, item, error from entries where seq in ({REFUSED}) and seq <= ? order by seq"  # noqa: S608
_decode: Final = json.JSONDecoder().raw_decode  # without the checks of json.loads, which take as long
_ENDS_ATTEMPT: Final = frozenset({"done", "failed", "retry", "limited", "interrupted"})


class EntryCollector(Protocol):
    """Takes the items and attempts that a scan meets, for a report that lists them."""

    def add_entry(
        self,
        item: str,
        state: RecordedState | None,
        seq: int,
        at: float,
        kind: str,
        token: int | None,
        number: int | None,
        credential: str | None,
        duration: float | None,
        error: str | None,
        trouble: str | None,
        usage: Mapping[str, Any] | None,
        cause: int | None,
    ) -> None:
        """Take an entry of *item*; *state* is that of the item if this entry decides it, else None.

        *usage* has the tokens of the item so far, as ``Usage.to_json`` names them; what was edited may be anything.
        *cause* is the number of the failure's group in ``JournalScan.causes``, if there is one.
        """

    def add_refused(self, seq: int, item: str, error: str | None, cause: int | None) -> None:
        """Take an item that failed because its id was taken."""

    def add_not_begun(self, item: str) -> None:
        """Take a planned item without any entry."""


@dataclass(slots=True)
class SessionTotals:
    """One opening of the journal."""

    number: int
    pid: int | None
    host: str | None
    total: int | None
    started_at: float
    last_at: float
    note: str | None = None
    closed: bool = False
    finished: int = 0  # items that became done or failed in it


@dataclass(slots=True)
class KeyTotals:
    """The use of one credential."""

    done: int = 0
    failed: int = 0
    retried: int = 0
    limited: int = 0
    seconds: float = 0.0
    rejected: int = 0
    unreachable: int = 0
    used: UsageTotals = field(default_factory=UsageTotals)


class JournalScan:
    """Totals over the intact entries of a journal. Of unfinished items, up to *ids* ids are kept for each state.

    *collector* gets every item and attempt.
    """

    def __init__(self, contents: JournalContents, ids: int, collector: EntryCollector | None = None) -> None:
        self.collector = collector
        self.known: KnownItems = contents.known
        self.sessions: list[SessionTotals] = []
        self.keys: dict[str, KeyTotals] = {}
        self.causes = FailureCauses()
        self.retry_causes = FailureCauses()
        self.unanswered = 0  # attempts that timed out or got no answer
        self.durations = array("d")  # of done items
        self._without_key = UsageTotals()
        self.redacted = 0  # values from which a secret was removed
        self.not_json = 0  # values of which there is only the repr
        self.ends: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()  # why attempts got no result
        self.unfinished: dict[RecordedState, list[str]] = {}
        self.refused = 0  # items that failed because their id was taken
        self.never_begun: int | None = None  # planned items without an entry; None without a plan
        self._most_ids = ids
        self._last = contents.position.seq
        self._open: set[int] = set()  # attempts without an end, of the last session
        self._cut_off = 0  # and of earlier ones, which were killed

    @property
    def last_entry(self) -> int:
        """The number of the newest entry that is scanned."""
        return self._last

    @property
    def attempts(self) -> int:
        return self.ends.total() + len(self._open) + self._cut_off

    @property
    def usage(self) -> Usage:
        """The tokens that all attempts used."""
        return sum((key.used.read() for key in self.keys.values()), self._without_key.read())

    def count_interrupted(self, *, running: bool) -> int:
        """Return the number of interrupted attempts; *running*: those of the last session may still end."""
        return self.ends["interrupted"] + self._cut_off + (0 if running else len(self._open))

    def scan(self, connection: sqlite3.Connection) -> JournalScan:
        """Scan all entries; call it once."""
        for row in connection.execute(_WALK, (self._last,)):
            self._add_entry(*row)
        for seq, item, error in connection.execute(_REFUSED, (self._last,)):
            self.refused += 1
            cause = self.causes.add(item, error, None)
            if self.collector is not None:
                self.collector.add_refused(seq, item, error, cause)
        plan = Plan(connection, self._last)
        if plan:
            self.never_begun = 0
            for part in plan.id_parts():
                found = self.known.find([replace_surrogates(item_id) for item_id in part], partial(ids_at, connection))
                for item_id, hit in zip(part, found, strict=True):
                    if hit is None:
                        self.never_begun += 1
                        self._keep(RecordedState.PENDING, item_id)
                        if self.collector is not None:
                            self.collector.add_not_begun(item_id)
        return self

    def _add_entry(
        self,
        seq: int,
        at: float,
        kind: str,
        item: str | None,
        token: int | None,
        credential: str | None,
        duration: float | None,
        error: str | None,
        detail: str | None,
        place: str | None,
        code: str | int | None,
        traceback: str | None,
        trouble: str | None,
        usage: str | None,
        redacted: int | None,
        not_json: int,
        number: int | None,
    ) -> None:
        if item is None:
            self._add_event(at, kind, detail)
            return
        figures = None if usage is None else self._add_usage(usage)
        session = self.sessions[-1] if self.sessions else None
        if session is not None:
            session.last_at = at
        state = self.known.state_at(item, seq)  # None: a later entry decides
        if kind == "start":
            if token is not None:
                self._open.add(token)
        elif kind in _ENDS_ATTEMPT and token is not None:
            self._open.discard(token)
            self.ends[kind] += 1
            if trouble is None and kind == "limited":
                trouble = Trouble.LIMITED  # as version 0.1.0 wrote it
            if trouble is not None:
                self.troubles[trouble] += 1
            if kind == "retry":
                self.retry_causes.add(item, error, detail)
            if trouble == Trouble.UNREACHABLE or (kind in ("failed", "retry") and detail == TimeoutError.__name__):
                self.unanswered += 1
            if credential is not None:
                self._add_use(credential, kind, trouble, duration or 0.0, still=state is not None)
        if kind == "done" and state is not None:
            self.durations.append(duration or 0.0)
            self.redacted += bool(redacted)
            self.not_json += not_json
        cause = None
        if kind in ("done", "failed", "duplicate"):
            if session is not None:
                session.finished += 1
            if state is RecordedState.FAILED:
                cause = self.causes.add(item, error, detail, place, code, traceback)
        elif state is not None:
            self._keep(state, item)
        if self.collector is not None:
            self.collector.add_entry(
                item, state, seq, at, kind, token, number, credential, duration, error, trouble, figures, cause
            )

    def _add_event(self, at: float, kind: str, detail: str | None) -> None:
        if kind == "session":
            self._cut_off += len(self._open)
            self._open.clear()
            card = json.loads(detail or "{}")
            self.sessions.append(
                SessionTotals(card["session"], card.get("pid"), card.get("host"), card.get("total"), at, at)
            )
        elif self.sessions:
            session = self.sessions[-1]
            session.last_at = at
            if kind == "closed":
                session.closed = True
            elif kind == "note" and detail is not None and detail.startswith(STOPPED_BY):
                session.note = detail

    def _add_use(self, credential: str, kind: str, trouble: str | None, seconds: float, *, still: bool) -> None:
        key = self.keys.get(credential)
        if key is None:
            key = self.keys[credential] = KeyTotals()
        key.seconds += seconds
        if kind == "done":
            key.done += still
        elif kind == "failed":
            key.failed += still
        elif kind == "retry":
            key.retried += 1
        key.limited += trouble == Trouble.LIMITED
        key.rejected += trouble == Trouble.REJECTED
        key.unreachable += trouble == Trouble.UNREACHABLE

    def _add_usage(self, text: str) -> Mapping[str, Any] | None:
        """Add what an attempt used, by key; return the figures of its item so far."""
        try:
            found = _decode(text)[0]
        except ValueError:
            return None  # edited by hand
        if not isinstance(found, dict):
            return None
        by_key = found.get("keys")
        for name, figures in by_key.items() if isinstance(by_key, dict) else ():
            if not name:
                self._without_key.add(figures)
                continue
            key = self.keys.get(name)
            if key is None:
                key = self.keys[name] = KeyTotals()
            key.used.add(figures)
        return found

    def _keep(self, state: RecordedState, item_id: str) -> None:
        ids = self.unfinished.setdefault(state, [])
        if len(ids) < self._most_ids:
            ids.append(item_id)
