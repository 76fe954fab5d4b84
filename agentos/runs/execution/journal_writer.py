"""Record a run in its journal, and publish results: after their commit, or at once without a journal."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ...costs.usage_log import NOTHING_USED
from ...errors import JournalMismatch, JournalUnavailable, ValueNotRecorded
from ...pool.redaction import value_windows
from ...util.fingerprint import fingerprint
from ...util.json_encoder import build_encoder
from ...util.locks import acquire_contended
from ..commands.attempt_access import RequestRecord
from ..core.records import Attempt, Item, ItemText
from ..exports.item_codec import encode_item
from ..exports.recorded_facts import RecordedFacts, build_flags
from ..exports.usage_column import encode_usage
from ..exports.value_codec import EncodedValue, decode_value, encode_value
from ..failures import decode_facts
from ..journal import Journal, JournalWriter, RecordedState, StateRow, encode_row, replace_surrogates
from ..output.stream_redaction import Redaction
from ..results import WorkflowResult
from .error_policy import format_error
from .publisher import ResultPublisher
from .run_state import RunState

log = logging.getLogger("agentos")

_AT_ONCE = 1_000

_dump = build_encoder()
CHANGED = "changed"  # the detail of a ``reopened`` entry whose item has another content than before
_FINISHED = (RecordedState.DONE, RecordedState.FAILED)


class JournalEvents(Protocol):
    """The part of a run that is notified of journal failures."""

    def on_journal_trouble(self, what: str | None) -> None: ...

    def on_journal_lost(self, error: JournalUnavailable) -> None: ...

    def finish_if_idle(self) -> None: ...


class NoJournal:
    """Used without a journal: records nothing and publishes results at once."""

    resumes = False
    strict = False
    enabled = False

    def __init__(self, note_published: Callable[[Sequence[WorkflowResult]], None]) -> None:
        self._announce = note_published

    def split_known(self, items: Iterable[Item], fresh: Callable[[Item], None]) -> None:
        for item in items:
            fresh(item)

    def encode_item(self, item: Item) -> None: ...

    def record_start(self, attempt: Attempt) -> None: ...

    def confirm_start(self, attempt: Attempt, confirmed: Callable[[], None]) -> None:
        confirmed()

    def build_row(self, attempt: Attempt, value: Any, now: float) -> tuple[str, EncodedValue]:
        raise NotImplementedError("nothing is recorded")

    def record_done(self, row: str, result: WorkflowResult) -> None:
        self._announce((result,))

    def record_failed(self, attempt: Attempt, result: WorkflowResult, trace: str | None) -> None:
        self._announce((result,))

    def record_refused(self, item: Item, result: WorkflowResult) -> None:
        self._announce((result,))

    def record_end(self, kind: str, attempt: Attempt, text: str | None, trace: str | None) -> None: ...

    def record_late(self, attempt: Attempt, value: Any, text: str | None) -> None: ...

    def record_item(self, kind: str, item: Item) -> None: ...

    def record_note(self, text: str) -> None: ...

    def read_kinds(self, kinds: Sequence[str]) -> list[tuple[str, str, str | None]]:
        return []

    def put_evidence(self, row: str, *, wait: bool) -> None: ...

    def record_request(self, request: RequestRecord) -> None: ...

    def close(self, timeout: float) -> bool:
        return True

    def abandon(self) -> None: ...


class JournalRecorder:
    """Queues starts, results and reasons for the journal, in the order of the decisions.

    ``record_start``, ``record_done``, ``record_failed``, ``record_end``, ``record_refused`` and ``record_item`` are
    called under the run's lock: they only queue.
    """

    enabled = True

    def __init__(self, journal: Journal, state: RunState, publisher: ResultPublisher, events: JournalEvents) -> None:
        self._journal = journal
        self._state = state
        self._publisher = publisher
        self._finish_if_idle = events.finish_if_idle
        self._known = journal.known
        self._retry_failed = state.options.retry_failed
        self._reopen, self._reopen_changed = frozenset(state.options.reopen), state.options.reopen_changed
        self._selects = bool(self._reopen) or self._reopen_changed  # the run executes some items, and no others
        self._selected: set[str] = set()
        self.strict = state.options.start == "strict"
        self.resumes = len(journal.known) > 0 or self._selects
        self.on_unended: Callable[[str, int, float, str | None], object] | None = None  # of attempts without an end
        self._mask = None if state.secrets is None else Redaction(state.secrets.masker, windows=value_windows).masked
        self._warned = False  # of a value that is not JSON
        self._wall = state.clock.wall
        self._writer: JournalWriter = journal.writer(
            on_committed=self._committed, on_trouble=events.on_journal_trouble, on_lost=events.on_journal_lost
        )

    # -- recorded by earlier runs -----------------------------------------------------------------------------

    def compare_list(self, ids: Sequence[str], items: Iterable[Any]) -> bytearray:
        """Compare a list with the journal before anything starts. Return which items have a result that still holds.

        Items to reopen are recorded as such; then the others are not executed, and keep their states. Raises
        ``JournalMismatch`` if other items changed since their result was recorded.
        """
        holds = bytearray(len(ids))
        changed = []
        reopened = []
        given = iter(items)
        for begin in range(0, len(ids), _AT_ONCE):
            some = ids[begin : begin + _AT_ONCE]
            hits = self._known.find([replace_surrogates(item_id) for item_id in some], self._journal.ids_at)
            for index, (item_id, hit, item) in enumerate(zip(some, hits, given, strict=False), start=begin):
                reusable = hit is not None and self._is_reusable(hit.state)
                now = fingerprint(item) if reusable or (hit is not None and self._reopen_changed) else None
                then = None if hit is None else hit.fingerprint
                differs = then is not None and now is not None and then != now
                if item_id in self._reopen or (differs and self._reopen_changed):
                    self._selected.add(item_id)
                    if hit is not None and hit.state in _FINISHED:
                        detail = CHANGED if differs else None
                        reopened.append(encode_row(self._wall(), "reopened", item_id, fingerprint=now, detail=detail))
                    continue
                holds[index] = reusable or self._selects
                if reusable and differs:
                    changed.append((item_id, then, now))
        missing = self._reopen - self._selected
        if missing:
            raise ValueError(f"reopen: no item has the id {min(missing)!r}")
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise JournalMismatch(
                path=str(self._journal.files.db),
                what=f"content of {len(changed)} items",
                recorded=", ".join(f"{item_id!r} {then}" for item_id, then, _ in changed[:3]) + more,
                given=", ".join(f"{item_id!r} {now}" for item_id, _, now in changed[:3]) + more,
            )
        for row in reopened:
            self._writer.put(row)
        if reopened:
            self._writer.flush()  # before the results file is rewritten without them
        return holds

    def _is_reusable(self, state: RecordedState | None) -> bool:
        return state is RecordedState.DONE or (state is RecordedState.FAILED and not self._retry_failed)

    def record_plan(self, ids: Sequence[str]) -> None:
        """Record the ids of the run's items, so that the journal alone shows what is still to be done."""
        parts = [json.dumps(ids[begin : begin + _AT_ONCE]) for begin in range(0, len(ids), _AT_ONCE)]
        plan = fingerprint(parts)
        if plan == self._journal.plan:
            return  # the same input as last time
        for number, part in enumerate(parts, start=1):
            # Only the last part has the fingerprint: a plan without it is incomplete, and is written again.
            whole = plan if number == len(parts) else None
            self._writer.put(encode_row(self._wall(), "plan", fingerprint=whole, detail=part))

    def split_known(self, items: Sequence[Item], fresh: Callable[[Item], None]) -> None:
        """Publish recorded results of the items as cached; pass the other items to *fresh*."""
        if not self.resumes:
            for item in items:
                fresh(item)
            return
        rows: dict[int, StateRow] = {}

        def fetch(seqs: Sequence[int]) -> dict[int, str | None]:
            rows.update((row.seq, row) for row in self._journal.fetch(seqs))
            return {seq: row.item for seq, row in rows.items()}

        named = [item for item in items if not item.fault]
        hits = dict(zip(named, self._known.find([replace_surrogates(item.id) for item in named], fetch), strict=True))
        cached: list[WorkflowResult] = []
        for item in items:
            hit = hits.get(item)
            row = None if hit is None else rows[hit.seq]
            if item.id in self._selected:
                item.attempts = 0 if row is None else row.attempt or 0
                fresh(item)
                continue
            if self._selects and (row is None or not self._is_reusable(row.state)):
                continue  # it stays as it is
            if row is not None:
                if self._is_reusable(row.state) and not _differs(row, item.fingerprint):
                    cached.append(_cached(row, item))
                    continue
                self._restore_item(item, row)
            fresh(item)
        if cached:
            self._state.scheduler.taken += len(cached)
            self._publisher.add_cached(cached)

    def _restore_item(self, item: Item, row: StateRow) -> None:
        """Prepare an item of an earlier run for another run, or set why it cannot be run."""
        if self._is_reusable(row.state):
            item.fault = (
                f"the item changed since its result was recorded (fingerprint {row.fingerprint} then, "
                f"{item.fingerprint} now): give it another id, or use another journal"
            )
            item.duplicate = True  # the recorded result stays
        else:
            item.attempts = row.attempt or 0
            if row.kind == "start" and self.on_unended is not None:
                self.on_unended(item.id, item.attempts, row.at, row.credential)
            item.usage = RecordedFacts.parse(row.usage, row.flags).usage

    # -- recorded by this run ---------------------------------------------------------------------------------

    def encode_item(self, item: Item) -> None:
        """Keep the item as text for its result, outside the lock and before a worker can change it."""
        if item.text is None:
            item.text = encode_item(item.payload, self._mask)

    def record_start(self, attempt: Attempt) -> None:
        if not self.strict:
            self._writer.put_start(_Start(attempt, self._wall()))

    def confirm_start(self, attempt: Attempt, confirmed: Callable[[], None]) -> None:
        """Call *confirmed* once the start is on disk, or never will be (``start="strict"``)."""
        row = _Start(attempt, self._wall()).start_row()
        with self._state.lock:
            wanted = attempt.token in self._state.scheduler.running  # else its end is recorded already
            if wanted:
                self._writer.put(row, confirmed, urgent=True)
        if not wanted:
            confirmed()

    def build_row(self, attempt: Attempt, value: Any, now: float) -> tuple[str, EncodedValue]:
        """Build the row of a success, on the worker's thread and outside the lock. Raises ValueNotRecorded."""
        row, encoded = self._row_with_value("done", attempt, now, value, None)
        if encoded.problem is not None and not self._warned:
            self._warned = True
            log.warning(
                "[COORDINATOR] what %s returned is recorded as text only (value_repr), its value is None: %s; return "
                "text, numbers, lists, dicts, dataclasses or pydantic models (said for the first such item only)",
                attempt.item.id,
                self._state.masked(encoded.problem),
            )
        return row, encoded

    def _row_with_value(
        self, kind: str, attempt: Attempt, now: float, value: Any, error: str | None
    ) -> tuple[str, EncodedValue]:
        try:
            encoded = encode_value(value, self._mask)
            if attempt.redacted_output:
                encoded = replace(encoded, redacted=True)
        except BaseException as raised:  # the value's own methods may raise anything
            detail = f"its own methods raised {type(raised).__qualname__}: {format_error(raised)}"
            raise ValueNotRecorded(detail=detail) from raised
        try:
            flags = build_flags(redacted=encoded.redacted, value_type=encoded.type_name)
            has_item = kind == "done"
            row = self._row(kind, attempt, now, encoded.text, error, encoded.repr, has_item=has_item, flags=flags)
        except ValueError as too_long:
            detail = f"{too_long}; write it to a file and return the path of that"
            raise ValueNotRecorded(detail=detail) from None
        return row, encoded

    def _row(
        self,
        kind: str,
        attempt: Attempt,
        now: float,
        value: str | None,
        error: str | None,
        detail: str | None,
        *,
        has_item: bool = False,
        flags: dict[str, Any] | None = None,
    ) -> str:
        """Return the row of an attempt. *has_item*: it decides the item's result, so it keeps the item as well."""
        item, grant = attempt.item, attempt.grant
        text = item.text if has_item else None
        if text is not None and text.flags:
            flags = {**text.flags, **(flags or {})}
        return encode_row(
            self._wall(),
            kind,
            item.id,
            attempt.token,
            attempt.number,
            None if grant is None else grant.key.name,
            now - attempt.began_at,
            item.fingerprint,
            value,
            error,
            detail,
            None if text is None else text.text,
            encode_usage(item.usage, attempt.used),
            _dump(flags) if flags else None,
        )

    def record_done(self, row: str, result: WorkflowResult) -> None:
        self._writer.put(row, result)

    def record_failed(self, attempt: Attempt, result: WorkflowResult, trace: str | None) -> None:
        now = self._state.clock.now()
        self._writer.put(self._row("failed", attempt, now, None, result.error, trace, has_item=True), result)

    def record_end(self, kind: str, attempt: Attempt, text: str | None, trace: str | None) -> None:
        """Record the end of an attempt without a result."""
        self._writer.put(self._row(kind, attempt, self._state.clock.now(), None, text, trace))

    def record_late(self, attempt: Attempt, value: Any, text: str | None) -> None:
        """Record the result of an attempt that had been abandoned."""
        now = self._state.clock.now()
        try:
            row, _ = self._row_with_value("late", attempt, now, value, text)
        except ValueNotRecorded as error:
            row = self._row("late", attempt, now, None, text, self._state.masked(str(error)))
        self._writer.put(row)

    def record_refused(self, item: Item, result: WorkflowResult) -> None:
        """Record an item that failed without being run. If its id is a duplicate, the other item's state must stay."""
        kind = "duplicate" if item.duplicate else "failed"
        text = item.text
        row = encode_row(
            self._wall(),
            kind,
            item.id,
            attempt=item.attempts,
            fingerprint=item.fingerprint,
            error=result.error,
            content=None if text is None else text.text,
            usage=encode_usage(item.usage, NOTHING_USED),
            flags=_dump(text.flags) if text is not None and text.flags else None,
        )
        self._writer.put(row, result)

    def record_item(self, kind: str, item: Item) -> None:
        """Record the state of an unfinished item at the end of the run."""
        row = encode_row(
            self._wall(),
            kind,
            item.id,
            attempt=item.attempts,
            fingerprint=item.fingerprint,
            usage=encode_usage(item.usage, NOTHING_USED),
        )
        self._writer.put(row)

    def record_note(self, text: str) -> None:
        self._writer.put(encode_row(self._wall(), "note", detail=text))

    def read_kinds(self, kinds: Sequence[str]) -> list[tuple[str, str, str | None]]:
        """Return item, kind and detail of the entries of these kinds, in order."""
        return self._journal.read_kinds(kinds)

    def put_evidence(self, row: str, *, wait: bool) -> None:
        """Record an entry that changes no item's state; *wait* until it is on disk."""
        self._writer.put(row)
        if wait:
            self._writer.flush()

    def record_request(self, request: RequestRecord) -> None:
        """Record a request that an attempt made through the gateway. Its usage is that of the attempt as well."""
        self._writer.put(
            encode_row(
                request.at,
                "gateway_request",
                request.item,
                attempt=request.attempt,
                credential=request.key,
                duration=request.seconds,
                detail=self._state.masked(_dump(request.to_json())),
            )
        )

    def _committed(self, receipts: list[Any]) -> None:
        if not self.strict:
            self._publish(receipts)
            return
        results = [receipt for receipt in receipts if isinstance(receipt, WorkflowResult)]
        if results:
            self._publish(results)
        for receipt in receipts:
            if not isinstance(receipt, WorkflowResult):
                receipt()  # a confirmation of a start, for which a worker waits

    def _publish(self, results: Sequence[WorkflowResult]) -> None:
        """Publish results that are on disk."""
        self._publisher.write_results(results)
        state, lock = self._state, self._state.lock
        if not lock.acquire(False):
            acquire_contended(lock)
        try:
            self._publisher.note_published(results)
        finally:
            lock.release()
        self._publisher.announce(results)
        if state.scheduler.exhausted or state.closing:
            self._finish_if_idle()

    def close(self, timeout: float) -> bool:
        return self._writer.close(timeout)

    def abandon(self) -> None:
        self._writer.abandon()


