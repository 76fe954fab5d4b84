"""The migrations of a journal's database."""

from __future__ import annotations

from typing import Final

from agentos.util.sqlite.migrations import Migration

# Frozen: a published migration never changes.
_KINDS_1: Final = {
    "start": "running",
    "done": "done",
    "failed": "failed",
    "retry": "pending",
    "limited": "pending",
    "pending": "pending",
    "interrupted": "interrupted",
    "parked": "parked",
}
_KINDS_2: Final = {**_KINDS_1, "reopened": "pending"}


def _items_view(kinds: dict[str, str], added: str = "") -> str:
    """Return the view of the newest state of each item. It is for people: no code reads it."""
    states = " ".join(f"when '{kind}' then '{state}'" for kind, state in kinds.items())
    deciding = ", ".join(f"'{kind}'" for kind in kinds)
    return (
        f"create view items as select item, case kind {states} end as state, attempt, credential, duration, "  # noqa: S608
        f"value, error, at{added} from entries where seq in "
        f"(select max(seq) from entries where kind in ({deciding}) group by item)"
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
            _items_view(_KINDS_1),
        ),
    ),
    Migration(
        2,
        "the item, its usage and flags",
        (
            "alter table entries add column content text",
            "alter table entries add column usage text",
            "alter table entries add column flags text",
            "drop view items",
            _items_view(_KINDS_2, ", content, usage, flags"),
        ),
    ),
)
