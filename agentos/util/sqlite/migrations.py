"""The format of a database, as numbered steps. Each is one transaction, together with the record of itself."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: from the format before *number* to *number*. A published step never changes.

    The first step of every file makes the table ``migrations(number, name, applied_at)``, in which all are recorded.
    """

    number: int
    name: str
    statements: tuple[str, ...]


def newest_version(migrations: Sequence[Migration]) -> int:
    """The format that *migrations* lead to."""
    return max(migration.number for migration in migrations)


def read_version(connection: sqlite3.Connection) -> int:
    """The format of this database; 0 for one that no migration has touched."""
    return int(connection.execute("pragma user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Bring the database to the newest format. After a crash in between, the same call goes on where it ended.

    Several processes may do so at once: each step is made by one of them. A locked database raises, as any statement.
    """
    version = read_version(connection)
    for migration in sorted(migrations, key=lambda migration: migration.number):
        if migration.number > version:
            _apply(connection, migration)


def read_schema(connection: sqlite3.Connection) -> dict[str, str]:
    """The definitions in this database, by name."""
    return dict(connection.execute("select name, sql from sqlite_schema where sql is not null"))


def expected_schema(version: int, migrations: Sequence[Migration]) -> dict[str, str]:
    """The definitions a sound database of that format has."""
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
        # Asked again, now that nobody else can write: another process may have made this step in the meantime.
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
