"""``results.jsonl``: one JSON object per finished item, for programs that want the results and not the journal.

The journal is the authority. At the start of a run the file is rewritten from it, which repairs whatever a crash, a
full disk or an editor did to the file; then results are appended as they come.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import Any, Final

from agentos.errors import JournalError, JournalInUse

from ...util.id_digest import id_digest
from ...util.private_folder import PrivateFolder, folder_of
from ..core.id_set import DigestTable
from ..core.records import ItemText
from ..failures import decode_facts
from ..journal.entry_text import replace_surrogates
from ..journal.journal_files import JournalFiles, locate_files
from ..report.journal_access import CURRENT, REFUSED, STATE_OF, query_rows, read_journal
from ..report.planned_ids import Plan
from ..report.status import find_owner
from ..results import WorkflowResult
from .append_file import AppendOnlyFile, is_ordinary
from .item_codec import LONGEST_IN_RESULTS, cut_item, encode_item
from .recorded_facts import RecordedFacts, build_flags
from .value_codec import EncodedValue, encode_value

log = logging.getLogger("agentos")

RESULTS_NAME: Final = "results.jsonl"

_DONE: Final = frozenset({"done"})
_SETTLED: Final = frozenset({"done", "failed"})  # the next session keeps these
_ALL: Final = _SETTLED | {"duplicate"}

_TRUNCATED: Final = '"item_truncated":true,'

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


class ResultsFile:
    """The results of the run whose journal is at *journal*, in the file *path*.

    The constructor writes what the journal has: every item that is done or failed, except those that this run will add
    again: failed ones with *retry_failed*, and those that every session refuses. *mask* redacts values, as the run does
    before it records them; *with_items* adds each item itself. Disk errors are not raised: they are logged once, and
    `close` or the next run repairs the file. A file in the run's own *folder* is opened through it; any other path
    comes from the user: links are followed, and if it is not a regular file (a pipe, a terminal), results are only
    appended.
    """

    def __init__(
        self,
        path: Path,
        journal: Path | PrivateFolder,
        *,
        retry_failed: bool = False,
        mask: Callable[[str], str] | None = None,
        folder: PrivateFolder | None = None,
        with_items: bool = True,
    ) -> None:
        self.path = path if folder is not None else Path(os.path.realpath(path))  # a link stays one
        self._folder = folder
        self._journal = locate_files(journal)
        self._mask = mask
        self._with_items = with_items
        self._lock = threading.Lock()
        self._lines = AppendOnlyFile(self.path, what="the results file", folder=folder)
        self._ordinary = folder is not None or is_ordinary(self.path)
        self._left_out = 0  # items left out of the rewritten file
        self._plan: list[int] | None = None  # the plan that gave the items their indexes; None: no plan
        kinds = _DONE if retry_failed else _SETTLED
        self._whole = self._rewrite(kinds) if self._ordinary else self._append_all(kinds)

    def add(self, result: WorkflowResult, finished_at: float) -> None:
        """Append *result*, unless it is cached and so already there. Thread-safe."""
        if result.cached:
            return
        line = format_result(result, finished_at, self._mask, with_item=self._with_items)
        with self._lock:
            # After a gap nothing is appended: `close` rewrites the file, or it ends where it is intact.
            if self._whole or not self._ordinary:
                self._whole = self._lines.add(line) and self._whole

    def close(self) -> bool:
        """Rewrite the file if it differs from the closed journal, and return whether it is complete.

        It differs if it lacks lines, lacks items that the run was to add and did not reach, or has indexes of an
        earlier input.
        """
        with self._lock:
            in_place = self._lines.is_same_file()
            self._lines.close()
            if self._ordinary and not (self._whole and in_place and self._is_as_recorded()):
                self._whole = self._rewrite(_ALL)
            return self._whole

    def _is_as_recorded(self) -> bool:
        """Return whether the rewritten part of the file is still up to date."""
        if self._left_out:
            return False
        try:
            return self._plan is None or self._plan == _find_plan(self._journal)
        except JournalError:
            return False  # rewriting logs the reason

    def _rewrite(self, kinds: frozenset[str]) -> bool:
        """Replace the file by the journal's results, atomically."""
        draft = f".{self.path.name}.new"
        try:
            self._check_ownership()
            if self._folder is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with folder_of(self.path, self._folder) as folder:
                try:
                    finished = FinishedItems(self._journal)
                    created = folder.create(draft, 0o666 if self._folder is None else 0o600)
                    with open(created, "w", encoding="ascii", newline="\n") as file:
                        for line in finished.lines(kinds, with_items=self._with_items):
                            file.write(f"{line}\n")
                        file.flush()
                        os.fsync(file.fileno())
                    if self._folder is not None:
                        folder.check(self.path.name)
                    folder.replace(draft, self.path.name)
                    folder.sync()
                    self._left_out, self._plan = finished.left_out, finished.plan if len(finished) else None
                finally:
                    folder.unlink(draft)
        except (OSError, JournalError) as error:
            log.warning(
                "the results file %s cannot be written (%s); the run goes on, its results are in its journal, and the "
                "file is rewritten when it can be",
                self.path,
                error,
            )
            return False
        return True

    def _check_ownership(self) -> None:
        """Raise if another run appends to the file: replacing it would lose that run's lines."""
        owner = find_owner(self._journal.lock)
        if owner is not None and owner.pid != os.getpid():
            raise JournalInUse(path=str(self._journal.db), owner=f"pid {owner.pid}")

    def _append_all(self, kinds: frozenset[str]) -> bool:
        try:
            for line in FinishedItems(self._journal).lines(kinds, with_items=self._with_items):
                self._lines.add(line)
        except JournalError as error:
            log.warning("earlier results cannot be read (%s)", error)
            return False
        return not self._lines.dropped


