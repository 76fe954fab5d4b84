"""Item and Attempt: the plain records of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...costs.usage_log import NOTHING_USED, UsageLog
from .states import ItemStatus

if TYPE_CHECKING:
    from ...costs.usage import Usage

NOTHING: dict[str, int] = {}  # never changed
LOST = "lost"  # why an attempt is cancelled: this process was suspended and its key may have been granted to another


class ItemText(NamedTuple):
    """An item as JSON text; None if it is not JSON. ``flags`` says in which way the text is not the whole item."""

    text: str | None
    flags: dict[str, Any]


class Item:
    """One item of the input, from when it is taken until it is final."""

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
        "text",
        "token_shortfalls",
        "tries",
        "usage",
    )

    def __init__(self, index: int, item_id: str, payload: Any) -> None:
        self.index = index
        self.id = item_id
        self.payload = payload
        self.state = ItemStatus.PENDING
        self.fault: str | None = None  # why it cannot be run at all
        self.duplicate = False  # another item has the same id, and the journal records that one
        self.fingerprint: str | None = None
        self.text: ItemText | None = None  # as it was before its first attempt, if there is a journal
        self.attempts = 0  # started so far, including those of earlier runs
        self.usage: Usage | None = None  # the tokens that all its attempts used, if any were reported
        self.tries = 0  # failed attempts that were retried
        self.limited = 0  # consecutive attempts that a limit stopped
        self.token_shortfalls = 0  # of them, those that may have reserved too few tokens
        self.no_key_waits = 0  # of them, those that got no key within their own timeout
        self.successes_before: dict[str, int] = NOTHING  # successes of others by quota, when the streak began


class Attempt:
    """One execution of an item. Its result counts only while the scheduler still has the token."""

    __slots__ = (
        "access",
        "began_at",
        "cancelled",
        "cancelled_at",
        "ended",
        "facts",
        "grant",
        "item",
        "lease",
        "number",
        "pool",
        "redacted_output",
        "runner",
        "token",
        "usage_log",
        "used",
        "wire",
    )

    def __init__(self, item: Item, token: int, number: int, grant: Any, began_at: float, pool: Any = None) -> None:
        self.pool = pool  # the pool that issued the grant
        self.item = item
        self.token = token
        self.number = number
        self.grant = grant
        self.began_at = began_at
        self.ended = False
        self.cancelled: str | None = None  # why it was cancelled: "timeout", "stop" or LOST
        self.cancelled_at = 0.0
        self.runner: Any = None  # the engine's handle of it
        self.facts: dict[str, Any] = NOTHING  # what is recorded of its failure, besides the error
        self.redacted_output = False  # its value is the output of a command, from which a secret was removed
        self.lease: Any = None  # the worker's view of it, once requested
        self.usage_log = UsageLog()  # collects the tokens that its calls use
        self.used: dict[str, Usage] = NOTHING_USED  # the same by credential, once it has ended
        self.access: Any = None  # to the gateway, by the token that a function has instead of a key
        self.wire: Any = None  # the WireVerdict on it, if its last call was refused

    def item_lease(self) -> Any:
        """Return the worker's view of a lease of the agentos pool; None: it has no such lease."""
        return None
