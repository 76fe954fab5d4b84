"""Reading and writing what several parts of the SQLite store need: news for a view, the end of a session, the hour."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final

from ...pool.core.quota_codec import Record, without_in_flight
from ...pool.protocols import StoreView
from ...pool.store_protocol import CredentialUpdate, QuotaUpdate
from .boot_clock import ClockReading

Execute = Callable[..., sqlite3.Cursor]

OUTLIVED: Final = 0.0  # in the place of the hour until which leases are in use: until their commands have ended
_OUTLIVED_LOOK_AFTER: Final = 0.1
_LOG_KEPT: Final = 1024
_PRUNE_EVERY: Final = 256

_HOLDERS = (
    "select leases.credential, leases.requester, sessions.pid, sessions.gone_until "
    "from leases join sessions on sessions.id = leases.session where leases.session != ?"
)


def read_updates_since(
    execute: Execute, seen: int, me: str
) -> tuple[Sequence[CredentialUpdate], Sequence[QuotaUpdate]]:
    """What was changed after entry *seen* of the log; *me* is the session whose own leases are no news."""
    rows = execute("select number, credential, quota from log where number > ?", (seen,)).fetchall()
    if rows and rows[0][0] != seen + 1:
        return _read_all_updates(execute, me)  # it has seen nothing yet, or so long ago that the log has forgotten
    return (
        [read_credential_update(execute, number, me) for number in {row[1] for row in rows} if number is not None],
        [read_quota_update(execute, number) for number in {row[2] for row in rows} if number is not None],
    )


def _read_all_updates(execute: Execute, me: str) -> tuple[Sequence[CredentialUpdate], Sequence[QuotaUpdate]]:
    holders: dict[int, list[str]] = {}
    for credential, *who in execute(_HOLDERS, (me,)).fetchall():
        holders.setdefault(credential, []).append(describe_holder(*who))
    credentials = execute("select number, life, evidence, since from credentials").fetchall()
    quotas = execute("select number, record from quotas").fetchall()
    return (
        [
            CredentialUpdate(number, life, evidence, since, tuple(holders.get(number, ())))
            for number, life, evidence, since in credentials
        ],
        [QuotaUpdate(number, read_record(record)) for number, record in quotas],
    )


def read_credential_update(execute: Execute, number: int, me: str) -> CredentialUpdate:
    """What is known of one credential."""
    row = execute("select number, life, evidence, since from credentials where number = ?", (number,)).fetchone()
    found = execute(f"{_HOLDERS} and leases.credential = ?", (me, number)).fetchall()
    number, life, evidence, since = row
    return CredentialUpdate(number, life, evidence, since, tuple(describe_holder(*who) for _, *who in found))


def read_quota_update(execute: Execute, number: int) -> QuotaUpdate:
    """What is known of one quota."""
    (record,) = execute("select record from quotas where number = ?", (number,)).fetchone()
    return QuotaUpdate(number, read_record(record))


def describe_holder(requester: str | None, pid: int, gone_until: float | None = None) -> str:
    """Whoever holds a lease, as people are told; *gone_until*: its process is gone, and what it holds ends then."""
    process = f"process {pid}"
    if gone_until == OUTLIVED:
        process += ", which has ended: a command that it started still runs"
    elif gone_until is not None:
        at = time.strftime("%H:%M:%S", time.localtime(gone_until))
        process += f", which has ended: it may be in use on another machine until {at}"
    return process if requester is None else f"{requester} ({process})"


class Changes:
    """What a transaction has changed that others must hear of, and the newest entry of the log before it."""

    __slots__ = ("credentials", "number", "quotas", "served", "token", "writer")

    def __init__(self, number: int, token: int, served: float, writer: int | None = None) -> None:
        self.number = number
        self.token = token  # the last that was given out
        self.served = served
        self.writer = writer  # by which a process knows its own entries
        self.credentials: set[int] = set()
        self.quotas: set[int] = set()

    def write(self, execute: Execute) -> None:
        """Enter them in the log; ``number`` is the newest entry then."""
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
    """The newest entry of the log, with nothing changed since; *writer* is who may."""
    number, token, served = execute("select number, token, served from log order by number desc limit 1").fetchone()
    return Changes(number, token, served, writer)


def was_written_by(execute: Execute, number: int, writer: int) -> bool:
    """Whether that entry of the log is *writer*'s."""
    return execute("select 1 from log where number = ? and writer = ?", (number, writer)).fetchone() is not None


def end_session(execute: Execute, session: str, changes: Changes) -> set[int]:
    """Remove a session and its leases. Returns the credentials that have a free slot by that."""
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
    """Processes are gone (or that of *session* is): what they had used on other machines ends when its time is over.

    That is ``out_for`` seconds from *now* at the latest, since nobody there has heard of them since. Stamps are *by*
    seconds behind *now*, the wall clock is *offset* ahead of it. Sessions of others are left as they are.
    """
    which = "out_for is not null" if session is None else "id = :session"
    execute(
        f"update sessions set waiting_since = null, expires_at = min(expires_at + :by, :now + ifnull(out_for, 0)), "  # noqa: S608
        f"gone_until = min(expires_at + :by, :now + ifnull(out_for, 0)) + :offset where {which}",
        {"now": now, "offset": offset, "by": by, "session": session},
    )


def read_tokens(execute: Execute, session: str) -> list[int]:
    """The leases of a session."""
    return [token for (token,) in execute("select token from leases where session = ?", (session,)).fetchall()]


def postpone_expiry(execute: Execute, session: str, now: float) -> float:
    """Commands of a session live though its process is gone: look again at the instant that is returned."""
    again_at = now + _OUTLIVED_LOOK_AFTER
    execute(
        "update sessions set expires_at = ?, waiting_since = null, gone_until = ? where id = ?",
        (again_at, OUTLIVED, session),
    )
    return again_at


def end_guess(execute: Execute, quota: int, guessed: list[str], changes: Changes) -> None:
    """A request of unknown cost is over, and its process cannot say so."""
    (record,) = execute("select record from quotas where number = ?", (quota,)).fetchone()
    write_record(execute, quota, without_in_flight(read_record(record), guessed))
    changes.quotas.add(quota)


def read_record(text: str) -> Record:
    """What was written there. Raises sqlite3.DatabaseError, as SQLite does where the file is damaged."""
    try:
        record: Record = json.loads(text)
    except ValueError as error:
        raise sqlite3.DatabaseError(f"the record of a quota is not readable ({error})") from None
    return record


def update_view(view: StoreView, credentials: Sequence[CredentialUpdate], quotas: Sequence[QuotaUpdate]) -> None:
    """Let the view see this. Raises sqlite3.DatabaseError if it cannot be what was written."""
    try:
        view.apply_updates(credentials, quotas)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise sqlite3.DatabaseError(f"the record of a credential or a quota is not readable ({error})") from None


def write_record(execute: Execute, quota: int, record: Record) -> None:
    """Keep what is known of a quota."""
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    execute("update quotas set record = ? where number = ?", (text, quota))


def write_moment(execute: Execute, base: str, now: float, offset: float) -> None:
    """Note which clock the stamps belong to, and what the wall clock shows: for the next boot."""
    text = json.dumps([base, now, offset])
    execute("insert or replace into meta(key, value) values ('moment', ?)", (text,))


def read_moment(execute: Execute) -> ClockReading | None:
    """The last moment that was noted."""
    row = execute("select value from meta where key = 'moment'").fetchone()
    return None if row is None else ClockReading(*json.loads(row[0]))
