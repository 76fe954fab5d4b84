"""Read a journal that other processes may be writing, without disturbing them.

Every read is one short transaction, so that all of its statements see the same state. Apparent damage that comes from
bad timing (a run began or ended between two statements, the head file was being written) is gone at the next read: only
damage that is found again counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeVar

from agentos.errors import JournalInUse, JournalTooNew, JournalUnavailable
from agentos.util.sqlite.errors import is_busy, is_interrupted
from agentos.util.sqlite.migrations import expected_schema, newest_version, read_version
from agentos.util.sqlite.untrusted_file import find_foreign_definition

from ..journal.database import open_untouched
from ..journal.entry_kinds import DECIDES, RecordedState
from ..journal.entry_text import ADDED
from ..journal.journal_files import JournalFiles
from ..journal.reader import stored_columns
from ..journal.schema import MIGRATIONS
from ..journal.verify import JournalContents, read_contents

T = TypeVar("T")

_MAX_READS: Final = 3

DECIDING: Final = ", ".join(f"'{kind}'" for kind in DECIDES)

# The newest deciding entry of each item: the item's state.
CURRENT: Final = f"select max(seq) from entries where kind in ({DECIDING}) group by item"  # noqa: S608 (constants)

# Items that were refused because their id is taken or missing: each has failed and counts as an item. Every session
# records them again, so only those of the newest session count.
REFUSED: Final = (
    "select seq from entries where kind = 'duplicate' and seq > (select max(seq) from entries where kind = 'session')"
)

STATE_OF: Final[dict[str, RecordedState]] = {**DECIDES, "duplicate": RecordedState.FAILED}


def read_verified(files: JournalFiles) -> JournalContents | None:
    """Return the journal's content, verified against its hash chain; None if there is none. Damage is in the result.

    Raises NotAJournal, JournalTooNew, JournalInUse, JournalUnavailable, or JournalDamaged if nothing can be read.
    """
    contents = None
    for _ in range(_MAX_READS):
        had_log = files.size(files.wal) is not None
        contents = read_contents(files, MIGRATIONS)
        if (contents is None or contents.damage is None) and had_log == (files.size(files.wal) is not None):
            break
    return contents


def read_journal(files: JournalFiles, read: Callable[[sqlite3.Connection], T]) -> T:
    """Return the result of *read* on the journal in its current state. The chain is not verified.

    Raises JournalInUse or JournalUnavailable: it is gone, not a journal, or broken.
    """
    for remaining in reversed(range(_MAX_READS)):
        had_log = files.size(files.wal) is not None
        try:
            answer = _read_journal(files, read)
        except (sqlite3.Error, ValueError, TypeError, LookupError) as error:
            if is_interrupted(error):
                detail = "reading it takes more steps than an intact file of its size needs"
                raise JournalUnavailable(path=str(files.db), detail=detail) from None
            if remaining:
                continue
            if is_busy(error):
                owner = "another program, which has locked the database"
                raise JournalInUse(path=str(files.db), owner=owner) from None
            raise JournalUnavailable(path=str(files.db), detail=f"it cannot be read ({error})") from None
        # Without a log the file is read as immutable; if a run has begun meanwhile, that was wrong.
        if had_log or files.size(files.wal) is None:
            break
    return answer


def query_rows(files: JournalFiles, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Return the rows of one *query*, read by `read_journal`."""
    return read_journal(files, lambda connection: connection.execute(query, parameters).fetchall())


def has_closed(files: JournalFiles) -> bool:
    """Return whether the last run has closed the journal by now: it may have since an earlier read."""
    return query_rows(files, "select kind from entries order by seq desc limit 1") == [("closed",)]


def _read_journal(files: JournalFiles, read: Callable[[sqlite3.Connection], T]) -> T:
    connection = open_untouched(files)
    try:
        connection.execute("begin")
        version, newest = read_version(connection), newest_version(MIGRATIONS)
        if version > newest:
            raise JournalTooNew(path=str(files.db), version=version, known=newest)
        foreign = find_foreign_definition(connection, expected_schema(newest, MIGRATIONS))
        if foreign is not None:
            raise JournalUnavailable(path=str(files.db), detail=f"it has {foreign}")
        if version < newest:
            _add_newest_columns(connection)
        return read(connection)
    finally:
        connection.close()


def _add_newest_columns(connection: sqlite3.Connection) -> None:
    """Let queries on a journal of an earlier format find every column: in a view of this connection alone."""
    missing = "".join(f", null as {name}" for name in ADDED if name not in stored_columns(connection))
    connection.execute(f"create temp view entries as select *{missing} from main.entries")  # noqa: S608 (constants)
