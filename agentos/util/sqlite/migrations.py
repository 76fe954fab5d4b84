"""Numbered migrations of a database. Each is one transaction, together with its own record."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration from the previous format to *number*. A published migration never changes.

    The first one of every file creates the table ``migrations(number, name, applied_at)``, which records all of them.
    """

    number: int
    name: str
    statements: tuple[str, ...]


def newest_version(migrations: Sequence[Migration]) -> int:
    """Return the format that *migrations* lead to."""
    return max(migration.number for migration in migrations)


def read_version(connection: sqlite3.Connection) -> int:
    """Return the format of this database; 0 for one without migrations."""
    return int(connection.execute("pragma user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Migrate the database to the newest format. After a crash, the same call continues.

    Several processes may do so at once: each migration is applied by one of them. A locked database raises.
    """
    version = read_version(connection)
    for migration in sorted(migrations, key=lambda migration: migration.number):
        if migration.number > version:
            _apply(connection, migration)


def read_schema(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the definitions in this database by name."""
    return dict(connection.execute("select name, sql from sqlite_schema where sql is not null"))


def expected_schema(version: int, migrations: Sequence[Migration]) -> dict[str, str]:
    """Return the definitions that a valid database of that format has."""
    return dict(_schema_after(tuple(migration for migration in migrations if migration.number <= version)))


@lru_cache(maxsize=8)
def _schema_after(migrations: tuple[Migration, ...]) -> dict[str, str]:
    model = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(model, migrations)
        return read_schema(model)
    finally:
        model.close()


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute("begin immediate")
    try:
        # Check again with the write lock held: another process may have applied it in the meantime.
        if read_version(connection) < migration.number:
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
