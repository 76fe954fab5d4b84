"""The agents of a run: how each item ended, how often it was resumed, what it took, and how long it waited."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ...costs.usage import Usage
from ..exports.recorded_facts import RecordedFacts
from ..journal.journal_files import JournalFiles
from .journal_access import query_rows

_ROWS: Final = (
    "select seq, at, kind, item, coalesce(value, detail), usage, duration from entries "
    "where item is not null and seq > ? and kind in "
    "('agent_session', 'start', 'done', 'failed', 'limited', 'retry', 'interrupted', 'parked', 'gateway_request') "
    "order by seq limit 1000"
)
_ANY: Final = "select 1 from entries where kind = 'agent_session' limit 1"
_ENDS: Final = frozenset({"done", "failed", "limited", "retry", "interrupted", "parked"})
_UNFINISHED: Final = {"start": "running", "interrupted": "interrupted", "parked": "parked"}


@dataclass(slots=True)
class AgentItem:
    """One item of a run with an agent. ``waited`` are the seconds in which a limit kept it from working."""

    id: str
    ending: str = "running"
    resumes: int = 0
    turns: int = 0
    usage: Usage | None = None
    cost: float | None = None
    waited: float = 0.0
    tree: str | None = None
    disagreement: str | None = None
    _limited_at: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the item as a JSON object."""
        return {
            "id": self.id,
            "ending": self.ending,
            "resumes": self.resumes,
            "turns": self.turns,
            "usage": None if self.usage is None else self.usage.to_json(),
            "cost_usd": self.cost,
            "waited": round(self.waited, 3),
            "tree": self.tree,
            "disagreement": self.disagreement,
        }

    def add(self, at: float, kind: str, facts: dict[str, Any], usage: str | None) -> None:
        """Add an entry of the journal."""
        if kind == "gateway_request":
            waited = facts.get("waited")
            self.waited += waited if isinstance(waited, (int, float)) else 0.0
            return
        if kind == "start" and self._limited_at is not None:
            self.waited += max(0.0, at - self._limited_at)
            self._limited_at = None
        if kind == "limited":
            self._limited_at = at
        if kind == "start" or kind in _ENDS:
            self.ending = str(facts.get("ending") or _UNFINISHED.get(kind, kind))
            self.usage = RecordedFacts.parse(usage, None).usage or self.usage
            self.disagreement = _text(facts, "disagreement")
        # Only the end of an item that is done says that its tree is gone.
        self.tree = _text(facts, "tree") or (None if kind == "done" else self.tree)
        resumes, turns, cost = facts.get("resumes"), facts.get("turns"), facts.get("cost_usd")
        self.resumes = resumes if isinstance(resumes, int) else self.resumes
        self.turns = turns if isinstance(turns, int) else self.turns
        self.cost = float(cost) if isinstance(cost, (int, float)) else self.cost


def list_agents(files: JournalFiles) -> list[AgentItem]:
    """Return the items of a run with an agent, in the order of their starts; none for another run."""
    if not list(query_rows(files, _ANY)):
        return []
    items: dict[str, AgentItem] = {}
    agents: set[str] = set()
    for at, kind, item_id, facts, usage in _read(files):
        if kind == "agent_session":
            agents.add(item_id)
        items.setdefault(item_id, AgentItem(item_id)).add(at, kind, facts, usage)
    return [item for item in items.values() if item.id in agents]


def _read(files: JournalFiles) -> Iterator[tuple[float, str, str, dict[str, Any], str | None]]:
    last = 0
    while rows := query_rows(files, _ROWS, last):
        for seq, at, kind, item_id, text, usage, _ in rows:
            last = int(seq)
            try:
                facts = json.loads(text) if text else {}
            except ValueError:
                facts = {}
            yield float(at), str(kind), str(item_id), facts if isinstance(facts, dict) else {}, usage


def _text(facts: dict[str, Any], name: str) -> str | None:
    found = facts.get(name)
    return found if isinstance(found, str) else None
