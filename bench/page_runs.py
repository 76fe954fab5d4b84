"""Write the journal of a run that never was, as large as asked for: what the page is measured with."""

from __future__ import annotations

import heapq
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from agentos.runs.journal import Journal
from agentos.runs.journal.entry_text import encode_row

KEYS = 8
SLOTS = 4
_TRACEBACK = "Traceback (most recent call last):\n  File 'work.py', line 12, in ask\n    raise KeyError(name)\nKeyError"


def write_run(folder: Path, items: int) -> None:
    """Write a run over eight keys with four slots each: 1 % failed, 2 % rate-limited before, 1 % retried before."""
    folder.mkdir(parents=True)
    journal = Journal.open(folder, worker="bench", total=items)
    writer = journal.writer(on_committed=_ignore, on_trouble=_ignore, on_lost=_ignore)
    began = time.time() - 1.3 * items / (KEYS * SLOTS)
    for start in range(0, items, 1_000):  # as the plan of a list is written
        ids = [f"item-{number:07d}" for number in range(start, min(items, start + 1_000))]
        whole = f"{items:016x}" if start + 1_000 >= items else None
        writer.put(encode_row(began, "plan", fingerprint=whole, detail=json.dumps(ids)))
    for row in _build_rows(items, began):
        writer.put(row)
        if writer_is_full(writer):
            writer.flush()
    writer.close(600)
    _write_events(folder, items, began)


def writer_is_full(writer: object) -> bool:
    return len(writer._queue) > 20_000  # type: ignore[attr-defined]


def _build_rows(items: int, began: float) -> Iterator[str]:
    """Yield the rows in the order in which attempts end: each slot starts the next item when it is free."""
    chance = random.Random(23)
    running: list[tuple[float, int, int, list[str]]] = [
        (began + 1.0, -slot, slot % KEYS, []) for slot in range(KEYS * SLOTS)
    ]
    heapq.heapify(running)
    token = 0
    for number in range(items):
        now, _, key, ended = heapq.heappop(running)
        yield from ended
        end, rows = _build_item(chance, number, now, f"key-{key + 1}", token)
        token += 2
        heapq.heappush(running, (end, number, key, rows))
    while running:
        yield from heapq.heappop(running)[3]


def _build_item(chance: random.Random, number: int, now: float, key: str, token: int) -> tuple[float, list[str]]:
    """Return when the item ends, and its rows."""
    item, attempt, rows = f"item-{number:07d}", 1, []
    usage = {"input": 200 + chance.randrange(800), "output": chance.randrange(600)}
    usage |= {"cache_read": 0, "cache_write": 0, "reasoning": 0}
    fate = chance.random()
    if fate < 0.03:
        duration = chance.uniform(0.05, 0.4)
        now += duration
        kind = "limited" if fate < 0.02 else "retry"
        detail = {"type": "RateLimited", "trouble": "limited"} if kind == "limited" else {"type": "ReadTimeout"}
        error = "429 Too Many Requests" if kind == "limited" else "ReadTimeout"
        facts = (key, duration, None, None, error, json.dumps(detail))
        rows.append(encode_row(now, kind, item, token + 1, attempt, *facts))
        attempt += kind == "retry"
    duration = chance.lognormvariate(0.0, 0.6)
    now += duration
    content = json.dumps({"id": item, "prompt": f"Summarise document {number} in two sentences."})
    used = json.dumps({**usage, "keys": {key: usage}})
    if fate > 0.99:
        cause = number % 7
        failure = {"type": "KeyError", "place": f"work.py:{12 + cause} in ask", "traceback": _TRACEBACK}
        ended = (None, f"'field{cause}' of {item}", json.dumps(failure), content, used)
        rows.append(encode_row(now, "failed", item, token + 2, attempt, key, duration, None, *ended))
    else:
        value = json.dumps(f"Document {number} is about {chance.randrange(1_000)} things, mostly tea.")
        rows.append(
            encode_row(now, "done", item, token + 2, attempt, key, duration, None, value, None, None, content, used)
        )
    return now, rows


def _write_events(folder: Path, items: int, began: float) -> None:
    length = items / (KEYS * SLOTS) * 1.2
    with open(folder / "events.jsonl", "w", encoding="utf-8") as file:
        os.chmod(file.fileno(), 0o600)
        for number in range(min(2_000, int(length) // 30 + 1)):
            since = began + number * 30.0
            word = ("workers", "quota", "slots")[number // 5 % 3]
            event = {"at": since + 30, "kind": "bound", "since": since, "until": since + 30, "parallel": 32}
            file.write(json.dumps({**event, "running": 20.0, "by": {word: 30.0}, "idle": {word: 12.0}}) + "\n")


def _ignore(_: object) -> None:
    pass
