"""Sessions: which quota served them last, and which quota made the state that they carry."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from .request_facts import RequestFacts

_MOST: Final = 50_000


class SessionTable:
    """Remembers quotas by session and by state, the last fifty thousand of each."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._by_session: OrderedDict[str, str] = OrderedDict()
        self._by_name: OrderedDict[str, str] = OrderedDict()  # of sessions that an earlier gateway served
        self._by_state: OrderedDict[str, str] = OrderedDict()

    def find_pin(self, facts: RequestFacts) -> str | None:
        """Return the quota to which a request with state of one account is bound; None if it has no such state."""
        if not facts.bound_to:
            return None
        for state in facts.bound_to:
            if state in self._by_state:
                self._by_state.move_to_end(state)
                return self._by_state[state]
        if facts.affinity is None or facts.session is None:
            return None
        return self._by_session.get(facts.affinity) or self._by_name.get(facts.session)

    def note_session(self, facts: RequestFacts, quota: str) -> None:
        """Note that *quota* serves the request."""
        if facts.affinity is not None:
            self._put(self._by_session, facts.affinity, quota)

    def note_earlier(self, session: str, quota: str) -> None:
        """Note that *quota* served the session before this gateway began: its state is not known here."""
        self._put(self._by_name, session, quota)

    def note_state(self, state: str, quota: str) -> None:
        """Note that *quota* made the state with this digest."""
        self._put(self._by_state, state, quota)

    def _put(self, table: OrderedDict[str, str], name: str, quota: str) -> None:
        table[name] = quota
        table.move_to_end(name)
        if len(table) > self._most:
            table.popitem(last=False)
