"""Formats 1 and 2 of a journal: what was written by either is read, verified, salvaged and continued."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import JournalDamaged, JournalTooNew
from agentos.runs.exports.result_line import result_lines
from agentos.runs.journal import RecordedState, encode_row, locate_files
from agentos.runs.journal.schema import MIGRATIONS
from agentos.runs.report.item_states import list_items
from agentos.runs.report.journal_access import query_rows, read_verified
from agentos.runs.report.run_report import build_report
from agentos.runs.report.run_summary import build_summary
from agentos.workflows.parallel import ParallelCoordinator

from .independent_reader import Broken, read
from .journal_helpers import PATIENCE, done, fingerprints, opened

OLD = Path(__file__).parents[2] / "fixtures" / "of_0_1_0" / "journal.tar.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A journal of format 1 whose last session was killed; its log is beside it."""
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "journal"


def change(folder: Path, sql: str, *parameters: Any) -> None:
    connection = sqlite3.connect(folder / "journal.sqlite")
    with connection:
        assert connection.execute(sql, parameters).rowcount == 1
    connection.close()


def version(folder: Path) -> int:
    connection = sqlite3.connect(folder / "journal.sqlite")
    try:
        return int(connection.execute("pragma user_version").fetchone()[0])
    finally:
        connection.close()


def commit(folder: Path, *rows: str) -> None:
    journal = opened(folder)
    journal._store.append(rows)
    assert journal.close(PATIENCE)


def test_reading_a_journal_of_format_1_changes_none_of_its_bytes(old: Path) -> None:
    before = fingerprints(old)

    report = build_report(old)
    lines = [json.loads(line) for line in result_lines(locate_files(old))]

    assert report.damage is None
    assert sum(report.counts.values()) == len(list(list_items(locate_files(old)))) == build_summary(old).total
    assert {line["item"] for line in lines} == {None}
    assert query_rows(locate_files(old), "select distinct content, usage, flags from entries") == [(None,) * 3]
    assert fingerprints(old) == before


def test_a_journal_of_format_1_continues_in_format_2_and_its_entries_stay_verified(old: Path) -> None:
    before = read(old).entries

    journal = opened(old, accept_worker=True)
    journal._store.append([done(1)])
    assert journal.close(PATIENCE)

    assert version(old) == 2
    entries = read(old).entries
    assert [{name: entry[name] for name in before[0]} for entry in entries[: len(before)]] == before
    assert entries[-2]["content"] == '{"n": 1}'
    contents = read_verified(locate_files(old))
    assert contents is not None
    assert contents.damage is None


def test_a_damaged_journal_of_format_1_is_rebuilt_in_format_2(old: Path) -> None:
    last = len(read(old).entries)
    change(old, "update entries set error = 'changed' where seq = ?", last)

    with pytest.raises(JournalDamaged):
        opened(old, accept_worker=True)
    opened(old, accept_worker=True, accept_loss=True).close(PATIENCE)

    assert version(old) == 2
    assert [entry["kind"] for entry in read(old).entries[-3:]] == ["note", "session", "closed"]


@pytest.mark.parametrize("column", ["content", "usage", "flags"])
@pytest.mark.parametrize("number", [1, 2])  # an entry with an item, and one without
def test_a_changed_column_of_format_2_breaks_the_chain(tmp_path: Path, column: str, number: int) -> None:
    commit(tmp_path, done(1), done(2))
    change(tmp_path, f"update entries set {column} = '{{}}' where item = ?", f"item-{number}")

    with pytest.raises(JournalDamaged, match="checksum"):
        opened(tmp_path)
    with pytest.raises(Broken):
        read(tmp_path)


def test_a_journal_of_a_later_format_is_refused_by_every_reader(tmp_path: Path) -> None:
    commit(tmp_path, done(1))
    connection = sqlite3.connect(tmp_path / "journal.sqlite")
    connection.execute("pragma user_version = 3")
    connection.close()

    for look in (opened, build_report, lambda folder: list(list_items(locate_files(folder)))):
        with pytest.raises(JournalTooNew, match="format 3"):
            look(tmp_path)
    assert "format 3" in str(build_summary(tmp_path).problem)


