"""Steps that several processes may want to make at once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from agentos.util.sqlite.connect import connect
from agentos.util.sqlite.migrations import (
    Migration,
    expected_schema,
    migrate,
    newest_version,
    read_schema,
    read_version,
)

STEPS = (
    Migration(
        1,
        "the record of all steps",
        ("create table migrations(number integer primary key, name text not null, applied_at real not null) strict",),
    ),
    Migration(2, "a table", ("create table things(name text primary key) strict",)),
)


class Overtaken(sqlite3.Connection):
    """Somebody else makes all steps between our look at the format and our first step."""

    overtake = True

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "begin immediate" and self.overtake:
            self.overtake = False
            file = super().execute("pragma database_list").fetchone()[2]
            other = connect(Path(file).as_uri())
            migrate(other, STEPS)
            other.close()
        return super().execute(sql, *parameters)


def test_a_step_that_another_process_made_in_the_meantime_is_not_made_again(tmp_path: Path) -> None:
    slow = sqlite3.connect(tmp_path / "a.db", timeout=0, isolation_level=None, factory=Overtaken)

    migrate(slow, STEPS)

    assert read_version(slow) == newest_version(STEPS) == 2
    assert slow.execute("select number from migrations").fetchall() == [(1,), (2,)]
    assert not slow.in_transaction
    slow.close()


def test_a_migrated_database_has_the_definitions_of_its_format(tmp_path: Path) -> None:
    database = connect((tmp_path / "a.db").as_uri())
    assert read_version(database) == 0

    migrate(database, STEPS[:1])
    assert read_schema(database) == expected_schema(1, STEPS)

    migrate(database, STEPS)
    assert read_schema(database) == expected_schema(2, STEPS) != expected_schema(1, STEPS)
    database.close()
