"""Schema of the pool's SQLite file. It contains no secret, and nothing from which a secret could be derived."""

from __future__ import annotations

from typing import Final

from ...util.sqlite.migrations import Migration

# Header field that tells a store from other SQLite files: "agtp".
APPLICATION_ID: Final = 0x61677470

# `log` has a row for every change that other processes must read, with the last token granted. Its newest row
# identifies the state of the store; the rows after the newest that a process has seen are its updates. Old rows are
# pruned; a process that has missed some reads everything. Granting or ending a lease writes two pages, one of `leases`
# and one of `log`: a commit costs by the page. Instants are of the machine's monotonic clock; `meta` has the boot id.
MIGRATIONS: Final = (
    Migration(
        1,
        "credentials, quotas, sessions and leases",
        (
            "create table migrations(number integer primary key, name text not null, applied_at real not null) strict",
            "create table meta(key text primary key, value text not null) strict",
            "create table log(number integer primary key, token integer not null, served real not null, "
            "credential integer, quota integer, writer integer) strict",
            "insert into log(number, token, served) values (1, 0, 0.0)",
            "create table credentials(number integer primary key, fingerprint text not null unique, "
            "name text not null, life text not null, evidence text not null, since real not null) strict",
            "create table quotas(number integer primary key, name text not null unique, record text not null) strict",
            "create table sessions(id text primary key, expires_at real not null, weight real not null, "
            "served real not null, waiting_since real, wanted text, called_at real, idle_until real, claim text, "
            "bell integer not null, pid integer not null) strict",
            "create table leases(credential integer not null, token integer not null, session text not null, "
            "request text not null, requester text, granted_at real not null, quota integer not null, "
            "guessed text, primary key (credential, token)) strict, without rowid",
            # For people; no code reads it.
            "create view held as select leases.token, credentials.name, leases.requester, sessions.pid "
            "from leases join credentials on credentials.number = leases.credential "
            "join sessions on sessions.id = leases.session",
        ),
    ),
    Migration(
        2,
        "sessions whose leases are used on other machines",
        (
            # Seconds after the end of their process; null: leases are used only in that process.
            "alter table sessions add column out_for real",
            # Wall-clock time until which they may be in use after their process has ended.
            "alter table sessions add column gone_until real",
        ),
    ),
    Migration(3, "quota records of version 1", ()),  # older processes refuse the file; see ``quota_codec``
)
