"""Read entries back during the run, on a connection separate from the writer's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, TypeVar

from agentos.errors import JournalUnavailable

from .database import open_to_read
from .entry_text import COLUMNS, StateRow
from .journal_files import JournalFiles

# CROSS JOIN stops SQLite from swapping the loops: one look-up per number, in the given order.
_FETCH = (
    f"select e.seq, {', '.join(f'e.{column}' for column in COLUMNS)} "  # noqa: S608 (constants)
    "from json_each(?) j cross join entries e on e.seq = j.value"
)

_IDS_AT: Final = "select e.seq, e.item from json_each(?) j cross join entries e on e.seq = j.value"

_OF_KINDS: Final = (
    "select item, kind, detail from entries where item is not null and kind in (select value from json_each(?)) "
    "order by seq"
)

T = TypeVar("T")


def stored_columns(connection: sqlite3.Connection) -> list[str]:
    """Return the columns that the entries of this journal have: one of an earlier format lacks the newest."""
    stored = {name for (name,) in connection.execute("select name from pragma_table_info('entries')")}
    return [column for column in COLUMNS if column in stored]


def ids_at(connection: sqlite3.Connection, seqs: Sequence[int]) -> dict[int, str | None]:
    """Return the item ids of the entries with these numbers."""
    return dict(connection.execute(_IDS_AT, (json.dumps(list(seqs)),)))


class Reader:
    """Fetches entries by number. Thread-safe; calls run one at a time."""

    def __init__(self, files: JournalFiles) -> None:
        self._files = files
        self._connection: sqlite3.Connection | None = None
        self._lock = Lock()  # closing a connection under a running query would be undefined

    def open(self) -> None:
        """Connect. The file must be open for writing already: a read-only connection alone cannot create a log."""
        connection = open_to_read(self._files)
        connection.execute("select 1 from meta").fetchone()  # SQLite opens the file only now
        self._connection = connection

    def fetch(self, seqs: Sequence[int]) -> list[StateRow]:
        """Return the entries with these numbers, in this order; missing numbers are left out."""
        return self._read(
            lambda connection: list(map(StateRow._make, connection.execute(_FETCH, (json.dumps(list(seqs)),))))
        )

    def ids_at(self, seqs: Sequence[int]) -> dict[int, str | None]:
        """Return the item ids of the entries with these numbers."""
        return self._read(lambda connection: ids_at(connection, seqs))

    def read_kinds(self, kinds: Sequence[str]) -> list[tuple[str, str, str | None]]:
        """Return item, kind and detail of all entries of these kinds that have an item, in order."""
        return self._read(lambda connection: list(connection.execute(_OF_KINDS, (json.dumps(list(kinds)),))))

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._connection is None:
                raise JournalUnavailable(path=str(self._files.db), detail="it is closed")
            try:
                return read(self._connection)
            except sqlite3.Error as error:
                raise JournalUnavailable(path=str(self._files.db), detail=f"reading it fails ({error})") from None

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
