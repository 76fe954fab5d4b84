"""One finished item as a line of JSON, in ``results.jsonl`` and wherever else programs read results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as _quoted
from typing import Final

from ...util.json_encoder import build_encoder
from ..core.records import ItemText
from ..journal.entry_text import replace_surrogates
from ..journal.journal_files import JournalFiles
from ..results import WorkflowResult
from .finished_items import FinishedItem, FinishedItems
from .item_codec import LONGEST_IN_RESULTS, cut_item
from .recorded_facts import NO_FACTS, RecordedFacts, build_flags

_encode = build_encoder()
_NO_ITEM: Final = ItemText(None, {})
_TRUNCATED: Final = '"item_truncated":true,'


def result_lines(
    files: JournalFiles, longest_item: int = LONGEST_IN_RESULTS, *, as_listed: bool = False
) -> Iterator[str]:
    """Yield the lines of all finished items in the journal, as they finished or, *as_listed*, as they were given."""
    for finished in FinishedItems(files).read(as_listed=as_listed):
        yield format_finished(finished, longest_item)


def format_result(
    result: WorkflowResult,
    finished_at: float,
    longest_item: int = LONGEST_IN_RESULTS,
) -> str:
    """Return the line of a new result, which is recorded: its value is JSON, without secrets."""
    flags = build_flags(redacted=result.redacted, value_type=result.value_type)
    finished = FinishedItem(
        replace_surrogates(result.item_id),
        result.outcome,
        result.item_text if longest_item and result.item_text is not None else _NO_ITEM,
        None if result.value is None else _encode(result.value),
        result.value_repr,
        None if result.error is None else replace_surrogates(result.error),
        None if result.success else result.metadata,
        result.attempts,
        result.credential,
        round(result.duration, 4),
        result.index if result.index >= 0 else None,
        round(finished_at, 4),
        RecordedFacts(result.usage, flags) if flags or result.usage is not None else NO_FACTS,
    )
    return format_finished(finished, longest_item)


def format_finished(finished: FinishedItem, longest_item: int = LONGEST_IN_RESULTS) -> str:
    """Return the JSON object of one item, without the item itself if *longest_item* is 0.

    Its value is JSON already and is inserted as it is, because it may be large.
    """
    value_repr, facts, failure = finished.value_repr, finished.facts, finished.failure
    item = _format_item(finished.item, longest_item) if longest_item else ""
    shown = "" if value_repr is None else f'"value_repr":{_quoted(value_repr)},'
    if facts.value_type is not None:
        shown += f'"value_type":{_quoted(facts.value_type)},'
    if facts.redacted:
        shown += '"redacted":true,'
    usage = "null" if facts.usage is None else json.dumps(facts.usage.to_json(), separators=(",", ":"))
    more = ""  # the keys that only a failed item has
    if failure is not None:
        more = "".join(f',"{name}":{json.dumps(failure.get(name))}' for name in ("place", "traceback", "tail"))
    error_type = failure.get("error_type") if failure else None
    index = "null" if finished.index is None else finished.index
    return (
        f'{{"id":{_quoted(finished.id)},"outcome":"{finished.outcome}",{item}"value":{_one_line(finished.value)},{shown}'
        f'"error":{_or_null(finished.error)},"error_type":{_or_null(error_type)},"attempts":{finished.attempts:d},'
        f'"credential":{_or_null(finished.credential)},"duration":{finished.duration!r},"index":{index},'
        f'"finished_at":{finished.finished_at!r},"usage":{usage}{more}}}'
    )


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


def _format_item(item: ItemText, longest: int) -> str:
    if item.text is None:
        return '"item":null,'
    text, cut = cut_item(item.text, longest)
    is_cut = cut or item.flags.get("item_truncated")
    return f'"item":{_one_line(text)},{_TRUNCATED if is_cut else ""}'
