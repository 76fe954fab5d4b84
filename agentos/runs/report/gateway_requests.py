"""The requests of a run through the gateway: totals for the report, and each of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ..journal.journal_files import JournalFiles
from .journal_access import query_rows, read_journal

_TOTALS: Final = (
    "select count(*), coalesce(sum(detail ->> '$.outcome' = 'done'), 0), "
    "coalesce(sum(detail ->> '$.outcome' = 'left'), 0), coalesce(sum(detail ->> '$.refusals'), 0), "
    "coalesce(sum(detail ->> '$.waited'), 0.0), coalesce(max(detail ->> '$.waited'), 0.0) "
    "from entries where kind = 'gateway_request' and json_valid(detail)"
)
_EACH: Final = (
    "select seq, detail from entries where kind = 'gateway_request' and json_valid(detail) and seq > ? "
    "order by seq limit 1000"
)
# A bare column of an aggregate is that of the row with the maximum.
_LAST_KEYS: Final = (
    "select detail ->> '$.session', credential, max(seq) from entries where kind = 'gateway_request' "
    "and json_valid(detail) and detail ->> '$.outcome' = 'done' and detail ->> '$.session' is not null group by 1"
)


@dataclass(frozen=True, slots=True)
class RequestTotals:
    """Counts of requests: all, answered, ended by the client; refusals of keys that the client did not see.

    ``waited`` are the seconds for keys, all requests together, ``longest`` those of the one that waited most.
    """

    requests: int = 0
    done: int = 0
    left: int = 0
    refusals: int = 0
    waited: float = 0.0
    longest: float = 0.0

    @property
    def refused(self) -> int:
        """Return the number of requests whose client got an error."""
        return self.requests - self.done - self.left

    def as_json(self) -> dict[str, Any]:
        """Return the totals as a JSON object."""
        return {
            "requests": self.requests,
            "done": self.done,
            "refused": self.refused,
            "left": self.left,
            "refusals": self.refusals,
            "waited": self.waited,
            "longest": self.longest,
        }


def sum_requests(files: JournalFiles) -> RequestTotals:
    """Return the totals of a journal."""

    def read(connection: sqlite3.Connection) -> RequestTotals:
        return RequestTotals(*connection.execute(_TOTALS).fetchone())

    return read_journal(files, read)


def find_last_keys(files: JournalFiles) -> dict[str, str]:
    """Return the key that served each session last."""
    return {str(session): str(key) for session, key, _ in query_rows(files, _LAST_KEYS)}


def request_lines(files: JournalFiles) -> Iterator[str]:
    """Yield each request as a JSON object, in the order of their ends."""
    last = 0
    while rows := query_rows(files, _EACH, last):
        for seq, detail in rows:
            yield str(detail)
            last = int(seq)
