"""Read the finished items of a journal: those that are done or failed, with all that their result entry has."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...util.id_digest import id_digest
from ..core.id_set import DigestTable
from ..core.records import ItemText
from ..failures import decode_facts
from ..journal.entry_text import replace_surrogates
from ..journal.journal_files import JournalFiles
from ..report.journal_access import CURRENT, REFUSED, STATE_OF, query_rows, read_journal
from ..report.planned_ids import Plan
from ..results import WorkflowResult
from .recorded_facts import RecordedFacts
from .value_codec import decode_value

DONE: Final = frozenset({"done"})
SETTLED: Final = frozenset({"done", "failed"})  # the next session keeps these
ALL: Final = SETTLED | {"duplicate"}

_PAGE_LENGTH: Final = 500
_FINISHED: Final = (
    f"select seq, kind, item from entries where seq in ({CURRENT} union all {REFUSED}) "  # noqa: S608 (constants)
    "and kind in ('done', 'failed', 'duplicate') order by seq"
)
_PAGE: Final = (
    "select e.seq, e.kind, e.item, e.value, e.error, e.detail, e.attempt, e.credential, e.duration, e.at, "
    "e.content, e.usage, e.flags "
    "from json_each(?) j cross join entries e on e.seq = j.value"
)


@dataclass(slots=True)  # not frozen: that costs 2 us for each result
class FinishedItem:
    """One finished item, as its entry has it: ``value`` and the text of ``item`` are JSON.

    ``index`` is its position in the newest input; None if it is not in it, or if that had no list of ids.
    """

    id: str
    outcome: str
    item: ItemText
    value: str | None
    value_repr: str | None
    error: str | None
    failure: Mapping[str, Any] | None  # the facts about a failure: see ``failures``
    attempts: int
    credential: str | None
    duration: float
    index: int | None
    finished_at: float
    facts: RecordedFacts

    def to_result(self) -> WorkflowResult:
        """Return the item as a run that continues from the journal would return it."""
        return WorkflowResult(
            item_id=self.id,
            success=self.outcome == "done",
            error=self.error,
            duration=self.duration,
            metadata={**(self.failure or {}), "finished_at": self.finished_at},
            value=decode_value(self.value),
            attempts=self.attempts,
            credential=self.credential,
            outcome=self.outcome,
            cached=True,
            value_repr=self.value_repr,
            index=-1 if self.index is None else self.index,
            item=decode_value(self.item.text),
            usage=self.facts.usage,
            redacted=self.facts.redacted,
            value_type=self.facts.value_type,
            item_text=self.item,
        )


class FinishedItems:
    """The finished items of a journal, in the order they finished; none without a journal.

    ``plan`` is the plan that gives their indexes in the input. ``left_out`` counts the items that were not requested,
    once the items have been read.
    """

    def __init__(self, files: JournalFiles) -> None:
        self._files = files
        self._seqs, self._indices, self.plan = (
            read_journal(files, _find_finished) if _has_entries(files) else (array("q"), array("q"), list[int]())
        )
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._seqs)

    def read(self, kinds: frozenset[str] = ALL, *, as_listed: bool = False) -> Iterator[FinishedItem]:
        """Yield the items that ended with an entry of one of *kinds*; *as_listed*: in the order of the input.

        The journal is not kept open between pages, because the consumer may be slow.
        """
        self.left_out = 0
        order: Sequence[int] = range(len(self._seqs))
        if as_listed:  # those that are not in the input come last
            order = array("q", sorted(order, key=lambda place: (self._indices[place] < 0, self._indices[place])))
        for begin in range(0, len(order), _PAGE_LENGTH):
            places = order[begin : begin + _PAGE_LENGTH]
            page = [self._seqs[place] for place in places]
            indices = {self._seqs[place]: self._indices[place] for place in places}
            for seq, kind, *facts in query_rows(self._files, _PAGE, json.dumps(page)):
                if kind in kinds:
                    index = indices[seq]
                    yield _build_item(index if index >= 0 else None, kind, *facts)
                else:
                    self.left_out += 1


def _has_entries(files: JournalFiles) -> bool:
    return bool(files.size(files.db))


def find_plan(files: JournalFiles) -> list[int]:
    """Return the entries of the newest plan."""
    return read_journal(files, lambda connection: Plan(connection).parts) if _has_entries(files) else []


def _find_finished(connection: sqlite3.Connection) -> tuple[array[int], array[int], list[int]]:
    """Return the result entries, the input index of each (-1: none), and the plan that gives these indexes."""
    plan = Plan(connection)
    seqs = array("q")
    numbers = DigestTable(numbers=True)  # by id: index of the result
    for seq, kind, item in connection.execute(_FINISHED):
        if plan and kind != "duplicate":  # the index belongs to the item that has the id
            numbers.add(id_digest(item), len(seqs))
        seqs.append(seq)
    indices = array("q", [-1]) * len(seqs)
    for index, item_id in enumerate(plan.ids()):
        number = numbers.number(id_digest(replace_surrogates(item_id)))
        if number is not None:
            indices[number] = index
    return seqs, indices, plan.parts


def _build_item(
    index: int | None,
    kind: str,
    item: str,
    value: str | None,
    error: str | None,
    detail: str | None,
    attempts: int | None,
    credential: str | None,
    duration: float | None,
    at: float,
    content: str | None,
    usage: str | None,
    flags: str | None,
) -> FinishedItem:
    done = kind == "done"
    facts = RecordedFacts.parse(usage, flags)
    return FinishedItem(
        item,
        STATE_OF[kind].value,
        ItemText(content, facts.flags),
        value,
        detail if done else None,
        error,
        None if done else decode_facts(detail),
        attempts or 0,
        credential,
        duration or 0.0,
        index,
        at,
        facts,
    )
