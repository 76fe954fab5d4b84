from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from agentos.errors import JournalTooNew
from agentos.runs.journal import locate_files
from agentos.runs.journal.entry_kinds import DECIDES, EVIDENCE
from agentos.runs.journal.schema import MIGRATIONS
from agentos.util.sqlite.migrations import Migration, migrate, newest_version, read_version

from .independent_reader import STATES, read
from .journal_helpers import fingerprints, opened, write

NEXT = Migration(newest_version(MIGRATIONS) + 1, "a table for tests", ("create table extra(a text) strict",))
AFTER = Migration(NEXT.number + 1, "another", ("create table more(a text) strict",))
BAD = Migration(
    NEXT.number, "half of it fails", ("create table extra(a text) strict", "insert into nowhere values (1)")
)


def ask(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(locate_files(path).db)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_a_journal_of_the_format_before_opens_and_keeps_its_entries(tmp_path: Path) -> None:
    write(tmp_path / "run", range(5))
    before = read(tmp_path / "run").entries

    journal = opened(tmp_path / "run", migrations=[*MIGRATIONS, NEXT, AFTER])
    journal.close()

    assert len(journal.known) == 5
    assert read(tmp_path / "run").entries[: len(before)] == before
    assert ask(tmp_path / "run", "pragma user_version") == [(AFTER.number,)]
    assert [row[0] for row in ask(tmp_path / "run", "select number from migrations")] == [1, 2, 3, 4]


def test_a_journal_of_a_later_format_is_refused_and_not_one_byte_changes(tmp_path: Path) -> None:
    opened(tmp_path / "run", migrations=[*MIGRATIONS, NEXT]).close()
    before = fingerprints(tmp_path / "run")

    with pytest.raises(JournalTooNew) as caught:
        opened(tmp_path / "run")

    assert (caught.value.version, caught.value.known) == (NEXT.number, newest_version(MIGRATIONS))
    assert fingerprints(tmp_path / "run") == before


def test_a_step_that_fails_leaves_no_trace() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, MIGRATIONS)

    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, [*MIGRATIONS, BAD])

    assert read_version(connection) == newest_version(MIGRATIONS)
    assert connection.execute("select name from sqlite_schema where name = 'extra'").fetchall() == []
    migrate(connection, [*MIGRATIONS, NEXT])
    assert read_version(connection) == NEXT.number
    connection.close()


def test_people_see_the_latest_state_of_each_item(tmp_path: Path) -> None:
    write(tmp_path / "run", range(3), start=True)

    rows = ask(tmp_path / "run", "select item, state, attempt, credential, value from items order by item")

    assert rows == [(f"item-{n}", "done", 1, "key-a", '"yes"') for n in range(3)]


def test_the_independent_reader_has_the_same_table_of_states() -> None:
    assert DECIDES == STATES
    assert not EVIDENCE & DECIDES.keys()
