"""Read untrusted SQLite files: limit the work of queries, and reject unexpected definitions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Final

# Steps of SQLite's virtual machine. A valid file needs far fewer: its shortest row has about 50 bytes, and a query
# takes some hundred steps for it. Pages that refer to each other can make a small file endless.
_STEPS_AT_LEAST: Final = 20_000_000
_STEPS_PER_BYTE: Final = 100
_STEPS_BETWEEN_CHECKS: Final = 100_000

# Table-valued functions that our queries use: a table of that name would replace them.
_FUNCTIONS: Final = frozenset({"json_each", "json_tree"})


def limit_steps(connection: sqlite3.Connection, size: int) -> None:
    """Limit all queries on *connection* together to the steps that a valid file of *size* bytes can need.

    Beyond that they fail with SQLITE_INTERRUPT. The limit is in steps, not seconds, so that a busy machine or a long
    journal does not look malicious.
    """
    connection.set_progress_handler(_counter(_STEPS_AT_LEAST + _STEPS_PER_BYTE * size), _STEPS_BETWEEN_CHECKS)


def _counter(most: int) -> Callable[[], int]:
    left = most // _STEPS_BETWEEN_CHECKS

    def count() -> int:
        nonlocal left
        left -= 1
        return left < 0

    return count


def find_foreign_definition(connection: sqlite3.Connection, own: Mapping[str, str]) -> str | None:
    """Return a description of a definition that could run code or replace one of *own*; None if there is none.

    Rejected are triggers, views and virtual tables, tables with computed columns or with names of functions that our
    queries use, and indexes of our tables that compute something. Other tables and plain indexes are harmless.
    """
    for kind, name, table, sql in connection.execute("select type, name, tbl_name, sql from sqlite_schema"):
        if kind == "view" and own.get(name, "").lower().startswith("create view"):
            continue  # one of ours; only people read it
        if kind not in ("table", "index") or (kind == "table" and not _is_plain(connection, name, sql)):
            return f"the {'virtual table' if kind == 'table' else kind} {name!r}, which agentos did not make"
        if kind == "index" and sql is not None and table in own and _computes(connection, table, name):
            return f"the index {name!r}, which agentos did not make"
    return None


def is_plain_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether *name* is a table whose rows are stored as they are read."""
    found = connection.execute("select sql from sqlite_schema where type = 'table' and name = ?", (name,)).fetchone()
    return found is not None and _is_plain(connection, name, found[0])


def _is_plain(connection: sqlite3.Connection, name: str, sql: str | None) -> bool:
    if sql is None or name.lower() in _FUNCTIONS or sql.lower().split()[:2] == ["create", "virtual"]:
        return False
    columns = connection.execute("select hidden from pragma_table_xinfo(?)", (name,)).fetchall()
    return not any(hidden for (hidden,) in columns)


def _computes(connection: sqlite3.Connection, table: str, index: str) -> bool:
    partial = connection.execute("select partial from pragma_index_list(?) where name = ?", (table, index)).fetchone()
    columns = connection.execute("select cid from pragma_index_xinfo(?)", (index,)).fetchall()
    return partial is None or bool(partial[0]) or any(column == -2 for (column,) in columns)
