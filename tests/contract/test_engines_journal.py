"""The contract of every engine with a journal: a recorded item is not repeated, whichever engine resumes."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import sqlite3
import subprocess
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentos import (
    Context,
    CredentialCoordinator,
    JournalInUse,
    JournalMismatch,
    ParallelCoordinator,
    RateLimited,
    Transient,
    WorkflowResult,
)
from agentos.runs.journal import locate_files
from agentos.testing import FakeClock
from tests.runs.core.invariants import (
    j2_every_item_is_in_one_state,
    l5_results_have_the_current_token,
    one_final_entry,
)

from ..runs.journal import independent_reader
from .engine_contract import ENGINES, Engine, Events, Gate, Story, by_id, eventually, secrets, wait_for_alarm

MakePool = Callable[..., CredentialCoordinator]

SECRET = "sk-journal/0123456789+abcdefghij"


class HostileRepr:
    """A value that is not JSON, and raises when it is to show itself."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        raise self.error


class HostileEqual(dict[str, int]):
    """A value that raises when it is compared with another."""

    def __eq__(self, other: object) -> bool:
        raise KeyboardInterrupt


class HostileItems(dict[str, int]):
    """A value that raises when its JSON is to be made."""

    def items(self) -> Any:
        raise GeneratorExit


class HostileReduce(HostileRepr):
    """A value that raises when it is to be pickled, too."""

    def __reduce__(self) -> Any:
        raise self.error


HOSTILE: list[Callable[[], Any]] = [
    lambda: HostileRepr(SystemExit(3)),
    lambda: HostileRepr(asyncio.CancelledError()),
    lambda: HostileRepr(BaseException("of its own")),
    lambda: HostileEqual(a=1),
    lambda: HostileItems(a=1),
    lambda: HostileReduce(SystemExit(4)),
]


class HostileError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise SystemExit(5)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A run folder; at the end an independent reader finds every item in one state, and one final entry of each."""
    path = tmp_path / "run"
    yield path
    if path.exists():
        view = independent_reader.read(path)
        entries = [(entry["kind"], entry["item"], entry["token"]) for entry in view.entries]
        assert j2_every_item_is_in_one_state(list(view.states), view.states) is None
        assert l5_results_have_the_current_token(entries) is None
        assert one_final_entry(entries) is None


def journaled(folder: Path, workers: int = 2, **options: Any) -> ParallelCoordinator:
    options.setdefault("worker_version", "contract")
    return ParallelCoordinator(workers, options.pop("pool", None), journal=folder, **options)


async def double(item: int, key: str | None) -> int:
    return item * 2


async def never(item: Any, key: str | None) -> None:
    raise AssertionError(f"{item} was run again")


def kinds_of(folder: Path, item_id: str) -> list[str]:
    """Return the journal's records of an item, except starts, which are left out if the end was recorded first."""
    return [e["kind"] for e in independent_reader.read(folder).entries if e["item"] == item_id and e["kind"] != "start"]


# -- resume -------------------------------------------------------------------------------------------------------


def test_done_items_come_back_with_their_value_in_any_order_of_the_input(engine: Engine, folder: Path) -> None:
    items = [{"n": n, "text": "ä" * n} for n in range(10)]

    def id_of(item: dict[str, Any]) -> str:
        return f"i{item['n']}"

    ran: list[str] = []

    async def body(item: dict[str, Any], key: str | None) -> Any:
        ran.append(id_of(item))
        return {"of": item["n"], "parts": [1.5, None, "ü"]}

    engine.execute(journaled(folder), items[:6], engine.worker(body), id_of)
    ran.clear()
    shuffled = [dict(reversed(item.items())) for item in items]
    random.Random(4).shuffle(shuffled)
    run = journaled(folder)
    stats, results = engine.execute(run, shuffled, engine.worker(body), id_of)

    assert sorted(ran) == [f"i{n}" for n in range(6, 10)]
    assert {r.item_id: r.cached for r in results} == {f"i{n}": n < 6 for n in range(10)}
    assert all(r.value == {"of": int(r.item_id[1:]), "parts": [1.5, None, "ü"]} for r in results)
    assert (stats.total, stats.cached, stats.success_count) == (10, 6, 10)
    assert run.get_checkpoints() == []


