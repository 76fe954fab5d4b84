"""Write the report of a run: one HTML file with all its data, which needs no network."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ..runs.exports.event_log import EVENTS_NAME, read_events
from ..runs.journal.journal_files import locate_files
from ..runs.report.run_report import RunReport, scan_run
from .head_facts import HeadFacts, build_head, format_instant
from .html_page import build_report_page
from .item_columns import ItemColumns
from .key_periods import read_key_periods
from .packing import PackedColumns
from .previews import read_texts


@dataclass(frozen=True, slots=True)
class PageData:
    """Everything about a run that its page shows; ``packed`` is the block for the scripts.

    ``last_entry`` is the number of the newest entry that was read; times in the block are relative to ``began``.
    ``journal`` identifies the journal's file: with ``--fresh`` there is another one of the same name.
    """

    report: RunReport
    head: HeadFacts
    packed: bytes
    last_entry: int
    began: float
    journal: str


def read_page_data(folder: Path, *, wall: Callable[[], float] = time.time) -> PageData:
    """Read the run in *folder*. Raises JournalUnavailable if it has no journal, JournalDamaged if none can be read."""
    now, journal = wall(), identify_journal(folder)
    report, tally = scan_run(folder, ItemColumns, wall=lambda: now)
    columns = tally.collector
    assert isinstance(columns, ItemColumns)  # noqa: S101 - for the type checker: it made one
    columns.renumber_causes(tally.causes.list_numbers())
    last_entry = tally.last_entry
    del tally  # it holds the duration of each item
    head = build_head(report, now)
    began = _find_begin(report, columns, now)
    place = {"journal": journal, "last_entry": last_entry}
    packed = _pack(report, head, columns, folder, began, now, place)
    return PageData(report, head, packed, last_entry, began, journal)


def identify_journal(folder: Path) -> str:
    """Return what tells this journal from another one in the same folder; empty if there is none."""
    try:
        return str(os.stat(locate_files(folder).db).st_ino)
    except OSError:
        return ""


def write_report(folder: Path, target: Path, *, wall: Callable[[], float] = time.time) -> RunReport:
    """Write the page of the run in *folder* to *target*, replacing it at once. Raises OSError besides."""
    data = read_page_data(folder, wall=wall)
    target = Path(os.path.realpath(target))  # the file behind a link is replaced, not the link
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(build_report_page(data.head, data.packed, format_instant(wall())))
        if target.exists():
            os.chmod(draft, stat.S_IMODE(target.stat().st_mode))  # else it is for this user alone, as the run's folder
        os.replace(draft, target)
    except BaseException:
        os.unlink(draft)
        raise
    return data.report


def write_page(folder: Path, stream: TextIO, *, wall: Callable[[], float] = time.time) -> None:
    """Write the page of the run in *folder* to *stream*."""
    data = read_page_data(folder, wall=wall)
    stream.writelines(build_report_page(data.head, data.packed, format_instant(wall())))


def _find_begin(report: RunReport, columns: ItemColumns, now: float) -> float:
    """Return the instant to which all times on the page are relative, to the millisecond."""
    began = columns.began
    if began is None:
        began = report.sessions[0].started_at if report.sessions else now
    return round(began * 1000) / 1000


def list_periods(report: RunReport, events: Iterable[Mapping[str, Any]], began: float, now: float) -> dict[str, Any]:
    """Return when keys could not be used, what bounded the run, and the last moment; in milliseconds after *began*."""
    ended_at = report.sessions[-1].ended_at if report.sessions else None
    last = now if ended_at is None else ended_at

    def relative(at: float) -> int:
        return round((at - began) * 1000)

    periods = [
        [name, state, relative(since), relative(until), why]
        for name, state, since, until, why in read_key_periods(events, last)
    ]
    bounds = [
        [relative(each.since), relative(each.until), each.by, each.parallel, each.running]
        for each in report.bounds.periods
    ]
    return {"periods": periods, "bounds": bounds, "last": max(1, relative(last))}


def _pack(
    report: RunReport,
    head: HeadFacts,
    columns: ItemColumns,
    folder: Path,
    began: float,
    now: float,
    place: Mapping[str, Any],
) -> bytes:
    periods = list_periods(report, read_events(folder / EVENTS_NAME), began, now)
    periods["last"] = max(periods["last"], max(columns.ended, default=0))  # the clock may have been set back
    keys = columns.keys
    keys += [name for name in dict.fromkeys(each[0] for each in periods["periods"]) if name not in keys]
    facts: dict[str, Any] = {
        "format": 1,
        "report": _list_numbers(report),
        "head": head.as_json(),
        "began": round(began * 1000),
        **periods,
        **place,
        "keys": keys,
        "error_texts": columns.earlier.texts,
        "texts": read_texts(folder, columns).as_json(),
    }
    return pack_columns(columns).finish(facts)


def _list_numbers(report: RunReport) -> dict[str, Any]:
    """Return the report as ``agentos show --json`` has it, without the long texts of failures: the head has those."""
    facts = report.as_json()
    long = ("text", "error", "traceback")
    facts["failures"] = [{name: fact for name, fact in each.items() if name not in long} for each in facts["failures"]]
    facts["retry_cause"] = None
    return facts


def pack_columns(columns: ItemColumns) -> PackedColumns:
    """Return the columns of items and earlier attempts as parts of a block."""
    packed = PackedColumns()
    packed.add_text("ids", columns.ids.encode(), len(columns))
    packed.add_numbers("state", columns.state)
    packed.add_numbers("key", columns.key)
    packed.add_numbers("attempts", columns.attempts)
    packed.add_numbers("ended", columns.ended, delta=True)
    packed.add_numbers("duration", columns.duration)
    packed.add_numbers("tokens", columns.tokens)
    packed.add_numbers("cause", columns.cause)
    earlier = columns.earlier
    for name in ("item", "kind", "number", "key", "ended", "duration", "trouble", "text"):
        packed.add_numbers(f"earlier.{name}", getattr(earlier, name), delta=name == "ended")
    return packed
