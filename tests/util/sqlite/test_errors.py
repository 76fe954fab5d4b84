"""What the errors of SQLite mean, and which SQLite will do."""

from __future__ import annotations

import sqlite3

import pytest

from agentos.util.sqlite.connect import OLDEST_SQLITE, why_too_old
from agentos.util.sqlite.errors import TransientSqliteError, is_busy, is_unreachable, transient_reason


def error(code: int) -> sqlite3.Error:
    made = sqlite3.OperationalError("as SQLite says it")
    made.sqlite_errorcode = code
    return made


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (sqlite3.SQLITE_FULL, "the disk is full"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "another program has it locked"),
        (sqlite3.SQLITE_IOERR_WRITE, "the disk reports an error"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "it is read-only"),
    ],
)
def test_what_may_pass_is_told_in_words(code: int, told: str) -> None:
    assert transient_reason(error(code)) == f"{told} (as SQLite says it)"


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT])
def test_what_is_broken_does_not_pass(code: int) -> None:
    assert transient_reason(error(code)) is None


def test_errors_that_do_not_come_from_sqlite_are_understood_too() -> None:
    assert transient_reason(TransientSqliteError("somebody reads it")) == "somebody reads it"
    assert transient_reason(MemoryError()) == "memory is short"
    assert transient_reason(OSError(28, "No space left on device")) == "[Errno 28] No space left on device"
    assert transient_reason(sqlite3.ProgrammingError("closed")) is None


def test_a_locked_file_is_told_from_one_that_cannot_be_opened() -> None:
    assert is_busy(error(sqlite3.SQLITE_BUSY_RECOVERY))
    assert not is_busy(error(sqlite3.SQLITE_CANTOPEN_ISDIR))
    assert is_unreachable(error(sqlite3.SQLITE_CANTOPEN_ISDIR))
    assert not is_unreachable(error(sqlite3.SQLITE_CORRUPT))


def test_an_old_sqlite_is_named_with_the_one_that_is_needed() -> None:
    assert why_too_old("a journal", OLDEST_SQLITE) is None
    assert why_too_old("a journal", (3, 37, 2)) == "this Python has SQLite 3.37.2, and a journal needs 3.38.0"
