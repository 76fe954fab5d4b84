"""The migrations of a journal's database."""

from __future__ import annotations

from typing import Final

from agentos.util.sqlite.migrations import Migration

from .entry_kinds import DECIDES

_STATE_OF_KIND = " ".join(f"when '{kind}' then '{state}'" for kind, state in DECIDES.items())
_DECIDING_KINDS = ", ".join(f"'{kind}'" for kind in DECIDES)

# For people: no code reads it.
_ITEMS_VIEW = (
    f"create view items as select item, case kind {_STATE_OF_KIND} end as state, attempt, credential, duration, "  # noqa: S608
    "value, error, at from entries where seq in "
    f"(select max(seq) from entries where kind in ({_DECIDING_KINDS}) group by item)"
)

MIGRATIONS: Final = (
    Migration(
        1,
        "entries, meta and the view of items",
        (
            "create table migrations(number integer primary key, name text not null, applied_at real not null) strict",
            "create table meta(key text primary key, value text) strict",
            "create table entries(seq integer primary key, at real not null, kind text not null, item text, "
            "token integer, attempt integer, credential text, duration real, fingerprint text, value text, "
            "error text, detail text, chain text) strict",
            _ITEMS_VIEW,
        ),
    ),
)
