"""The attempts of a run as a trace for ui.perfetto.dev or chrome://tracing: each slot of a key is a track.

The format is the JSON of Chrome's trace viewer. Bars of one track must not overlap, so attempts are put into the first
slot of their key that is free.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from ..runs.exports.event_log import EVENTS_NAME, read_events
from ..runs.report.run_report import scan_run
from .item_columns import ENDS, NO_ITEM, STATES, TROUBLES, ItemColumns

_MICROS: Final = 1000  # in a millisecond
_NO_KEY: Final = "no key"


def write_trace(folder: Path, stream: TextIO) -> None:
    """Write the run in *folder* as a trace. Raises JournalError."""
    columns = ItemColumns()

    def collect() -> ItemColumns:
        nonlocal columns
        columns = ItemColumns()
        return columns

    report, _ = scan_run(folder, collect)
    stream.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    first = True
    for event in _list_events(columns, folder, report.name):
        stream.write(("" if first else ",\n") + json.dumps(event, separators=(",", ":")))
        first = False
    stream.write("\n]}\n")


def _list_events(columns: ItemColumns, folder: Path, name: str) -> Iterator[dict[str, Any]]:
    ids = [line for piece in columns.ids.encode() for line in piece.decode().split("\n")[:-1]]
    attempts = sorted(_list_attempts(columns))
    free: dict[int, list[int]] = {}
    used: set[tuple[int, int]] = set()
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"run {name}"}}
    for start, end, key, row, kind, trouble in attempts:
        slots = free.setdefault(key, [])
        slot = next((place for place, until in enumerate(slots) if until <= start), len(slots))
        if slot == len(slots):
            slots.append(end)
        slots[slot] = end
        if (key, slot) not in used:
            used.add((key, slot))
            if slot == 0:
                yield _name_track("process_name", key, 0, columns.keys[key] or _NO_KEY)
            yield _name_track("thread_name", key, slot, f"slot {slot + 1}")
        item = ids[row] if row != NO_ITEM else "?"
        place = {"pid": key + 1, "tid": slot + 1}
        times = {"ts": start * _MICROS, "dur": max(1, (end - start) * _MICROS)}
        yield {"ph": "X", "name": item, "cat": kind, **place, **times, "args": {"ended": kind, "trouble": trouble}}
        if trouble == "limited":
            yield {"ph": "i", "s": "t", "name": "429", "ts": end * _MICROS, **place}
    began = columns.began or 0.0
    for event in read_events(folder / EVENTS_NAME):
        if event["kind"] == "bound" and isinstance(event.get("since"), (int, float)):
            since = max(0, round((event["since"] - began) * 1000)) * _MICROS
            yield {"ph": "C", "pid": 0, "name": "running items", "ts": since, "args": {"items": event.get("running")}}


def _list_attempts(columns: ItemColumns) -> Iterator[tuple[int, int, int, int, str, str]]:
    for row, code in enumerate(columns.state):
        state = STATES[code]
        if columns.attempts[row] and state in ("done", "failed"):
            end = columns.ended[row]
            yield max(0, end - columns.duration[row]), end, columns.key[row], row, state, ""
    earlier = columns.earlier
    for place, code in enumerate(earlier.kind):
        end = earlier.ended[place]
        start, trouble = max(0, end - earlier.duration[place]), TROUBLES[earlier.trouble[place]]
        yield start, end, earlier.key[place], earlier.item[place], ENDS[code], trouble


def _name_track(what: str, key: int, slot: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": key + 1, "tid": slot + 1, "name": what, "args": {"name": name}}
