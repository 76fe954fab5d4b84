"""Classify SQLite errors: transient, or permanent."""

from __future__ import annotations

import sqlite3
from typing import Final

# May end when the disk has space again, the other program releases its lock, or an administrator acts.
_TRANSIENT: Final = {
    sqlite3.SQLITE_BUSY: "another program has it locked",
    sqlite3.SQLITE_LOCKED: "another program has it locked",
    sqlite3.SQLITE_PROTOCOL: "another program has it locked",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "permission is denied",
    sqlite3.SQLITE_AUTH: "permission is denied",
    sqlite3.SQLITE_NOMEM: "memory is short",
    sqlite3.SQLITE_INTERRUPT: "it was interrupted",
    sqlite3.SQLITE_NOLFS: "the file system takes no larger file",
}

_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_UNREACHABLE: Final = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY}


class TransientSqliteError(Exception):
    """The file cannot be written now, but may be later. Nothing of the commit is written."""


def transient_reason(error: BaseException) -> str | None:
    """Return why waiting may help; None if it does not: the file or the commit itself is bad."""
    if isinstance(error, (TransientSqliteError, OSError)):
        return str(error)
    if isinstance(error, MemoryError):
        return _TRANSIENT[sqlite3.SQLITE_NOMEM]
    text = _TRANSIENT.get(_code(error))
    return None if text is None else f"{text} ({error})"


def is_busy(error: BaseException) -> bool:
    """Return whether another program has the database locked."""
    return _code(error) in _BUSY


def is_interrupted(error: BaseException) -> bool:
    """Return whether a query was interrupted because it took too many steps."""
    return _code(error) == sqlite3.SQLITE_INTERRUPT


def is_unreachable(error: BaseException) -> bool:
    """Return whether the file could not be opened at all, so that its content is unknown."""
    return _code(error) in _UNREACHABLE


def _code(error: BaseException) -> int:
    # The low byte is the kind of error, the rest is its location in SQLite. Errors of Python's wrapper have no code.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF
