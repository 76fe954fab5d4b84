"""Looking into a journal that others may be writing, without disturbing them.

Every look is one short read transaction, so that all of its statements see the same instant. What a look at a bad
moment takes for damage (a run has begun or ended between two statements, the head file was just being written) is gone
at the next one: only what is found again counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeVar

from agentos.errors import JournalInUse, JournalUnavailable
from agentos.util.sqlite.errors import is_busy, is_interrupted
from agentos.util.sqlite.migrations import expected_schema, newest_version
from agentos.util.sqlite.untrusted_file import find_foreign_definition

from ..journal.database import open_untouched
from ..journal.entry_kinds import DECIDES, RecordedState
from ..journal.journal_files import JournalFiles
from ..journal.schema import MIGRATIONS
from ..journal.verify import JournalContents, read_contents

T = TypeVar("T")

_MAX_READS: Final = 3

DECIDING: Final = ", ".join(f"'{kind}'" for kind in DECIDES)

# The newest entry that decides, of each item: the item's state.
CURRENT: Final = f"select max(seq) from entries where kind in ({DECIDING}) group by item"  # noqa: S608 (constants)

# Items that were refused because their id is another's, or because they have none: each has failed, and is an item of
# its own. Every session meets them anew, so that only those of the newest one count.
REFUSED: Final = (
    "select seq from entries where kind = 'duplicate' and seq > (select max(seq) from entries where kind = 'session')"
)

STATE_OF: Final[dict[str, RecordedState]] = {**DECIDES, "duplicate": RecordedState.FAILED}


def read_verified(files: JournalFiles) -> JournalContents | None:
    """All that the journal knows, checked against its chain; None if there is none. Damage is in the answer.

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
    """What *read* makes of the journal as it is now. No chain is checked.

    Raises JournalInUse or JournalUnavailable: it is gone, no journal, or broken.
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
        # Without a log the file is read as one that nobody changes; if a run has begun meanwhile, that was not so.
        if had_log or files.size(files.wal) is None:
            break
    return answer


def query_rows(files: JournalFiles, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The answer to one *query*, as `read_journal` gets it."""
    return read_journal(files, lambda connection: connection.execute(query, parameters).fetchall())


def has_closed(files: JournalFiles) -> bool:
    """Whether the last run came to its end, as of now: it may have, between a look and the question who runs it."""
    return query_rows(files, "select kind from entries order by seq desc limit 1") == [("closed",)]


def _read_journal(files: JournalFiles, read: Callable[[sqlite3.Connection], T]) -> T:
    connection = open_untouched(files)
    try:
        connection.execute("begin")
        foreign = find_foreign_definition(connection, expected_schema(newest_version(MIGRATIONS), MIGRATIONS))
        if foreign is not None:
            raise JournalUnavailable(path=str(files.db), detail=f"it has {foreign}")
        return read(connection)
    finally:
        connection.close()
