"""The shape of the pool's SQLite file. No secret is in it, nor anything a secret could be read from."""

from __future__ import annotations

from typing import Final

from ...util.sqlite.migrations import Migration

# Written in the header of every store, so that no other SQLite file is taken for one: "agtp".
APPLICATION_ID: Final = 0x61677470

# `log` has a row for every change that others must hear of, and with it the last token given out: what is the newest of
# all is found there, and the rows after the newest that a process has seen are its news. Old rows are removed; whoever
# has missed some reads everything. A lease is granted or ended by writing two pages, one of `leases` and one of `log`:
# pages are what a commit costs. Instants are those of the machine's monotonic clock; which boot's is in `meta`.
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
            # For people: no code reads it.
            "create view held as select leases.token, credentials.name, leases.requester, sessions.pid "
            "from leases join credentials on credentials.number = leases.credential "
            "join sessions on sessions.id = leases.session",
        ),
    ),
    Migration(
        2,
        "sessions whose leases are used on other machines",
        (
            # For so many seconds after their process is gone; null: nowhere but in that process.
            "alter table sessions add column out_for real",
            # Its process is gone, and until this hour of the wall clock they may be in use: for people.
            "alter table sessions add column gone_until real",
        ),
    ),
)
