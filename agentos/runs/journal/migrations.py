"""The shape of the database, as numbered steps. Each is one transaction, together with the record of itself."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .kinds import DECIDES


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: from the format before *number* to *number*. A published step never changes."""

    number: int
    name: str
    statements: tuple[str, ...]


_STATE_OF_KIND = " ".join(f"when '{kind}' then '{state}'" for kind, state in DECIDES.items())
_DECIDING_KINDS = ", ".join(f"'{kind}'" for kind in DECIDES)

# For people: no code reads it.
_ITEMS_VIEW = (
    f"create view items as select item, case kind {_STATE_OF_KIND} end as state, attempt, credential, duration, "  # noqa: S608
    "value, error, at from entries where seq in "
    f"(select max(seq) from entries where kind in ({_DECIDING_KINDS}) group by item)"
)

MIGRATIONS: Final = (
    Migration(
        1,
        "entries, meta and the view of items",
        (
            "create table migrations(number integer primary key, name text not null, applied_at real not null) strict",
            "create table meta(key text primary key, value text) strict",
            "create table entries(seq integer primary key, at real not null, kind text not null, item text, "
            "token integer, attempt integer, credential text, duration real, fingerprint text, value text, "
            "error text, detail text, chain text) strict",
            _ITEMS_VIEW,
        ),
    ),
)


def newest(migrations: Sequence[Migration]) -> int:
    """The format that *migrations* lead to."""
    return max(migration.number for migration in migrations)


def version_of(connection: sqlite3.Connection) -> int:
    """The format of this database; 0 for one that no migration has touched."""
    return int(connection.execute("pragma user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Bring the database to the newest format. After a crash in between, the same call goes on where it ended."""
    version = version_of(connection)
    for migration in sorted(migrations, key=lambda migration: migration.number):
        if migration.number > version:
            _apply(connection, migration)


def schema_of(connection: sqlite3.Connection) -> dict[str, str]:
    """The definitions in this database, by name."""
    return dict(connection.execute("select name, sql from sqlite_schema where sql is not null"))


def schema_at(version: int, migrations: Sequence[Migration]) -> dict[str, str]:
    """The definitions a sound database of that format has."""
    model = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(model, [migration for migration in migrations if migration.number <= version])
        return schema_of(model)
    finally:
        model.close()


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute("begin immediate")
    try:
        for statement in migration.statements:
            connection.execute(statement)
        connection.execute(
            "insert into migrations(number, name, applied_at) values (?, ?, ?)",
            (migration.number, migration.name, time.time()),
        )
        connection.execute(f"pragma user_version = {migration.number:d}")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