def test_code_that_knows_format_1_refuses_format_2_with_both_numbers(tmp_path: Path) -> None:
    commit(tmp_path, done(1))

    with pytest.raises(JournalTooNew) as caught:
        opened(tmp_path, migrations=MIGRATIONS[:1])

    assert (caught.value.version, caught.value.known) == (2, 1)


# -- the kinds of entries that format 2 adds --------------------------------------------------------------------------

ADDED = [
    encode_row(2.0, "gateway_request", None, None, None, "key-a", 0.2, usage='{"input":7}', detail='{"status":200}'),
    encode_row(2.0, "gateway_request", "item-2", None, None, "key-b", 0.2),
    encode_row(2.0, "agent_session", "item-1", detail='{"id":"s-1"}'),
    encode_row(2.0, "agent_session", None, detail='{"id":"s-2"}'),
]


def test_a_journal_with_requests_and_agent_sessions_is_read_like_one_without(tmp_path: Path) -> None:
    commit(tmp_path / "plain", done(1), done(2))
    commit(tmp_path / "mixed", done(1), *ADDED, done(2))

    plain, mixed = (build_report(tmp_path / name) for name in ("plain", "mixed"))

    assert read(tmp_path / "mixed").states == {"item-1": "done", "item-2": "done"}
    assert (mixed.damage, mixed.counts, mixed.keys, mixed.attempts) == (None, plain.counts, plain.keys, plain.attempts)
    for look in (lambda files: list(result_lines(files)), lambda files: list(list_items(files))):
        assert look(locate_files(tmp_path / "mixed")) == look(locate_files(tmp_path / "plain"))
    assert build_summary(tmp_path / "mixed").done == 2


def test_a_journal_with_requests_and_agent_sessions_is_salvaged_and_resumed(tmp_path: Path) -> None:
    commit(tmp_path, encode_row(1.0, "done", "item-1", 1, 1, value='"yes"'), *ADDED)
    commit(tmp_path, done(2))
    change(tmp_path, "update entries set value = '0' where item = 'item-2' and kind = 'done'")

    opened(tmp_path, accept_loss=True).close(PATIENCE)
    results = ParallelCoordinator(journal=tmp_path, accept_worker=True).execute_parallel(
        ["item-1", "item-2"], lambda item, _: f"ran {item}", str
    )[1]

    assert [(result.value, result.cached) for result in sorted(results, key=lambda each: each.item_id)] == [
        ("yes", True),
        ("ran item-2", False),
    ]
    assert [entry["kind"] for entry in read(tmp_path).of_kind("gateway_request", "agent_session")] == [
        *("gateway_request", "gateway_request", "agent_session", "agent_session")
    ]


def test_a_reopened_item_is_pending_until_it_has_a_result_again(tmp_path: Path) -> None:
    commit(tmp_path, done(1), done(2))
    commit(tmp_path, encode_row(3.0, "reopened", "item-1"))

    assert opened_state(tmp_path, "item-1") is RecordedState.PENDING
    assert build_report(tmp_path).counts["done"] == build_summary(tmp_path).done == 1
    assert [json.loads(line)["id"] for line in result_lines(locate_files(tmp_path))] == ["item-2"]

    commit(tmp_path, done(1, value='"again"'))

    report = build_report(tmp_path)
    assert report.counts["done"] == build_summary(tmp_path).done == sum(key.done for key in report.keys) == 2
    assert [json.loads(line)["value"] for line in result_lines(locate_files(tmp_path))] == ["yes", "again"]


def opened_state(folder: Path, item_id: str) -> RecordedState:
    journal = opened(folder)
    (found,) = journal.known.find([item_id], journal.ids_at)
    journal.close(PATIENCE)
    assert found is not None
    return found.state