Recorder = NoJournal | JournalRecorder


class _Start:
    """The start of an attempt: written with the next commit, unless its end is recorded by then."""

    __slots__ = ("_at", "_attempt")

    def __init__(self, attempt: Attempt, at: float) -> None:
        self._attempt = attempt
        self._at = at

    @property
    def ended(self) -> bool:
        return self._attempt.ended

    def start_row(self) -> str:
        attempt = self._attempt
        grant = attempt.grant
        return encode_row(
            self._at,
            "start",
            attempt.item.id,
            attempt.token,
            attempt.number,
            None if grant is None else grant.key.name,
            None,
            attempt.item.fingerprint,
            usage=encode_usage(attempt.item.usage, NOTHING_USED),  # of its earlier attempts
        )


def _differs(row: StateRow, now: str | None) -> bool:
    """True if the item differs from the recorded one, as far as that is known."""
    return row.fingerprint is not None and now is not None and row.fingerprint != now


def _cached(row: StateRow, item: Item) -> WorkflowResult:
    done = row.kind == "done"
    facts = RecordedFacts.parse(row.usage, row.flags)
    return WorkflowResult(
        item_id=item.id,
        success=done,
        error=row.error,
        duration=row.duration or 0.0,
        value=decode_value(row.value) if done else None,
        attempts=row.attempt or 0,
        credential=row.credential,
        metadata={**({} if done else decode_facts(row.detail)), "finished_at": row.at},
        outcome=row.kind,
        cached=True,
        index=item.index,
        value_repr=row.detail if done else None,
        item=item.payload,
        usage=facts.usage,
        redacted=facts.redacted,
        value_type=facts.value_type,
        item_text=None if row.content is None else ItemText(row.content, facts.flags),
    )
