"""An item and its attempts, as plain data."""

from __future__ import annotations

from typing import Any

from .states import ItemStatus

NOTHING: dict[str, int] = {}  # never changed
LOST = "lost"  # why an attempt is cancelled whose key others may have by now, because this process stood still


class Item:
    """One item of the input, from the moment it is taken until it is final."""

    __slots__ = (
        "attempts",
        "duplicate",
        "fault",
        "fingerprint",
        "id",
        "index",
        "limited",
        "no_key_waits",
        "payload",
        "state",
        "successes_before",
        "token_shortfalls",
        "tries",
    )

    def __init__(self, index: int, item_id: str, payload: Any) -> None:
        self.index = index
        self.id = item_id
        self.payload = payload
        self.state = ItemStatus.PENDING
        self.fault: str | None = None  # why it cannot be run at all
        self.duplicate = False  # another item has its id, and the journal knows that one
        self.fingerprint: str | None = None
        self.attempts = 0  # begun so far, those of earlier runs included
        self.tries = 0  # failed tries that another one followed
        self.limited = 0  # attempts in a row that a limit stopped
        self.token_shortfalls = 0  # of them, those that may have been for want of tokens
        self.no_key_waits = 0  # of them, those that got no key in their own time
        self.successes_before: dict[str, int] = NOTHING  # how many others had succeeded, by quota, when the row began


class Attempt:
    """One time that an item is run. The token decides whether its result counts: it must be the item's current one."""

    __slots__ = (
        "began_at",
        "cancelled",
        "cancelled_at",
        "ended",
        "grant",
        "item",
        "lease",
        "number",
        "pool",
        "runner",
        "token",
    )

    def __init__(self, item: Item, token: int, number: int, grant: Any, began_at: float, pool: Any = None) -> None:
        self.pool = pool  # where the grant is from
        self.item = item
        self.token = token
        self.number = number
        self.grant = grant
        self.began_at = began_at
        self.ended = False
        self.cancelled: str | None = None  # why it was asked to end: "timeout", "stop" or LOST
        self.cancelled_at = 0.0
        self.runner: Any = None  # what its engine needs to know of it
        self.lease: Any = None  # as its worker sees it, once it has asked