@pytest.mark.parametrize("second", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_journal_of_one_engine_is_resumed_by_any_other(
    engine: Engine, second: Engine, streamed: bool, folder: Path
) -> None:
    engine.execute(journaled(folder), range(4), engine.worker(double))
    ran: list[int] = []

    async def body(item: int, key: str | None) -> int:
        ran.append(item)
        return item * 2

    run = journaled(folder)
    if streamed:
        results = second.stream(run, iter(range(8)), second.worker(body))
    else:
        _, results = second.execute(run, range(8), second.worker(body))

    assert sorted(ran) == [4, 5, 6, 7]
    assert sorted((r.value, r.cached) for r in results) == [(2 * n, n < 4) for n in range(8)]


def test_a_third_time_changes_nothing(engine: Engine, folder: Path) -> None:
    for _ in range(2):
        engine.execute(journaled(folder), range(5), engine.worker(double))
    before = [e for e in independent_reader.read(folder).entries if e["item"] is not None]

    engine.execute(journaled(folder), iter(range(5)), engine.worker(never))

    assert [e for e in independent_reader.read(folder).entries if e["item"] is not None] == before


def values_of(results: list[WorkflowResult]) -> dict[str, tuple[Any, ...]]:
    return {each.item_id: (each.value, each.value_repr, each.value_type, each.redacted) for each in results}


def test_a_first_run_returns_the_values_that_a_resumed_one_returns(engine: Engine, folder: Path) -> None:
    given = [{1, 2}, (1, "b"), Decimal("1.50"), b"text", {1: date(2026, 7, 1)}, [1, 2j], "plain", None, math.nan]

    async def body(item: int, key: str | None) -> Any:
        return given[item]

    stats, first = engine.execute(journaled(folder), range(len(given)), engine.worker(body))
    again_stats, again = engine.execute(journaled(folder), range(len(given)), engine.worker(never))

    assert values_of(first) == values_of(again)
    assert values_of(first)["0"] == ([1, 2], None, "set", False)
    assert values_of(first)["4"] == ({"1": "2026-07-01"}, None, None, False)
    assert values_of(first)["5"] == (None, "[1, 2j]", "list", False)
    assert stats.not_json == again_stats.not_json == 1


def test_without_a_journal_the_value_is_the_object_itself(engine: Engine) -> None:
    async def body(item: int, key: str | None) -> Any:
        return {item}

    _, results = engine.execute(ParallelCoordinator(1), [7], engine.worker(body))

    assert values_of(results)["7"] == ({7}, None, None, False)


def test_a_value_that_is_not_json_is_told_by_its_repr(engine: Engine, folder: Path) -> None:
    async def body(item: int, key: str | None) -> Any:
        return [1, 2j] if item == 0 else None

    engine.execute(journaled(folder), [0, 1], engine.worker(body))
    _, again = engine.execute(journaled(folder), [0, 1], engine.worker(never))

    cached = by_id(again)
    assert (cached["0"].success, cached["0"].value, cached["0"].value_repr) == (True, None, "[1, 2j]")
    assert (cached["1"].success, cached["1"].value, cached["1"].value_repr) == (True, None, None)


def test_failed_items_are_cached_unless_they_are_to_be_tried_again(engine: Engine, folder: Path) -> None:
    async def body(item: int, key: str | None) -> int:
        if item == 1:
            raise ValueError("not today")
        return item

    engine.execute(journaled(folder), range(3), engine.worker(body))
    _, cached = engine.execute(journaled(folder), range(3), engine.worker(never))
    stats, again = engine.execute(journaled(folder, retry_failed=True), range(3), engine.worker(double))

    failed = by_id(cached)["1"]
    assert (failed.success, failed.error, failed.cached, failed.outcome) == (False, "not today", True, "failed")
    found = by_id(again)
    assert (found["1"].success, found["1"].value, found["1"].cached, found["1"].attempts) == (True, 2, False, 2)
    assert (found["0"].cached, found["2"].cached, stats.cached) == (True, True, 2)
    assert kinds_of(folder, "1") == ["failed", "done"]


def test_what_was_interrupted_or_never_begun_runs_again_and_attempts_go_on_counting(
    engine: Engine, folder: Path, gate: Gate
) -> None:
    async def stuck(item: int, key: str | None) -> int:
        if item < 2:
            return item
        await gate.wait_stubbornly(item)
        return -1

    run = journaled(folder, 1)
    story = Story(engine, run, range(5), engine.worker(stuck))
    gate.wait_for(1)
    run.shutdown(force=True)
    story.end()
    states = independent_reader.read(folder).states
    assert states == {"0": "done", "1": "done", "2": "interrupted"}
    assert run.get_checkpoints() == ["2", "3", "4"]
    gate.open()
    stats, results = engine.execute(journaled(folder, 1), range(5), engine.worker(double))

    found = by_id(results)
    assert [found[str(n)].cached for n in range(5)] == [True, True, False, False, False]
    assert [found[str(n)].attempts for n in range(5)] == [1, 1, 2, 1, 1]
    assert found["2"].value == 4
    assert stats.success_count == 5


def test_attempts_that_failed_for_a_while_are_counted_over_runs(engine: Engine, folder: Path, gate: Gate) -> None:
    clock = FakeClock()
    told = Events()

    async def body(item: int, key: str | None) -> None:
        raise Transient("503")

    run = journaled(folder, 1, retries=5, clock=clock, on_progress=told)
    story = Story(engine, run, [0], engine.worker(body))
    told.wait_for("item_retried")
    run.shutdown()
    story.end()
    assert independent_reader.read(folder).states == {"0": "pending"}
    _, results = engine.execute(journaled(folder, 1), [0], engine.worker(double))

    assert (results[0].attempts, results[0].success) == (2, True)


def test_tokens_go_on_growing_over_runs(engine: Engine, folder: Path) -> None:
    for upto in (2, 4, 6):
        engine.execute(journaled(folder), range(upto), engine.worker(double))

    tokens = [e["token"] for e in independent_reader.read(folder).entries if e["kind"] == "done"]
    assert len(set(tokens)) == len(tokens) == 6
    assert max(tokens[:2]) < min(tokens[2:4]) <= max(tokens[2:4]) < min(tokens[4:])


# -- what does not belong together --------------------------------------------------------------------------------


def test_another_worker_is_refused_unless_it_is_said_to_be_the_same(engine: Engine, folder: Path) -> None:
    engine.execute(journaled(folder, worker_version=None), range(2), engine.worker(double))

    with pytest.raises(JournalMismatch, match=r"another worker: recorded .*:double, now .*:never"):
        engine.execute(journaled(folder, worker_version=None), range(2), engine.worker(never))
    named = f"{double.__module__}:{double.__qualname__}"
    stats, _ = engine.execute(journaled(folder, worker_version=named), range(2), engine.worker(never))
    assert stats.cached == 2


def test_a_changed_item_of_a_list_is_named_before_anything_starts(engine: Engine, folder: Path) -> None:
    items = [{"id": n, "text": "as it was"} for n in range(4)]
    engine.execute(journaled(folder), items, engine.worker(partly), lambda item: item["id"])
    items[2] = {"id": 2, "text": "another"}
    before = independent_reader.read(folder).states

    with pytest.raises(JournalMismatch, match=r"content of 1 items: recorded '2' [0-9a-f]{16}, now '2' [0-9a-f]{16}"):
        engine.execute(journaled(folder), [*items, {"id": 9}], engine.worker(never), lambda item: item["id"])
    assert independent_reader.read(folder).states == before


async def partly(item: dict[str, Any], key: str | None) -> str:
    return str(item["text"])


def test_a_changed_item_of_an_iterator_fails_and_the_recorded_result_stays(engine: Engine, folder: Path) -> None:
    items = [{"id": n, "text": "as it was"} for n in range(3)]
    engine.execute(journaled(folder), items, engine.worker(partly), lambda item: item["id"])
    changed = [items[0], {"id": 1, "text": "another"}, items[2], {"id": 3, "text": "new"}]
    stats, results = engine.execute(journaled(folder), iter(changed), engine.worker(partly), lambda item: item["id"])

    found = by_id(results)
    assert "the item changed since its result was recorded" in str(found["1"].error)
    assert [found[str(n)].cached for n in (0, 1, 2, 3)] == [True, False, True, False]
    assert (stats.success_count, stats.failed) == (3, 1)
    assert kinds_of(folder, "1") == ["done", "duplicate"]
    _, as_it_was = engine.execute(journaled(folder), items, engine.worker(never), lambda item: item["id"])
    assert by_id(as_it_was)["1"].value == "as it was"


def test_a_failed_item_may_be_changed_if_it_is_to_be_tried_again(engine: Engine, folder: Path) -> None:
    engine.execute(journaled(folder), [{"id": 0, "txet": "x"}], engine.worker(partly), lambda item: item["id"])

    with pytest.raises(JournalMismatch):
        engine.execute(journaled(folder), [{"id": 0, "text": "x"}], engine.worker(partly), lambda item: item["id"])
    run = journaled(folder, retry_failed=True)
    _, results = engine.execute(run, [{"id": 0, "text": "x"}], engine.worker(partly), lambda item: item["id"])
    assert results[0].value == "x"


def test_an_item_that_is_not_json_is_known_by_its_id(engine: Engine, folder: Path) -> None:
    def id_of(item: Any) -> str:
        return "the one"

    async def body(item: Any, key: str | None) -> str:
        return "done"

    engine.execute(journaled(folder), [object()], engine.worker(body), id_of)
    _, results = engine.execute(journaled(folder), [object()], engine.worker(never), id_of)

    assert results[0].cached


@pytest.mark.parametrize("item_id", ["nul\0nul", "half \ud800 pair", "ünï ✓", "x" * 5_000, "'; drop table entries; --"])
def test_any_text_can_be_an_id(engine: Engine, folder: Path, item_id: str) -> None:
    _, first = engine.execute(journaled(folder), [1], engine.worker(double), lambda item: item_id)
    _, again = engine.execute(journaled(folder), [1], engine.worker(never), lambda item: item_id)

    assert [(r.item_id, r.value, r.cached) for r in (*first, *again)] == [(item_id, 2, False), (item_id, 2, True)]


def test_a_second_run_on_the_same_journal_is_refused(engine: Engine, folder: Path, gate: Gate) -> None:
    async def body(item: int, key: str | None) -> None:
        await gate.wait()

    story = Story(engine, journaled(folder), range(2), engine.worker(body))
    gate.wait_for(1)
    with pytest.raises(JournalInUse):
        engine.execute(journaled(folder), range(2), engine.worker(never))
    gate.open()
    stats, _ = story.end()
    assert stats.success_count == 2


# -- what is written down -----------------------------------------------------------------------------------------


def test_every_attempt_is_written_down_in_the_order_it_was_decided(
    engine: Engine, folder: Path, make_pool: MakePool
) -> None:
    clock = FakeClock()
    attempts = Counter[int]()

    async def body(item: int, key: str | None) -> str:
        attempts[item] += 1
        if item == 0 and attempts[item] == 1:
            raise ConnectionError("reset")
        if item == 1:
            raise ValueError("bad item")
        return "ok"

    run = journaled(folder, pool=make_pool(*secrets(2), clock=clock), clock=clock)
    Story(engine, run, [0, 1], engine.worker(body), clock).end()

    assert kinds_of(folder, "0") == ["retry", "done"]
    assert kinds_of(folder, "1") == ["failed"]
    view = independent_reader.read(folder)
    retry, failed = view.of_kind("retry")[0], view.of_kind("failed")[0]
    assert (retry["error"], retry["attempt"], retry["credential"] in {"key-1", "key-2"}) == ("reset", 1, True)
    assert json.loads(failed["detail"])["type"] == "ValueError"
    assert "bad item" in json.loads(failed["detail"])["traceback"]
    assert view.entries[0]["kind"] == "session"
    assert view.entries[-1]["kind"] == "closed"
    assert [json.loads(e["detail"]) for e in view.of_kind("plan")] == [["0", "1"]]


def test_a_result_is_told_only_when_it_is_on_disk(engine: Engine, folder: Path) -> None:
    missing: list[str] = []

    def on_progress(event: Any) -> None:
        if event.kind == "item_finished" and event.item_id not in rows_of(folder, "done"):
            missing.append(str(event.item_id))

    engine.execute(journaled(folder, on_progress=on_progress), range(30), engine.worker(double))

    assert missing == []


def rows_of(folder: Path, kind: str) -> list[str]:
    """As anybody with another connection sees them."""
    connection = sqlite3.connect(f"{locate_files(folder).db.as_uri()}?mode=ro", uri=True, timeout=10)
    try:
        found = connection.execute("select item from entries where kind = ? order by seq", (kind,)).fetchall()
    finally:
        connection.close()
    return [item for (item,) in found]


def test_with_a_strict_start_it_is_on_disk_before_the_worker_is_called(
    engine: Engine, folder: Path, make_pool: MakePool
) -> None:
    seen: list[bool] = []

    async def body(item: int, key: str | None) -> int:
        seen.append(str(item) in rows_of(folder, "start"))
        return item

    run = journaled(folder, 4, pool=make_pool(*secrets(3)), start="strict")
    stats, _ = engine.execute(run, range(12), engine.worker(body))

    assert seen == [True] * 12
    assert stats.success_count == 12
    assert sorted(rows_of(folder, "start"), key=int) == [str(n) for n in range(12)]


@pytest.mark.parametrize("value", ["too late", "unrecordable"])
def test_a_late_result_is_evidence_and_never_a_result(
    engine: Engine, folder: Path, make_pool: MakePool, gate: Gate, value: str
) -> None:
    clock = FakeClock()
    pool = make_pool(*secrets(2), clock=clock)
    last = Gate()

    async def body(item: int, key: str | None) -> Any:
        if item == 0:
            await gate.wait_stubbornly()
            return HostileRepr(SystemExit(3)) if value == "unrecordable" else value
        await last.wait()
        return "in time"

    told = Events()
    run = journaled(folder, 1, pool=pool, timeout=10, on_progress=told, clock=clock)
    story = Story(engine, run, [0, 1], engine.worker(body))
    gate.wait_for(1)
    clock.advance(10.0)
    if engine.coroutines:
        wait_for_alarm(clock, 1010.0 + engine.clean_up)
        clock.advance(engine.clean_up)
    told.wait_for("item_finished", "0")
    last.wait_for(1)
    gate.open()
    eventually(lambda: rows_of(folder, "late") == ["0"])
    last.open()
    _, results = story.end()

    assert by_id(results)["0"].success is False
    assert by_id(results)["1"].value == "in time"
    assert kinds_of(folder, "0") == ["failed", "late"]
    late = independent_reader.read(folder).of_kind("late")[0]
    assert late["credential"] == by_id(results)["0"].credential
    if value == "unrecordable":
        assert late["value"] is None
        assert "SystemExit" in late["detail"]
    else:
        assert json.loads(late["value"]) == value
    _, cached = engine.execute(journaled(folder), [0, 1], engine.worker(never))
    assert (by_id(cached)["0"].success, by_id(cached)["0"].value) == (False, None)


def test_items_that_a_limit_stopped_are_parked_in_the_journal(
    engine: Engine, folder: Path, make_pool: MakePool
) -> None:
    clock = FakeClock()
    told = Events()

    async def body(item: int, key: str | None) -> None:
        raise RateLimited(3600)

    run = journaled(folder, 1, pool=make_pool(*secrets(1), clock=clock), clock=clock, on_progress=told)
    story = Story(engine, run, [0, 1], engine.worker(body))
    told.wait_for("item_limited", "0")
    run.shutdown()
    stats, results = story.end()

    assert (results, stats.parked, stats.limited) == ([], 1, 1)
    assert independent_reader.read(folder).states == {"0": "parked"}
    _, again = engine.execute(journaled(folder), [0, 1], engine.worker(double))
    assert by_id(again)["0"].attempts == 2


def test_a_checkpoint_is_found_by_the_next_attempt_and_gone_when_the_item_is_done(engine: Engine, folder: Path) -> None:
    async def body(item: str, key: str | None, context: Context) -> str:
        if context.checkpoint.exists():
            return context.checkpoint.read_text()
        context.checkpoint.write_text(f"half of {item}")
        raise ValueError("the other half is missing")

    worker = engine.worker(body, context=True)
    engine.execute(journaled(folder), ["../a", "b"], worker)
    assert len(list((folder / "checkpoints").iterdir())) == 2
    _, results = engine.execute(journaled(folder, retry_failed=True), ["../a", "b"], worker)

    assert {r.value for r in results} == {"half of ../a", "half of b"}
    assert not (folder / "checkpoints").exists()


# -- secrets ------------------------------------------------------------------------------------------------------


def forms(secret: str) -> list[str]:
    raw = secret.encode()
    return [
        secret,
        secret[:19],  # 16 after its prefix
        secret[-16:],
        urllib.parse.quote(secret, safe=""),
        raw.hex(),
        raw.hex().upper(),
        base64.b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        base64.b64encode(b"x:" + raw).decode()[4:40],
        json.dumps(secret)[1:-1],
    ]


def test_no_secret_is_in_the_files_of_a_journal_however_a_worker_lets_it_out(
    engine: Engine, folder: Path, tmp_path: Path, make_pool: MakePool, gate: Gate
) -> None:
    pool = make_pool(SECRET)
    ways = forms(SECRET)
    copy = tmp_path / "copy"

    async def body(item: int, key: str | None) -> Any:
        way = ways[item // 4 % len(ways)]
        if item == 4 * len(ways):  # the last one: all others are in the log by now
            eventually(lambda: len(rows_of(folder, "done")) + len(rows_of(folder, "failed")) == item)
            # By another process: closing a file of the journal in this one would drop SQLite's locks on it.
            subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
            return None
        if item % 4 == 0:
            return {"key": way, way: [f"Bearer {way}"]}
        if item % 4 == 1:
            return {way}
        if item % 4 == 2:
            raise ValueError(f"401 for {way}")
        try:
            raise KeyError(way)
        except KeyError as error:
            raise RuntimeError("in the wrong way") from error

    engine.execute(journaled(folder, 1, pool=pool), range(4 * len(ways) + 1), engine.worker(body))

    files = [file for place in (folder, copy) for file in place.rglob("*") if file.is_file()]
    assert any(file.name.endswith("-wal") and file.stat().st_size > 10_000 for file in files)
    for file in files:
        content = file.read_bytes()
        assert [way for way in ways if way.encode() in content] == [], f"in {file}"
    assert independent_reader.read(folder).states["2"] == "failed"


def test_a_value_whose_methods_raise_what_ends_programs_fails_its_item_and_nothing_else(
    engine: Engine, folder: Path
) -> None:
    async def body(item: int, key: str | None) -> Any:
        if item == len(HOSTILE):
            raise HostileError
        return HOSTILE[item]() if item < len(HOSTILE) else "good"

    items = range(len(HOSTILE) + 4)
    stats, results = engine.execute(journaled(folder, 2), items, engine.worker(body))

    assert stats.success_count == 3
    found = by_id(results)
    assert [found[str(item)].success for item in items] == [False] * (len(HOSTILE) + 1) + [True] * 3
    names = ["SystemExit", "CancelledError", "BaseException: of its own", "KeyboardInterrupt", "GeneratorExit"]
    for item, name in enumerate(names):
        assert name in str(found[str(item)].error)
    assert "SystemExit" in f"{found['5'].metadata['error_type']} {found['5'].error}"
    assert found["6"].error == "HostileError"
    _, cached = engine.execute(journaled(folder), items, engine.worker(never))
    assert [result.success for result in sorted(cached, key=lambda each: int(each.item_id))] == [False] * 7 + [True] * 3
