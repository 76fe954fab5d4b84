"""A run of another process is followed from its folder: counts, running items, failures, keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.runs.journal import Journal, encode_row
from agentos.runs.journal.writer import JournalWriter
from agentos.runs.report.followed_run import FollowedRun

from ..sample_runs import card, events


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[JournalWriter]:
    folder = tmp_path / "r"
    folder.mkdir()
    card(folder, "items.txt", cwd=tmp_path, keys=["k-1", "k-2"])
    journal = Journal.open(folder, worker="work", total=4)
    made = journal.writer(on_committed=_ignore, on_trouble=_ignore, on_lost=_ignore)
    put(made, encode_row(time.time(), "done", "a", 1, 1, "k-1", 0.5))
    yield made
    journal.close(60)


def put(writer: JournalWriter, *rows: str) -> None:
    for row in rows:
        writer.put(row)
    assert writer.flush(60)


def test_what_was_before_is_counted_and_what_comes_is_told(tmp_path: Path, writer: JournalWriter) -> None:
    now = time.time() + 1.0
    put(writer, encode_row(now, "start", "slow", 2, 1, "k-1"), encode_row(100.0, "start", "of a killed session", 9, 1))
    followed = FollowedRun(tmp_path / "r")
    assert (followed.stats.total, followed.stats.completed) == (4, 1)
    assert [item_id for item_id, _ in followed.list_running()] == ["slow"]

    put(
        writer,
        encode_row(110.0, "start", "b", 3, 1),
        encode_row(111.0, "limited", "slow", 2, 1, "k-1", 1.0, error="429"),
        encode_row(112.0, "failed", "b", 3, 1, None, 0.5, error="no tea", detail='{"type": "TeaError"}'),
    )
    told = list(followed.poll())

    assert [(event.kind, event.item_id) for event in told] == [("item_limited", "slow"), ("item_finished", "b")]
    assert told[1].result is not None
    assert told[1].result.error == "no tea"
    assert followed.list_running() == []
    assert (followed.stats.failed, followed.stats.limited, followed.stats.completed) == (1, 1, 2)
    assert list(followed.poll()) == []


def test_keys_have_the_states_that_the_run_recorded(tmp_path: Path, writer: JournalWriter) -> None:
    events(
        tmp_path / "r",
        {"at": 1.0, "kind": "session", "parallel": 7},
        {"at": 2.0, "kind": "key", "name": "k-2", "state": "cooling", "until": 9e9, "why": "429"},
    )

    followed = FollowedRun(tmp_path / "r")

    assert followed.parallel == 7
    assert [(key.name, key.state, key.why) for key in followed.list_keys()] == [
        ("k-1", "available", ""),
        ("k-2", "cooling", "429"),
    ]


def test_the_last_line_of_a_running_item_is_that_of_its_log(tmp_path: Path, writer: JournalWriter) -> None:
    logs = tmp_path / "r" / "logs"
    logs.mkdir(mode=0o700)
    (logs / "slow.log").write_text("one\ntwo\n\n")
    (logs / "slow.log").chmod(0o600)
    followed = FollowedRun(tmp_path / "r")

    assert followed.last_line("slow") == "two"
    assert followed.last_line("other") is None


def _ignore(_: object) -> None:
    pass
