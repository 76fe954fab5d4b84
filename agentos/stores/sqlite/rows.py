"""Read and write the SQLite store's rows: updates for a view, the log of changes, ends of sessions, quota records."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final

from ...pool.core.quota_codec import Record, add_version, upgrade_record, without_in_flight
from ...pool.protocols import StoreView
from ...pool.store_protocol import CredentialUpdate, QuotaUpdate, read_stated_slots
from .boot_clock import ClockReading

Execute = Callable[..., sqlite3.Cursor]

OUTLIVED: Final = 0.0  # ``gone_until`` of leases that last until their commands have ended
_OUTLIVED_CHECK_AFTER: Final = 0.1
_LOG_KEPT: Final = 1024
_PRUNE_EVERY: Final = 256

_HOLDERS = (
    "select leases.credential, leases.request, leases.requester, sessions.pid, sessions.gone_until "
    "from leases join sessions on sessions.id = leases.session where leases.session != ?"
)


def read_updates_since(
    execute: Execute, seen: int, me: str
) -> tuple[Sequence[CredentialUpdate], Sequence[QuotaUpdate]]:
    """Return what changed after entry *seen* of the log, except the leases of session *me*."""
    rows = execute("select number, credential, quota from log where number > ?", (seen,)).fetchall()
    if rows and rows[0][0] != seen + 1:
        return _read_all_updates(execute, me)  # nothing seen yet, or the entries are already pruned
    return (
        [read_credential_update(execute, number, me) for number in {row[1] for row in rows} if number is not None],
        [read_quota_update(execute, number) for number in {row[2] for row in rows} if number is not None],
    )


def _read_all_updates(execute: Execute, me: str) -> tuple[Sequence[CredentialUpdate], Sequence[QuotaUpdate]]:
    leases: dict[int, list[Sequence[Any]]] = {}
    for credential, *lease in execute(_HOLDERS, (me,)).fetchall():
        leases.setdefault(credential, []).append(lease)
    credentials = execute("select number, life, evidence, since from credentials").fetchall()
    quotas = execute("select number, record from quotas").fetchall()
    return (
        [
            CredentialUpdate(number, life, evidence, since, *_read_holders(leases.get(number, ())))
            for number, life, evidence, since in credentials
        ],
        [QuotaUpdate(number, read_record(record)) for number, record in quotas],
    )


def read_credential_update(execute: Execute, number: int, me: str) -> CredentialUpdate:
    """Return the state of one credential."""
    row = execute("select number, life, evidence, since from credentials where number = ?", (number,)).fetchone()
    found = execute(f"{_HOLDERS} and leases.credential = ?", (me, number)).fetchall()
    number, life, evidence, since = row
    return CredentialUpdate(number, life, evidence, since, *_read_holders([lease for _, *lease in found]))


def _read_holders(leases: Iterable[Sequence[Any]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the holders of leases of other processes, and the slots that these state."""
    rows = list(leases)
    return tuple(describe_holder(*who) for _, *who in rows), tuple(read_stated_slots(request) for request, *_ in rows)


def read_quota_update(execute: Execute, number: int) -> QuotaUpdate:
    """Return the state of one quota."""
    (record,) = execute("select record from quotas where number = ?", (number,)).fetchone()
    return QuotaUpdate(number, read_record(record))


def describe_holder(requester: str | None, pid: int, gone_until: float | None = None) -> str:
    """Return the holder of a lease as text for people; *gone_until*: its process has ended, and the lease ends then."""
    process = f"process {pid}"
    if gone_until == OUTLIVED:
        process += ", which has ended: a command that it started still runs"
    elif gone_until is not None:
        at = time.strftime("%H:%M:%S", time.localtime(gone_until))
        process += f", which has ended: it may be in use on another machine until {at}"
    return process if requester is None else f"{requester} ({process})"


class Changes:
    """Changes of a transaction that other processes must read, and the newest log entry before them."""

    __slots__ = ("credentials", "number", "quotas", "served", "token", "writer")

    def __init__(self, number: int, token: int, served: float, writer: int | None = None) -> None:
        self.number = number
        self.token = token  # the last one granted
        self.served = served
        self.writer = writer  # identifies a process's own entries
        self.credentials: set[int] = set()
        self.quotas: set[int] = set()

    def write(self, execute: Execute) -> None:
        """Append the changes to the log; ``number`` is then the newest entry."""
        before = self.number
        for credential, quota in zip_longest(self.credentials, self.quotas):
            self.number += 1
            execute(
                "insert into log(number, token, served, credential, quota, writer) values (?, ?, ?, ?, ?, ?)",
                (self.number, self.token, self.served, credential, quota, self.writer),
            )
        if self.number // _PRUNE_EVERY != before // _PRUNE_EVERY:
            execute("delete from log where number <= ?", (self.number - _LOG_KEPT,))


