"""The plan of a run: the ids of its input in order, recorded in the journal if the input was a list."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator
from typing import Final

_PARTS: Final = "select seq, kind, fingerprint from entries where kind in ('plan', 'session') and seq <= ? order by seq"
_EVERYTHING: Final = 2**62


class Plan:
    """The newest complete plan in a journal; ``parts`` are the numbers of its entries.

    A plan cut short by a crash does not count; the next session writes it again.
    """

    def __init__(self, connection: sqlite3.Connection, last: int = _EVERYTHING) -> None:
        self._connection = connection
        self.parts: list[int] = []
        parts: list[int] = []
        for seq, kind, whole in connection.execute(_PARTS, (last,)):
            if kind == "session":
                parts = []
                continue
            parts.append(seq)
            if whole is not None:
                self.parts, parts = parts, []

    def __bool__(self) -> bool:
        return bool(self.parts)

    def ids(self) -> Iterator[str]:
        """Yield the ids in the order of the input, holding a thousand in memory."""
        return itertools.chain.from_iterable(self.id_parts())

    def id_parts(self) -> Iterator[list[str]]:
        """Yield the ids in lists of a thousand."""
        for seq in self.parts:
            found = self._connection.execute("select detail from entries where seq = ?", (seq,)).fetchone()
            yield json.loads(found[0])
