"""Read and verify a whole journal: every entry is checked against the hash chain; damage is part of the result.

Nothing here changes a byte. A damaged journal still has an intact beginning; entries, items and tokens are reported for
that beginning only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentos.errors import JournalDamaged, JournalInUse, JournalTooNew, JournalUnavailable, NotAJournal
from agentos.util.sqlite.errors import is_busy, is_unreachable
from agentos.util.sqlite.migrations import Migration, expected_schema, newest_version, read_schema, read_version
from agentos.util.sqlite.untrusted_file import find_foreign_definition, is_plain_table

from ...util.private_folder import UnsafePath
from .database import APPLICATION_ID, check_files, open_untouched
from .entry_kinds import DECIDES
from .entry_text import COLUMNS, join_columns
from .hash_chain import compute_link
from .head_file import START, CommitPosition, read_head
from .journal_files import JournalFiles
from .known_items import IdAt, KnownItems
from .reader import stored_columns

_DETAIL = COLUMNS.index("detail")
_FINGERPRINT = COLUMNS.index("fingerprint")


@dataclass(slots=True)
class JournalContents:
    """The content of a journal, up to the first damage if there is any."""

    version: int = 0
    position: CommitPosition = START
    last_kind: str | None = None
    last_token: int = 0
    session: int = 0
    worker: str | None = None
    plan: str | None = None  # fingerprint of the input ids that the last session recorded
    known: KnownItems = field(default_factory=KnownItems)
    damage: str | None = None
    missing: int | None = None

    def damaged(self, detail: str, *, missing: int | None = None) -> JournalContents:
        """Return self, with the first damage recorded."""
        if self.damage is None:
            self.damage, self.missing = detail, missing
        return self


def read_contents(files: JournalFiles, migrations: Sequence[Migration]) -> JournalContents | None:
    """Read and verify everything; None if there is no journal yet.

    Raises NotAJournal, JournalTooNew, JournalInUse or JournalUnavailable, and JournalDamaged if even the beginning is
    unreadable; other damage is in the result.
    """
    try:
        head = read_head(files.head, files.folder)
        check_files(files, to_write=False)
    except UnsafePath as unsafe:
        raise JournalUnavailable(path=str(files.db), detail=str(unsafe)) from None
    if not files.size(files.db):
        return _without_database(files, head)
    try:
        connection = open_untouched(files)
    except sqlite3.Error as error:
        raise _build_error(files, error, head) from None
    try:
        _check_format(connection, files, migrations, head)
        contents = _read(connection, migrations, head)
    finally:
        connection.close()
    _compare_with_head(contents, files, head)
    return contents


def _without_database(files: JournalFiles, head: CommitPosition | None) -> JournalContents | None:
    """Handle a missing or empty database: a new journal, unless files beside it show that there was one."""
    if head is not None and head.seq:
        return JournalContents().damaged(f"its database is gone: {_missing(head.seq)}", missing=head.seq)
    if files.size(files.wal):
        return JournalContents().damaged(f"its database is gone, but {files.wal.name} is there")
    return None


def _check_format(
    connection: sqlite3.Connection, files: JournalFiles, migrations: Sequence[Migration], head: CommitPosition | None
) -> None:
    """Raise unless this is a journal of a known format."""
    try:
        application = int(connection.execute("pragma application_id").fetchone()[0])
        version = read_version(connection)
    except sqlite3.Error as error:
        raise _build_error(files, error, head) from None
    if application != APPLICATION_ID:
        if head is not None:
            raise JournalDamaged(path=str(files.db), detail="its database is not recognisable")
        raise NotAJournal(path=str(files.db), found="an SQLite database of another program")
    if version > newest_version(migrations):
        raise JournalTooNew(path=str(files.db), version=version, known=newest_version(migrations))


def _build_error(files: JournalFiles, error: sqlite3.Error, head: CommitPosition | None) -> Exception:
    """Return the error for a file that SQLite cannot read at all."""
    path = str(files.db)
    if is_busy(error):
        return JournalInUse(path=path, owner="another program, which has locked the database")
    if is_unreachable(error):
        return JournalUnavailable(path=path, detail=f"it cannot be read ({error})")
    if head is None and error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
        return NotAJournal(path=path, found="not an SQLite database")
    return JournalDamaged(path=path, detail=f"its database cannot be read ({error})")


def _read(
    connection: sqlite3.Connection, migrations: Sequence[Migration], head: CommitPosition | None
) -> JournalContents:
    contents = JournalContents()
    # A flipped bit can turn text into a non-text value, or JSON into invalid JSON: ValueError and TypeError.
    try:
        contents.version = read_version(connection)
        schema, made = read_schema(connection), expected_schema(contents.version, migrations)
        if contents.version < 1 or not made.items() <= schema.items():
            contents.damaged("its tables do not match the schema")
        foreign = find_foreign_definition(connection, made)
        if foreign is not None:
            contents.damaged(f"it has {foreign}")
        if is_plain_table(connection, "entries"):
            _check_entries(connection, contents, head)
        if is_plain_table(connection, "meta"):
            _check_meta(connection, contents)
    except (sqlite3.Error, ValueError, TypeError, LookupError) as error:
        contents.damaged(f"reading it fails after entry {contents.position.seq} ({error})")
    return contents


def _check_entries(connection: sqlite3.Connection, contents: JournalContents, head: CommitPosition | None) -> None:
    """Apply commits one by one, as long as each matches its chain value."""
    expected = 0
    commit: list[tuple[Any, ...]] = []

    def id_at(seq: int) -> str | None:
        found: tuple[str | None] = connection.execute("select item from entries where seq = ?", (seq,)).fetchone()
        return found[0]

    columns = stored_columns(connection)
    every_entry = f"select seq, {', '.join(columns)}, chain from entries order by seq"  # noqa: S608 (constants)
    for row in connection.execute(every_entry):
        expected += 1
        if row[0] != expected:
            contents.damaged(f"entry {expected} is missing")
            return
        commit.append(row[1:-1])
        if row[-1] is not None:
            seq, chain = contents.position
            if compute_link(chain, seq + 1, join_columns(commit)) != row[-1]:
                contents.damaged(f"entries {seq + 1} to {expected} do not match their checksum")
                return
            if head is not None and seq < head.seq <= expected and head != (expected, row[-1]):
                contents.damaged(f"its entries up to {head.seq} do not match its head file")
            _apply_entry(commit, contents, id_at)
            contents.position = CommitPosition(expected, row[-1])
            commit.clear()
    if commit:
        contents.damaged(f"entries {contents.position.seq + 1} to {expected} do not match their checksum")


def _apply_entry(commit: list[tuple[Any, ...]], contents: JournalContents, id_at: IdAt) -> None:
    seq = contents.position.seq
    for row in commit:
        seq += 1
        kind, item, token = row[1:4]
        state = DECIDES.get(kind)
        if state is not None:
            contents.known.put(item, seq, state, row[_FINGERPRINT], id_at)
        elif kind == "session":
            card = json.loads(row[_DETAIL])
            contents.session, contents.worker = card["session"], card["worker"]
        elif kind == "plan" and row[_FINGERPRINT] is not None:
            contents.plan = row[_FINGERPRINT]
        if token is not None and token > contents.last_token:
            contents.last_token = token
    contents.last_kind = kind


def _check_meta(connection: sqlite3.Connection, contents: JournalContents) -> None:
    """Check the fencing table against the newest session entry: both are written in one transaction."""
    meta = dict(connection.execute("select key, value from meta"))
    if contents.session and (meta.get("session"), meta.get("worker")) != (str(contents.session), contents.worker):
        contents.damaged("its session table does not match its entries")


def _compare_with_head(contents: JournalContents, files: JournalFiles, head: CommitPosition | None) -> None:
    last = contents.position.seq
    if head is not None and head.seq > last:
        contents.damaged(_missing(head.seq - last), missing=head.seq - last)
        contents.missing = head.seq - last
    elif head is None and last and contents.last_kind != "closed":
        contents.damaged(
            f"its head file {files.head.name} is missing or unreadable, so newest entries may be missing undetected"
        )


def _missing(count: int) -> str:
    return "1 entry is missing at its end" if count == 1 else f"{count} entries are missing at its end"