def read_last_change(execute: Execute, writer: int | None = None) -> Changes:
    """Return the newest entry of the log, with no changes yet; *writer* will write them."""
    number, token, served = execute("select number, token, served from log order by number desc limit 1").fetchone()
    return Changes(number, token, served, writer)


def was_written_by(execute: Execute, number: int, writer: int) -> bool:
    """Return whether that entry of the log is *writer*'s."""
    return execute("select 1 from log where number = ? and writer = ?", (number, writer)).fetchone() is not None


def end_session(execute: Execute, session: str, changes: Changes) -> set[int]:
    """Remove a session and its leases. Return the credentials on which a slot became free."""
    ended = execute("delete from leases where session = ? returning credential, quota, guessed", (session,)).fetchall()
    freed = {credential for credential, _, _ in ended}
    changes.credentials |= freed
    for _, quota, guessed in ended:
        if guessed is not None:
            end_guess(execute, quota, json.loads(guessed), changes)
    execute("delete from sessions where id = ?", (session,))
    return freed


def schedule_expiry(
    execute: Execute, now: float, offset: float, *, by: float = 0.0, session: str | None = None
) -> None:
    """Mark sessions of ended processes (or *session*), so that leases used on other machines expire.

    They expire ``out_for`` seconds from *now* at the latest, since remote workers stop that long after they lost
    contact. Instants are *by* seconds behind *now*, the wall clock is *offset* ahead of it. Other sessions stay.
    """
    which = "out_for is not null" if session is None else "id = :session"
    execute(
        f"update sessions set waiting_since = null, expires_at = min(expires_at + :by, :now + ifnull(out_for, 0)), "  # noqa: S608
        f"gone_until = min(expires_at + :by, :now + ifnull(out_for, 0)) + :offset where {which}",
        {"now": now, "offset": offset, "by": by, "session": session},
    )


def read_tokens(execute: Execute, session: str) -> list[int]:
    """Return the tokens of a session's leases."""
    return [token for (token,) in execute("select token from leases where session = ?", (session,)).fetchall()]


def postpone_expiry(execute: Execute, session: str, now: float) -> float:
    """Keep a session whose commands outlive its process. Return when to check again."""
    again_at = now + _OUTLIVED_CHECK_AFTER
    execute(
        "update sessions set expires_at = ?, waiting_since = null, gone_until = ? where id = ?",
        (again_at, OUTLIVED, session),
    )
    return again_at


def end_guess(execute: Execute, quota: int, guessed: list[str], changes: Changes) -> None:
    """Remove the estimated cost of a request that ended with its process."""
    (record,) = execute("select record from quotas where number = ?", (quota,)).fetchone()
    write_record(execute, quota, without_in_flight(read_record(record), guessed))
    changes.quotas.add(quota)


def read_record(text: str) -> Record:
    """Parse a quota's record. Raises sqlite3.DatabaseError, as SQLite does for a damaged file."""
    try:
        return upgrade_record(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise sqlite3.DatabaseError(f"the record of a quota is not readable ({error})") from None


def update_view(view: StoreView, credentials: Sequence[CredentialUpdate], quotas: Sequence[QuotaUpdate]) -> None:
    """Update the view. Raises sqlite3.DatabaseError if the records are malformed."""
    try:
        view.apply_updates(credentials, quotas)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise sqlite3.DatabaseError(f"the record of a credential or a quota is not readable ({error})") from None


def write_record(execute: Execute, quota: int, record: Record) -> None:
    """Write a quota's record."""
    text = json.dumps(add_version(record), separators=(",", ":"), ensure_ascii=False)
    execute("update quotas set record = ? where number = ?", (text, quota))


def write_moment(execute: Execute, base: str, now: float, offset: float) -> None:
    """Write which clock the instants belong to, and the wall clock's offset: for the next boot."""
    text = json.dumps([base, now, offset])
    execute("insert or replace into meta(key, value) values ('moment', ?)", (text,))


def read_moment(execute: Execute) -> ClockReading | None:
    """Return the last instant that was written."""
    row = execute("select value from meta where key = 'moment'").fetchone()
    return None if row is None else ClockReading(*json.loads(row[0]))