class FinishedItems:
    """The finished items of a journal, in the order they finished; none without a journal.

    ``plan`` is the plan that gives their indexes in the input. ``left_out`` counts the items that were not requested,
    once the lines have been read.
    """

    def __init__(self, files: JournalFiles) -> None:
        self._files = files
        self._seqs, self._indices, self.plan = (
            read_journal(files, _find_finished) if _has_entries(files) else (array("q"), array("q"), list[int]())
        )
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._seqs)

    def lines(self, kinds: frozenset[str], *, with_items: bool = True) -> Iterator[str]:
        """Yield the lines of items that ended with an entry of one of *kinds*.

        ``index`` is the item's position in the newest input; None if it is not in it, or if that had no list of ids.
        """
        self.left_out = 0
        for begin in range(0, len(self._seqs), _PAGE_LENGTH):
            page = self._seqs[begin : begin + _PAGE_LENGTH].tolist()
            indices = dict(zip(page, self._indices[begin : begin + _PAGE_LENGTH], strict=True))
            for seq, kind, *facts in query_rows(self._files, _PAGE, json.dumps(page)):
                if kind in kinds:
                    index = indices[seq]
                    yield _format_row(index if index >= 0 else None, kind, *facts, with_item=with_items)
                else:
                    self.left_out += 1


def result_lines(files: JournalFiles) -> Iterator[str]:
    """Yield the lines of all finished items in the journal."""
    return FinishedItems(files).lines(_ALL)


def _has_entries(files: JournalFiles) -> bool:
    return bool(files.size(files.db))


def _find_plan(files: JournalFiles) -> list[int]:
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


def _format_row(
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
    *,
    with_item: bool,
) -> str:
    done = kind == "done"
    facts = RecordedFacts.parse(usage, flags)
    return _format_line(
        item,
        STATE_OF[kind].value,
        _format_item(ItemText(content, facts.flags)) if with_item else "",
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


def format_result(
    result: WorkflowResult, finished_at: float, mask: Callable[[str], str] | None, *, with_item: bool = True
) -> str:
    """Return the line of a new result."""
    try:
        encoded = encode_value(result.value, mask)
    except BaseException:  # noqa: BLE001 - its own methods; the journal, which has asked them before, has the value
        encoded = EncodedValue(None, f"<{type(result.value).__name__}>")
    return _format_line(
        replace_surrogates(result.item_id),
        result.outcome,
        _format_item(result.item_text or encode_item(result.item, mask)) if with_item else "",
        encoded.text,
        encoded.repr,
        None if result.error is None else replace_surrogates(result.error),
        None if result.success else result.metadata,
        result.attempts,
        result.credential,
        round(result.duration, 4),
        result.index if result.index >= 0 else None,
        round(finished_at, 4),
        RecordedFacts(
            result.usage,
            build_flags(
                redacted=result.redacted or encoded.redacted, value_type=result.value_type or encoded.type_name
            ),
        ),
    )


def _format_item(item: ItemText) -> str:
    """Return the key of the item, cut to 64 KiB."""
    if item.text is None:
        return '"item":null,'
    text, cut = cut_item(item.text, LONGEST_IN_RESULTS)
    is_cut = cut or item.flags.get("item_truncated")
    return f'"item":{_one_line(text)},{_TRUNCATED if is_cut else ""}'


def _format_line(
    item_id: str,
    outcome: str,
    item: str,
    value: str | None,
    value_repr: str | None,
    error: str | None,
    failure: Mapping[str, Any] | None,
    attempts: int,
    credential: str | None,
    duration: float,
    index: int | None,
    finished_at: float,
    facts: RecordedFacts,
) -> str:
    """Return the JSON object of one item. *value* is JSON already and is inserted as it is, because it may be large.

    *failure* has the facts about a failure; see ``failures``.
    """
    shown = "" if value_repr is None else f'"value_repr":{_quoted(value_repr)},'
    if facts.value_type is not None:
        shown += f'"value_type":{_quoted(facts.value_type)},'
    if facts.redacted:
        shown += '"redacted":true,'
    usage = "null" if facts.usage is None else json.dumps(facts.usage.to_json(), separators=(",", ":"))
    return (
        f'{{"id":{_quoted(item_id)},"outcome":{_quoted(outcome)},{item}"value":{_one_line(value)},{shown}'
        f'"error":{_or_null(error)},"error_type":{_or_null((failure or {}).get("error_type"))},"attempts":{attempts:d},'
        f'"credential":{_or_null(credential)},"duration":{json.dumps(duration)},"index":{json.dumps(index)},'
        f'"finished_at":{json.dumps(finished_at)},"usage":{usage}{_format_failure(failure)}}}'
    )


def _format_failure(failure: Mapping[str, Any] | None) -> str:
    """Return the keys that only a failed item has."""
    if failure is None:
        return ""
    return "".join(f',"{name}":{json.dumps(failure.get(name))}' for name in ("place", "traceback", "tail"))


def _one_line(value: str | None) -> str:
    if value is None:
        return "null"
    # A journal's values are compact ASCII; a manually edited one may not be.
    if value.isascii() and "\n" not in value:
        return value
    try:
        return json.dumps(json.loads(value))
    except ValueError:
        return _quoted(value)


def _or_null(text: str | None) -> str:
    return "null" if text is None else _quoted(text)
